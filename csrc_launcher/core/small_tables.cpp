#include "core/small_tables.h"

#include <iterator>

#include "core/axis_values.h"
#include "core/kernel_lookup.h"
#include "core/launch_chain.h"
#include "core/launch_limits.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::ForwardSmallTableAxes;
using generated::ForwardSmallTableBf16;
using generated::ForwardSmallTableBucket;
using generated::ForwardSmallTableIndexWidth;
using generated::ForwardSmallTableRows;
using generated::kForwardSmallTableBucketValues;
using generated::kForwardSmallTableKernel;
using generated::kForwardSmallTableRowsValues;

// Narrower rows leave tensor cores too little to do.
constexpr int64_t kLeastDim = 64;

// Whether a row of 256 columns is one of 256 rows: there is no variant for both.
bool is_excluded(const ForwardSmallTableAxes& axes) {
  return axes.bucket == ForwardSmallTableBucket::d256 && axes.rows == ForwardSmallTableRows::e256;
}

ForwardSmallTableAxes choose_axes(const ForwardRequest& request, const Layout& layout) {
  ForwardSmallTableAxes axes{};
  axes.bf16 = request.weight_dtype == Dtype::kBFloat16 ? ForwardSmallTableBf16::bf16
                                                       : ForwardSmallTableBf16::fp16;
  axes.bucket =
      bucket_axis<ForwardSmallTableBucket>(layout.group(0).bucket, kForwardSmallTableBucketValues);
  const int32_t* rows = kForwardSmallTableRowsValues;
  while (*rows < layout.max_rows()) ++rows;
  axes.rows = static_cast<ForwardSmallTableRows>(rows - kForwardSmallTableRowsValues);
  axes.index_width = index_width_axis<ForwardSmallTableIndexWidth>(request.index_width);
  return axes;
}

Choice choose(const ForwardRequest& request, const Layout& layout) {
  return choose_variant(request.arch, kForwardSmallTableKernel,
                        generated::forward_small_table_cell(choose_axes(request, layout)));
}

}  // namespace

bool is_small_table(const Layout& layout) {
  return layout.feature_count() == 1 &&
         layout.max_rows() <= *(std::end(kForwardSmallTableRowsValues) - 1) &&
         layout.output_width() >= kLeastDim &&
         layout.output_width() <= *(std::end(kForwardSmallTableBucketValues) - 1);
}

const char* why_not_small_table(const ForwardRequest& request, const Layout& layout) {
  if (request.small_tables == SmallTables::kNever) return "small_tables is never";
  if (!is_small_table(layout)) return "there is not one feature with a small table";
  if (request.weight_dtype == Dtype::kFloat32) return "the table is fp32";
  if (request.output_dtype != Dtype::kFloat32) return "the output is not fp32";
  if (request.per_sample_weights != nullptr) return "there are per-sample weights";
  if (request.vbe_bag_offsets != nullptr) return "the batch is variable";
  if (layout.group(0).aligned == 0 || !is_vector_aligned(request.weights)) {
    return "rows of the table do not start at multiples of 16 bytes";
  }
  if (!is_vector_aligned(request.output)) return "the output's address is not a multiple of 16";
  if (is_excluded(choose_axes(request, layout))) return "rows are too many and too wide";
  if (request.small_tables == SmallTables::kAlways) return nullptr;
  const int64_t from =
      generated::forward_small_table_constants(*choose(request, layout).info).MEAN_LENGTH_FROM;
  if (from == 0) return "for a table of this dtype and size it runs only when asked for";
  if (request.lookups < from * request.total_bags) return "bags are too short on average";
  return nullptr;
}

void add_small_table_launch(Plan& plan, const ForwardRequest& request, const Layout& layout,
                            Reasons* reasons) {
  const Choice choice = choose(request, layout);
  generated::ForwardSmallTableArgs args{};
  args.output = request.output;
  args.weights = request.weights;
  args.features = request.features;
  args.indices = request.indices;
  args.offsets = request.offsets;
  args.batch_size = to_int32(request.batch_size, "the number of bags per feature");
  args.mean = request.mean ? 1 : 0;
  const int32_t bags = generated::forward_small_table_constants(*choice.info).BAGS;
  LaunchChain chain(plan, reasons);
  chain.add(kForwardSmallTableKernel, choice, ceil_div(request.batch_size, bags), 1, args);
  if (chain.explains()) {
    const double mean_length =
        static_cast<double>(request.lookups) / static_cast<double>(request.total_bags);
    chain.explain("counts of rows times the table, which has ", layout.max_rows(), " rows of ",
                  layout.output_width(), " columns; bags have ", mean_length,
                  " lookups on average");
  }
}

}  // namespace tbe_aot
