#include "core/work_stealing.h"

#include <iterator>

#include "core/axis_values.h"
#include "core/kernel_lookup.h"
#include "core/kernel_table.h"
#include "core/launch_limits.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::ForwardWorkStealingAxes;
using generated::ForwardWorkStealingBf16;
using generated::ForwardWorkStealingBucket;
using generated::ForwardWorkStealingIndexWidth;
using generated::kForwardWorkStealingBucketValues;
using generated::kForwardWorkStealingKernel;

Choice choose(const ForwardRequest& request, const FeatureGroup& group) {
  ForwardWorkStealingAxes axes{};
  axes.bf16 = request.weight_dtype == Dtype::kBFloat16 ? ForwardWorkStealingBf16::bf16
                                                       : ForwardWorkStealingBf16::fp16;
  axes.bucket =
      bucket_axis<ForwardWorkStealingBucket>(group.bucket, kForwardWorkStealingBucketValues);
  axes.index_width = index_width_axis<ForwardWorkStealingIndexWidth>(request.index_width);
  return choose_variant(request.arch, kForwardWorkStealingKernel,
                        generated::forward_work_stealing_cell(axes));
}

}  // namespace

const char* why_not_work_stealing(const ForwardRequest& request, const FeatureGroup& group,
                                  bool aligned) {
  if (!request.work_stealing) return "work_stealing is never";
  if (kBuild.kernels[kForwardWorkStealingKernel].variants[request.arch] == nullptr) {
    return "blocks of this arch cannot take over others";
  }
  if (request.weight_dtype == Dtype::kFloat32) return "the tables are fp32";
  if (request.per_sample_weights != nullptr) return "there are per-sample weights";
  if (!aligned) return "rows or the output do not start at multiples of 16 bytes";
  if (group.bucket > *(std::end(kForwardWorkStealingBucketValues) - 1)) return "rows are too wide";
  return nullptr;
}

void add_work_stealing_launch(LaunchChain& chain, const ForwardRequest& request,
                              const FeatureGroup& group, int64_t feature_count,
                              const generated::ForwardArgs& args) {
  const Choice choice = choose(request, group);
  generated::ForwardWorkStealingArgs own{};
  own.output = args.output;
  own.weights = args.weights;
  own.features = args.features;
  own.indices = args.indices;
  own.offsets = args.offsets;
  own.vbe_bag_offsets = args.vbe_bag_offsets;
  own.vbe_output_offsets = args.vbe_output_offsets;
  own.batch_size = args.batch_size;
  own.output_stride = args.output_stride;
  own.output_dtype = args.output_dtype;
  own.mean = args.mean;
  own.vbe = args.vbe;
  const int32_t bags = generated::forward_work_stealing_constants(*choice.info).BAGS;
  chain.add(kForwardWorkStealingKernel, choice, ceil_div(request.batch_size, bags), feature_count,
            own);
  if (chain.explains()) {
    chain.explain(feature_count, " features of bucket ", group.bucket,
                  "; blocks go on with the work of others because work_stealing is always");
  }
}

}  // namespace tbe_aot
