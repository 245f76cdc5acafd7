#include "core/fused_long_runs.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/axis_values.h"
#include "core/optimizers.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::kSumAndUpdateLongRunsBucketValues;
using generated::kSumAndUpdateLongRunsKernel;
using generated::SumAndUpdateLongRunsBucket;
using generated::SumAndUpdateLongRunsFactored;
using generated::SumAndUpdateLongRunsGradientDtype;
using generated::SumAndUpdateLongRunsWeightDtype;
using generated::UpdateLongRunsOptimizer;

int32_t cell_of(const BackwardUpdateRequest& request, const FeatureGroup& group) {
  generated::SumAndUpdateLongRunsAxes axes{};
  axes.weight_dtype = dtype_axis<SumAndUpdateLongRunsWeightDtype>(request.weight_dtype, "weight");
  axes.gradient_dtype =
      dtype_axis<SumAndUpdateLongRunsGradientDtype>(request.gradient_dtype, "gradient");
  axes.bucket =
      bucket_axis<SumAndUpdateLongRunsBucket>(group.bucket, kSumAndUpdateLongRunsBucketValues);
  axes.factored = request.factored ? SumAndUpdateLongRunsFactored::factored
                                   : SumAndUpdateLongRunsFactored::plain;
  return generated::sum_and_update_long_runs_cell(axes);
}

bool has_bucket(const FeatureGroup& group) {
  const int32_t* end = std::end(kSumAndUpdateLongRunsBucketValues);
  return std::find(std::begin(kSumAndUpdateLongRunsBucketValues), end, group.bucket) != end;
}

}  // namespace

const char* why_two_launches(const BackwardUpdateRequest& request, const Layout& layout,
                             const FeatureGroup& group, bool aligned) {
  if (request.fused_long_runs == FusedLongRuns::kNever) return "fused_long_runs is never";
  if (optimizer_axis<UpdateLongRunsOptimizer>(request.optimizer) !=
      UpdateLongRunsOptimizer::rowwise) {
    return "no kernel does both for this optimizer";
  }
  if (!aligned) return "no kernel does both for generic rows";
  if (!has_bucket(group)) return "no kernel does both for this bucket";
  if (!has_variant(kSumAndUpdateLongRunsKernel, cell_of(request, group))) {
    return "no kernel does both for gradients with a factor in this bucket";
  }
  if (request.fused_long_runs == FusedLongRuns::kAlways) return nullptr;
  const Choice choice = choose_fused_long_runs(request, group);
  const auto constants = generated::sum_and_update_long_runs_constants(*choice.info);
  if (request.lookups >= constants.LOOKUPS_PER_ROW_BELOW * layout.total_rows()) {
    return "nearly all rows have runs of many chunks";
  }
  return nullptr;
}

Choice choose_fused_long_runs(const BackwardUpdateRequest& request, const FeatureGroup& group) {
  return choose_variant(request.arch, kSumAndUpdateLongRunsKernel, cell_of(request, group));
}

}  // namespace tbe_aot
