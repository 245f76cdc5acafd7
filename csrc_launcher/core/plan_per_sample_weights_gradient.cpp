#include <algorithm>

#include "core/axis_values.h"
#include "core/error.h"
#include "core/kernel_lookup.h"
#include "core/launch_chain.h"
#include "core/launch_limits.h"
#include "core/planner.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::kPerSampleWeightsGradientKernel;
using generated::PerSampleWeightsGradientAligned;
using generated::PerSampleWeightsGradientAxes;
using generated::PerSampleWeightsGradientBucket;
using generated::PerSampleWeightsGradientGradientDtype;
using generated::PerSampleWeightsGradientIndexWidth;
using generated::PerSampleWeightsGradientWeightDtype;

void check(const SampleWeightsGradientRequest& request) {
  if (request.lookups < 0 || request.batch_size < 0 || request.total_bags < 0) {
    fail("negative size: ", request.lookups, " lookups, ", request.batch_size,
         " bags per feature, ", request.total_bags, " bags");
  }
  if ((request.vbe_bag_offsets == nullptr) != (request.vbe_output_offsets == nullptr)) {
    fail("vbe_bag_offsets and vbe_output_offsets must be given together");
  }
  if (!has_gradient_variants(request.weight_dtype, request.gradient_dtype)) {
    fail("gradients of weights are of the weights' dtype or fp32, widen others before");
  }
}

// Why no group of this call may use an aligned variant; null when nothing speaks against it.
const char* why_all_generic(const SampleWeightsGradientRequest& request, const Layout& layout) {
  if (!is_vector_aligned(request.weights)) return "the weights' address is not a multiple of 16";
  if (!is_vector_aligned(request.gradient)) return "the gradient's address is not a multiple of 16";
  if (request.vbe_bag_offsets != nullptr && !layout.all_rows_aligned()) {
    return "in a 1-D gradient rows of other features shift those of the group";
  }
  return nullptr;
}

}  // namespace

Plan plan_per_sample_weights_gradient(const SampleWeightsGradientRequest& request,
                                      const Layout& layout, Reasons* reasons) {
  check(request);
  Plan plan;
  plan.arch = request.arch;
  if (request.lookups == 0 || request.total_bags == 0 || request.batch_size == 0) {
    plan.clear.address = request.result;
    plan.clear.bytes = static_cast<size_t>(request.lookups) * sizeof(float);
    if (reasons != nullptr) reasons->push_back("nothing to launch: there are no lookups in bags");
    return plan;
  }

  const char* generic_reason = why_all_generic(request, layout);
  PerSampleWeightsGradientAxes axes{};
  axes.weight_dtype =
      dtype_axis<PerSampleWeightsGradientWeightDtype>(request.weight_dtype, "weight");
  axes.gradient_dtype =
      dtype_axis<PerSampleWeightsGradientGradientDtype>(request.gradient_dtype, "gradient");
  axes.index_width = index_width_axis<PerSampleWeightsGradientIndexWidth>(request.index_width);

  generated::PerSampleWeightsGradientArgs args{};
  args.result = request.result;
  args.gradient = request.gradient;
  args.weights = request.weights;
  args.indices = request.indices;
  args.offsets = request.offsets;
  args.vbe_bag_offsets = request.vbe_bag_offsets;
  args.vbe_output_offsets = request.vbe_output_offsets;
  args.batch_size = to_int32(request.batch_size, "the number of bags per feature");
  args.total_bags = request.total_bags;
  args.indices_numel = request.lookups;
  args.output_width = to_int32(layout.output_width(), "the width of the output");
  args.mean = request.mean ? 1 : 0;
  args.vbe = request.vbe_bag_offsets != nullptr ? 1 : 0;

  LaunchChain chain(plan, reasons);
  const auto* features =
      static_cast<const int64_t*>(request.features) + layout.feature_count() * kFeatureColumns;
  for (size_t i = layout.group_count(); i-- > 0;) {
    const FeatureGroup group = layout.group(i);
    features -= group.feature_count * kFeatureColumns;
    const bool aligned = group.aligned == 2 && generic_reason == nullptr;
    axes.bucket = bucket_axis<PerSampleWeightsGradientBucket>(
        group.bucket, generated::kPerSampleWeightsGradientBucketValues);
    axes.aligned = aligned ? PerSampleWeightsGradientAligned::aligned
                           : PerSampleWeightsGradientAligned::generic;
    const Choice choice = choose_variant(request.arch, kPerSampleWeightsGradientKernel,
                                         generated::per_sample_weights_gradient_cell(axes));
    const int32_t bags = generated::per_sample_weights_gradient_constants(*choice.info).BAGS;
    for (int64_t first = 0; first < group.feature_count; first += kMaxGridY) {
      const int64_t count = std::min(group.feature_count - first, kMaxGridY);
      args.features = features + first * kFeatureColumns;
      chain.add(kPerSampleWeightsGradientKernel, choice, ceil_div(request.batch_size, bags), count,
                args);
      if (chain.explains()) {
        chain.explain(count, " features of bucket ", group.bucket, "; ",
                      describe_row_alignment(group, generic_reason));
      }
    }
  }
  return plan;
}

}  // namespace tbe_aot
