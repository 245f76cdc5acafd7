#include "core/small_tables.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/axis_values.h"
#include "core/check_launches.h"
#include "core/kernel_lookup.h"
#include "core/launch_chain.h"
#include "core/launch_limits.h"
#include "core/optimizers.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::ForwardSmallTableAxes;
using generated::ForwardSmallTableBf16;
using generated::ForwardSmallTableBucket;
using generated::ForwardSmallTableChecked;
using generated::ForwardSmallTableIndexWidth;
using generated::ForwardSmallTableRows;
using generated::kForwardSmallTableBucketValues;
using generated::kForwardSmallTableKernel;
using generated::kForwardSmallTableRowsValues;
using generated::kSumSmallTableBucketValues;
using generated::kSumSmallTableKernel;
using generated::kUpdateSmallTableKernel;
using generated::SumSmallTableBucket;
using generated::SumSmallTableGradientDtype;
using generated::SumSmallTableIndexWidth;
using generated::UpdateSmallTableBucket;
using generated::UpdateSmallTableOptimizer;
using generated::UpdateSmallTableWeightDtype;

// Narrower rows leave tensor cores too little to do.
constexpr int64_t kLeastDim = 64;

// Whether a row of 256 columns is one of 256 rows: there is no variant for both.
bool is_excluded(const ForwardSmallTableAxes& axes) {
  return axes.bucket == ForwardSmallTableBucket::d256 && axes.rows == ForwardSmallTableRows::e256;
}

// Of the weights: the forward's places of rows are 32 bits wide.
constexpr int64_t kMostElements = int64_t{1} << 32;

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

// About as many as a device has multiprocessors; a row's update adds up as many sums.
constexpr int64_t kMostChunks = 128;

Choice choose_sum(const BackwardUpdateRequest& request, const Layout& layout) {
  generated::SumSmallTableAxes axes{};
  axes.gradient_dtype = static_cast<SumSmallTableGradientDtype>(request.gradient_dtype);
  axes.bucket =
      bucket_axis<SumSmallTableBucket>(layout.group(0).bucket, kSumSmallTableBucketValues);
  axes.index_width = index_width_axis<SumSmallTableIndexWidth>(request.transpose->index_width);
  return choose_variant(request.arch, kSumSmallTableKernel, generated::sum_small_table_cell(axes));
}

// How the sums of an update are cut up and laid out: [ROWS, chunks, bucket] fp32, then [ROWS,
// chunks] int32.
struct Sums {
  int64_t chunk_bags;
  int64_t chunks;
  int64_t numel;  // Of the first.
  int64_t bytes;  // Of both.
};

Sums lay_out(const BackwardUpdateRequest& request, const Layout& layout, const Choice& choice) {
  const auto constants = generated::sum_small_table_constants(*choice.info);
  Sums sums{};
  const int64_t bags = ceil_div(request.total_bags, kMostChunks);
  sums.chunk_bags = ceil_div(bags, constants.BAGS) * constants.BAGS;
  sums.chunks = ceil_div(request.total_bags, sums.chunk_bags);
  const int64_t places = constants.ROWS * sums.chunks;
  sums.numel = places * layout.group(0).bucket;
  sums.bytes = (sums.numel + places) * static_cast<int64_t>(sizeof(float));
  return sums;
}

Choice choose(const ForwardRequest& request, const ForwardSmallTableAxes& axes) {
  return choose_variant(request.arch, kForwardSmallTableKernel,
                        generated::forward_small_table_cell(axes));
}

}  // namespace

bool is_small_table(const Layout& layout) {
  // One group: its bucket is the table's. A layout may have empty ones.
  return layout.feature_count() == 1 && layout.group_count() == 1 &&
         layout.max_rows() <= *(std::end(kForwardSmallTableRowsValues) - 1) &&
         layout.output_width() >= kLeastDim &&
         layout.output_width() <= *(std::end(kForwardSmallTableBucketValues) - 1);
}

