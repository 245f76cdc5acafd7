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

// Bits of the kernel's argument `overlap`.
constexpr int32_t kNextMayStart = 1;
constexpr int32_t kOverlapsPrevious = 2;

constexpr int32_t kShapeAxis = 5;  // In ForwardAxes.

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

// From the shortest bags to the longest; the last one serves what no other does.
constexpr ForwardShape kShapes[] = {ForwardShape::short_, ForwardShape::medium,
                                    ForwardShape::long_};

// The variant that serves a group, and what decided between its shapes.
struct GroupChoice {
  Choice variant;
  ForwardShape shape;
  int32_t mean_length_below;  // Of the shape; of the longest shape: where the others end.
};

GroupChoice choose_for_group(const ForwardRequest& request, ForwardAxes axes) {
  int32_t others_end = 0;
  for (const ForwardShape shape : kShapes) {
    axes.shape = shape;
    const Choice variant =
        choose_variant(request.arch, kForwardKernel, generated::forward_cell(axes));
    if (shape == ForwardShape::long_) return {variant, shape, others_end};
    const int32_t below = generated::forward_constants(*variant.info).MEAN_LENGTH_BELOW;
    if (request.lookups < below * request.total_bags) return {variant, shape, below};
    others_end = std::max(others_end, below);
  }
  fail("no shape serves every bag length");
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
  if (choice.mean_length_below == 0) return "one shape serves this bucket";
  const double mean_length =
      static_cast<double>(request.lookups) / static_cast<double>(request.total_bags);
  const AxisInfo& axis = kBuild.kernels[kForwardKernel].axes[kShapeAxis];
  const char* label = axis.labels[static_cast<int32_t>(choice.shape)];
  return join(label, " shape because bags have ", mean_length, " lookups on average and ",
              choice.shape == ForwardShape::long_ ? "the others serve" : "it serves", " less than ",
              choice.mean_length_below);
}

// Launches of all groups: one for as many features as a grid can hold.
int64_t count_launches(const Layout& layout) {
  int64_t count = 0;
  for (size_t i = 0; i < layout.group_count(); ++i) {
    count += ceil_div(layout.group(i).feature_count, kMaxGridY);
  }
  return count;
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

  // The widest rows first: they take longest, and narrower ones fill the device beside their end.
  const int64_t launch_count = count_launches(layout);
  const auto* features =
      static_cast<const int64_t*>(request.features) + layout.feature_count() * kFeatureColumns;
  for (size_t i = layout.group_count(); i-- > 0;) {
    const FeatureGroup group = layout.group(i);
    features -= group.feature_count * kFeatureColumns;
    axes.bucket = find_bucket(group.bucket);
    axes.aligned = group.aligned && generic_reason == nullptr ? ForwardAligned::aligned
                                                              : ForwardAligned::generic;
    const GroupChoice choice = choose_for_group(request, axes);
    const VariantInfo& variant = *choice.variant.info;
    const int32_t bags = generated::forward_constants(variant).BAGS;
    for (int64_t first = 0; first < group.feature_count; first += kMaxGridY) {
      const int64_t count = std::min(group.feature_count - first, kMaxGridY);
      const auto number = static_cast<int64_t>(plan.launches.size());
      const bool is_first = number == 0;
      const bool is_last = number + 1 == launch_count;
      args.features = features + first * kFeatureColumns;
      args.overlap = (is_last ? 0 : kNextMayStart) | (is_first ? 0 : kOverlapsPrevious);
      Launch& launch = plan.launches.add();
      launch.kernel = kForwardKernel;
      launch.variant = choice.variant.variant;
      launch.overlaps_previous = !is_first;
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
  }
  return plan;
}

}  // namespace tbe_aot
