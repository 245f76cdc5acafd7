#include <algorithm>
#include <iterator>
#include <string>

#include "core/error.h"
#include "core/kernel_lookup.h"
#include "core/kernel_table.h"
#include "core/launch_limits.h"
#include "core/planner.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::ForwardAligned;
using generated::ForwardAxes;
using generated::ForwardBucket;
using generated::ForwardIndexWidth;
using generated::ForwardShape;
using generated::ForwardWeightDtype;
using generated::ForwardWeighted;
using generated::kForwardKernel;

// Aligned variants move this many bytes at once.
constexpr int64_t kVectorBytes = 16;

ForwardWeightDtype to_axis(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return ForwardWeightDtype::fp32;
    case Dtype::kFloat16:
      return ForwardWeightDtype::fp16;
    case Dtype::kBFloat16:
      return ForwardWeightDtype::bf16;
  }
  fail("weight dtype number ", static_cast<int32_t>(dtype), " is none of fp32, fp16, bf16");
}

ForwardIndexWidth to_axis(int32_t index_width) {
  if (index_width == 32) return ForwardIndexWidth::i32;
  if (index_width == 64) return ForwardIndexWidth::i64;
  fail("indices have ", index_width, " bits, allowed are 32 and 64");
}

ForwardBucket find_bucket(int32_t bucket) {
  const auto begin = std::begin(generated::kForwardBucketValues);
  const auto end = std::end(generated::kForwardBucketValues);
  const auto found = std::find(begin, end, bucket);
  if (found == end) {
    std::string known;
    for (auto value = begin; value != end; ++value) known += join(" ", *value);
    fail("the layout has a group of bucket ", bucket, "; the kernels' buckets are", known);
  }
  return static_cast<ForwardBucket>(found - begin);
}

bool is_vector_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kVectorBytes == 0;
}

// Why no group of this call may use an aligned variant; null when nothing speaks against it.
const char* why_all_generic(const ForwardRequest& request) {
  if (!is_vector_aligned(request.weights)) return "the weights' address is not a multiple of 16";
  if (!is_vector_aligned(request.output)) return "the output's address is not a multiple of 16";
  return nullptr;
}

void check(const ForwardRequest& request) {
  if (request.lookups < 0 || request.batch_size < 0 || request.total_bags < 0) {
    fail("negative size: ", request.lookups, " lookups, ", request.batch_size,
         " bags per feature, ", request.total_bags, " bags");
  }
  if ((request.vbe_bag_offsets == nullptr) != (request.vbe_output_offsets == nullptr)) {
    fail("vbe_bag_offsets and vbe_output_offsets must be given together");
  }
}

// The variant that serves a group, and what decided between its two shapes.
struct GroupChoice {
  Choice variant;
  bool has_short_shape;
  bool is_short;
  int32_t mean_length_below;  // Mean bag length from which bags are not short.
};

GroupChoice choose_for_group(const ForwardRequest& request, ForwardAxes axes) {
  axes.shape = ForwardShape::short_;
  const Choice short_shape =
      choose_variant(request.arch, kForwardKernel, generated::forward_cell(axes));
  axes.shape = ForwardShape::long_;
  const Choice long_shape =
      choose_variant(request.arch, kForwardKernel, generated::forward_cell(axes));
  const int32_t below = generated::forward_constants(*short_shape.info).MEAN_LENGTH_BELOW;
  const bool is_short = request.lookups < below * request.total_bags;
  return {is_short ? short_shape : long_shape, short_shape.variant != long_shape.variant, is_short,
          below};
}

std::string describe_alignment(const FeatureGroup& group, const char* generic_reason) {
  if (!group.aligned)
    return "generic because rows of the group do not start at multiples of 16 bytes";
  if (generic_reason == nullptr) {
    return "aligned because every row of the group starts at a multiple of 16 bytes";
  }
  return join("generic although the group is aligned, because ", generic_reason);
}

std::string describe_shape(const ForwardRequest& request, const GroupChoice& choice) {
  if (!choice.has_short_shape) return "one shape serves this bucket";
  const double mean_length =
      static_cast<double>(request.lookups) / static_cast<double>(request.total_bags);
  return join(choice.is_short ? "short" : "long", " shape because bags have ", mean_length,
              " lookups on average and short serves less than ", choice.mean_length_below);
}

}  // namespace

Plan plan_forward(const ForwardRequest& request, const Layout& layout, Reasons* reasons) {
  check(request);
  Plan plan;
  plan.arch = request.arch;
  if (request.total_bags == 0 || request.batch_size == 0) {
    if (reasons != nullptr) reasons->push_back("nothing to launch: there are no bags");
    return plan;
  }

  const bool vbe = request.vbe_bag_offsets != nullptr;
  const char* generic_reason = why_all_generic(request);
  ForwardAxes axes{};
  axes.weight_dtype = to_axis(request.weight_dtype);
  axes.index_width = to_axis(request.index_width);
  axes.weighted = request.per_sample_weights != nullptr ? ForwardWeighted::weighted
                                                        : ForwardWeighted::unweighted;

  generated::ForwardArgs args{};
  args.output = request.output;
  args.weights = request.weights;
  args.indices = request.indices;
  args.offsets = request.offsets;
  args.per_sample_weights = request.per_sample_weights;
  args.vbe_bag_offsets = request.vbe_bag_offsets;
  args.vbe_output_offsets = request.vbe_output_offsets;
  args.batch_size = to_int32(request.batch_size, "the number of bags per feature");
  args.output_stride = to_int32(layout.output_width(), "the width of the output");
  args.output_dtype = static_cast<int32_t>(request.output_dtype);
  args.mean = request.mean ? 1 : 0;
  args.vbe = vbe ? 1 : 0;

  const auto* features = static_cast<const int64_t*>(request.features);
  for (size_t i = 0; i < layout.group_count(); ++i) {
    const FeatureGroup group = layout.group(i);
    axes.bucket = find_bucket(group.bucket);
    axes.aligned = group.aligned && generic_reason == nullptr ? ForwardAligned::aligned
                                                              : ForwardAligned::generic;
    const GroupChoice choice = choose_for_group(request, axes);
    const VariantInfo& variant = *choice.variant.info;
    const int32_t bags = generated::forward_constants(variant).BAGS;
    for (int64_t first = 0; first < group.feature_count; first += kMaxGridY) {
      const int64_t count = std::min(group.feature_count - first, kMaxGridY);
      args.features = features + first * kFeatureColumns;
      Launch& launch = plan.launches.add();
      launch.kernel = kForwardKernel;
      launch.variant = choice.variant.variant;
      launch.grid[0] = static_cast<uint32_t>(ceil_div(request.batch_size, bags));
      launch.grid[1] = static_cast<uint32_t>(count);
      launch.grid[2] = 1;
      launch.set_args(args);
      if (reasons != nullptr) {
        reasons->push_back(join(variant.name, " on grid (", launch.grid[0], ", ", launch.grid[1],
                                ", 1): ", count, " features of bucket ", group.bucket, "; ",
                                describe_alignment(group, generic_reason), "; ",
                                describe_shape(request, choice)));
      }
    }
    features += group.feature_count * kFeatureColumns;
  }
  return plan;
}

}  // namespace tbe_aot