bool tells_of_small_tables(SmallTables asked, const Layout& layout) {
  return asked == SmallTables::kAlways || is_small_table(layout);
}

const char* why_not_small_table(const ForwardRequest& request, const Layout& layout) {
  if (request.small_tables == SmallTables::kNever) return "small_tables is never";
  if (!is_small_table(layout)) return "there is not one feature with a small table";
  if (request.weight_dtype == Dtype::kFloat32) return "the table is fp32";
  if (request.per_sample_weights != nullptr) return "there are per-sample weights";
  if (request.vbe_bag_offsets != nullptr) return "the batch is variable";
  if (layout.weights_numel() > kMostElements) return "the kernel's places of rows have 32 bits";
  if (layout.group(0).aligned == 0 || !is_vector_aligned(request.weights)) {
    return "rows of the table do not start at multiples of 16 bytes";
  }
  if (!is_vector_aligned(request.output)) return "the output's address is not a multiple of 16";
  if (is_excluded(choose_axes(request, layout))) return "rows are too many and too wide";
  if (request.small_tables == SmallTables::kAlways) return nullptr;
  const auto constants =
      generated::forward_small_table_constants(*choose(request, choose_axes(request, layout)).info);
  // What a lane stores at once.
  const bool odd = layout.output_width() % 4 != 0;
  const int64_t from = odd ? constants.ODD_MEAN_LENGTH_FROM : constants.MEAN_LENGTH_FROM;
  if (from == 0) return "for a table of this dtype and size it runs only when asked for";
  if (request.lookups < from * request.total_bags) return "bags are too short on average";
  return nullptr;
}

void add_small_table_launch(LaunchChain& chain, const ForwardRequest& request,
                            const Layout& layout) {
  ForwardSmallTableAxes axes = choose_axes(request, layout);
  const bool checks = request.check != nullptr && fuses_checks(request, layout);
  if (checks) axes.checked = ForwardSmallTableChecked::checked;
  const Choice choice = choose(request, axes);
  generated::ForwardSmallTableArgs args{};
  args.output = request.output;
  args.weights = request.weights;
  args.features = request.features;
  args.indices = request.indices;
  args.offsets = request.offsets;
  args.batch_size = to_int32(request.batch_size, "the number of bags per feature");
  args.mean = request.mean ? 1 : 0;
  args.output_dtype = static_cast<int32_t>(request.output_dtype);
  const int32_t bags = generated::forward_small_table_constants(*choice.info).BAGS;
  if (checks) {
    args.invalid_count = invalid_count_of(*request.check);
    args.report = request.check->report;
    args.indices_numel = request.lookups;
  }
  chain.add(kForwardSmallTableKernel, choice, ceil_div(request.batch_size, bags), 1, args,
            /*waits_first=*/true);
  if (chain.explains()) {
    const double mean_length =
        static_cast<double>(request.lookups) / static_cast<double>(request.total_bags);
    chain.explain("counts of rows times the table, which has ", layout.max_rows(), " rows of ",
                  layout.output_width(), " columns; bags have ", mean_length, " lookups on average",
                  checks ? "; checks the indices" : "");
  }
}

const char* why_not_small_table_update(const BackwardUpdateRequest& request, const Layout& layout) {
  if (request.small_tables == SmallTables::kNever) return "small_tables is never";
  if (!is_small_table(layout)) return "there is not one feature with a small table";
  if (request.transpose == nullptr) return "the lookups have been transposed already";
  if (request.weight_dtype == Dtype::kFloat32) return "the table is fp32";
  if (request.transpose->per_sample_weights != nullptr) return "there are per-sample weights";
  if (request.vbe) return "the batch is variable";
  if (layout.group(0).bucket > *(std::end(kSumSmallTableBucketValues) - 1)) {
    return "rows are too wide";
  }
  const Choice choice = choose_sum(request, layout);
  const auto constants = generated::sum_small_table_constants(*choice.info);
  if (layout.max_rows() > constants.ROWS) return "rows are too many";
  if (request.small_tables == SmallTables::kAlways) return nullptr;
  if (request.lookups < constants.MEAN_LENGTH_FROM * request.total_bags) {
    return "bags are too short on average";
  }
  return nullptr;
}

void add_small_table_update(LaunchChain& chain, const BackwardUpdateRequest& request,
                            const Layout& layout) {
  const Choice summing = choose_sum(request, layout);
  const Sums sums = lay_out(request, layout, summing);
  generated::SumSmallTableArgs sum{};
  sum.partials = request.partials;
  sum.used = static_cast<const float*>(request.partials) + sums.numel;
  sum.gradient = request.gradient;
  sum.features = request.features;
  sum.indices = request.transpose->indices;
  sum.offsets = request.transpose->offsets;
  sum.gradient_scale = request.gradient_scale;
  sum.batch_size = to_int32(request.total_bags, "the number of bags per feature");
  sum.chunk_bags = to_int32(sums.chunk_bags, "the number of bags of a chunk");
  sum.mean = request.transpose->mean ? 1 : 0;
  sum.clip = request.clip > 0 ? request.clip : std::numeric_limits<float>::infinity();
  sum.scaled = request.gradient_scale != nullptr ? 1 : 0;
  chain.add(kSumSmallTableKernel, summing, sums.chunks, 1, sum);
  if (chain.explains()) {
    chain.explain("counts of rows times the gradient, for ", sums.chunks, " chunks of ",
                  sums.chunk_bags, " bags; nothing is transposed because there is one table of ",
                  layout.max_rows(), " rows of ", layout.output_width(), " columns");
  }

  generated::UpdateSmallTableAxes axes{};
  axes.weight_dtype = request.weight_dtype == Dtype::kBFloat16 ? UpdateSmallTableWeightDtype::bf16
                                                               : UpdateSmallTableWeightDtype::fp16;
  axes.bucket = bucket_axis<UpdateSmallTableBucket>(layout.group(0).bucket,
                                                    generated::kUpdateSmallTableBucketValues);
  axes.optimizer = optimizer_axis<UpdateSmallTableOptimizer>(request.optimizer);
  const Choice updating = choose_variant(request.arch, kUpdateSmallTableKernel,
                                         generated::update_small_table_cell(axes));
  generated::UpdateSmallTableArgs update{};
  update.weights = request.weights;
  update.partials = sum.partials;
  update.used = sum.used;
  update.momentum1 = request.momentum1;
  update.momentum2 = request.momentum2;
  update.learning_rate = request.learning_rate;
  update.step = request.step;
  update.found_inf = request.found_inf;
  update.rounding_seed = request.rounding_seed;
  update.features = request.features;
  update.chunks = static_cast<int32_t>(sums.chunks);
  update.eps = request.eps;
  update.beta1 = request.beta1;
  update.beta2 = request.beta2;
  update.l2_decay = request.l2_decay;
  update.decoupled_decay = request.decoupled_decay;
  update.adagrad = traits_of(request.optimizer).momentum1 == StatePlace::kRow ? 1 : 0;
  update.checked = request.found_inf != nullptr ? 1 : 0;
  update.stochastic = request.rounding_seed != nullptr ? 1 : 0;
  // A table without rows has pruned lookups only, and no place of the sums is used.
  chain.add(kUpdateSmallTableKernel, updating, std::max<int64_t>(layout.max_rows(), 1), 1, update,
            /*waits_first=*/true);
  chain.explain("one step for each row that a bag has");
}

int64_t small_table_bytes(const BackwardUpdateRequest& request, const Layout& layout) {
  if (request.lookups == 0 || request.total_bags == 0) return 0;
  if (why_not_small_table_update(request, layout) != nullptr) return 0;
  const Choice choice = choose_sum(request, layout);
  return lay_out(request, layout, choice).bytes;
}

}  // namespace tbe_aot
