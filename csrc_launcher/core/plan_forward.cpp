#include <algorithm>
#include <string>

#include "core/axis_values.h"
#include "core/check_launches.h"
#include "core/error.h"
#include "core/kernel_lookup.h"
#include "core/kernel_table.h"
#include "core/launch_chain.h"
#include "core/launch_limits.h"
#include "core/planner.h"
#include "core/small_tables.h"
#include "core/work_stealing.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::ForwardAligned;
using generated::ForwardAxes;
using generated::ForwardBucket;
using generated::ForwardChecked;
using generated::ForwardIndexWidth;
using generated::ForwardShape;
using generated::ForwardWeightDtype;
using generated::ForwardWeighted;
using generated::kForwardKernel;

constexpr int32_t kShapeAxis = 5;  // In ForwardAxes.

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

// Short bags are the only ones that variants with a check have.
GroupChoice choose_checked(const ForwardRequest& request, ForwardAxes axes) {
  axes.shape = ForwardShape::short_;
  axes.checked = ForwardChecked::checked;
  const Choice variant =
      choose_variant(request.arch, kForwardKernel, generated::forward_cell(axes));
  return {variant, axes.shape, generated::forward_constants(*variant.info).MEAN_LENGTH_BELOW};
}

ForwardAxes axes_of_call(const ForwardRequest& request) {
  ForwardAxes axes{};
  axes.weight_dtype = dtype_axis<ForwardWeightDtype>(request.weight_dtype, "weight");
  axes.index_width = index_width_axis<ForwardIndexWidth>(request.index_width);
  axes.weighted = request.per_sample_weights != nullptr ? ForwardWeighted::weighted
                                                        : ForwardWeighted::unweighted;
  return axes;
}

// Of a call that has `generic_reason`.
void set_group(ForwardAxes& axes, const FeatureGroup& group, const char* generic_reason) {
  axes.bucket = bucket_axis<ForwardBucket>(group.bucket, generated::kForwardBucketValues);
  axes.aligned = group.aligned != 0 && generic_reason == nullptr ? ForwardAligned::aligned
                                                                 : ForwardAligned::generic;
}

// Why a kernel of its own checks the indices of a call; null when those that look up do.
const char* why_checks_are_separate(const ForwardRequest& request, const Layout& layout) {
  if (request.fused_checks == FusedChecks::kNever) return "fused_checks is never";
  if (why_not_small_table(request, layout) == nullptr) return nullptr;
  if (request.per_sample_weights != nullptr) return "there are per-sample weights";
  const char* generic_reason = why_all_generic(request);
  if (generic_reason != nullptr) return generic_reason;
  ForwardAxes axes = axes_of_call(request);
  for (size_t i = 0; i < layout.group_count(); ++i) {
    const FeatureGroup group = layout.group(i);
    if (group.aligned == 0) return "rows of a table do not start at multiples of 16 bytes";
    set_group(axes, group, nullptr);
    axes.shape = ForwardShape::short_;
    axes.checked = ForwardChecked::checked;
    if (!has_variant(kForwardKernel, generated::forward_cell(axes))) {
      return "rows of a table are too wide for several bags in a program";
    }
    axes.checked = ForwardChecked::trusting;
    if (request.fused_checks == FusedChecks::kAuto &&
        why_not_work_stealing(request, group, /*aligned=*/true) == nullptr) {
      return "the kernel that steals work does not check them";
    }
    if (request.fused_checks == FusedChecks::kAuto &&
        choose_for_group(request, axes).shape != ForwardShape::short_) {
      return "bags are too long on average";
    }
  }
  return nullptr;
}

std::string describe_alignment(const FeatureGroup& group, const char* generic_reason) {
  if (group.aligned == 0)
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

std::string describe_check(const ForwardRequest& request, const GroupChoice& choice) {
  const bool is_forced = request.lookups >= choice.mean_length_below * request.total_bags;
  return is_forced ? "short shape, which checks the indices, because fused_checks is always"
                   : join(describe_shape(request, choice), "; checks the indices");
}

}  // namespace

bool fuses_checks(const ForwardRequest& request, const Layout& layout) {
  return why_checks_are_separate(request, layout) == nullptr;
}

Plan plan_forward(const ForwardRequest& given, const Layout& layout, Reasons* reasons) {
  check(given);
  ForwardRequest request = given;
  Plan plan;
  plan.arch = request.arch;
  LaunchChain checks(plan, reasons);
  bool fused = false;
  if (request.check != nullptr) {
    const char* why_separate = why_checks_are_separate(request, layout);
    fused = why_separate == nullptr;
    add_offset_checks(plan, checks, *request.check);
    // Without bags no index belongs to any.
    if (!fused && request.total_bags > 0) add_index_checks(checks, *request.check, why_separate);
    request.indices = fused ? request.check->indices : request.check->indices_out;
    request.offsets = request.check->offsets_out;
  }
  if (request.total_bags == 0 || request.batch_size == 0) {
    if (reasons != nullptr) reasons->push_back("nothing to look up: there are no bags");
    return plan;
  }

  const bool vbe = request.vbe_bag_offsets != nullptr;
  const char* generic_reason = why_all_generic(request);
  const char* why_not_small = why_not_small_table(request, layout);
  if (why_not_small == nullptr) {
    add_small_table_launch(checks, request, layout);
    return plan;
  }
  ForwardAxes axes = axes_of_call(request);

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
  if (fused) {
    args.invalid_count = invalid_count_of(*request.check);
    args.report = request.check->report;
    args.indices_numel = request.lookups;
  }

  // One launch may start early behind the check of the offsets. Of several, each would have to wait
  // for the one before: they overlap with one another instead.
  const bool follows_checks =
      fused && layout.group_count() == 1 && layout.feature_count() <= kMaxGridY;
  LaunchChain own(plan, reasons);
  LaunchChain& chain = follows_checks ? checks : own;
  // The widest rows first: they take longest, and narrower ones fill the device beside their end.
  const auto* features =
      static_cast<const int64_t*>(request.features) + layout.feature_count() * kFeatureColumns;
  for (size_t i = layout.group_count(); i-- > 0;) {
    const FeatureGroup group = layout.group(i);
    features -= group.feature_count * kFeatureColumns;
    set_group(axes, group, generic_reason);
    const GroupChoice choice =
        fused ? choose_checked(request, axes) : choose_for_group(request, axes);
    const char* why_not_stealing =
        fused ? "the lookup checks the indices"
              : why_not_work_stealing(request, group, axes.aligned == ForwardAligned::aligned);
    const VariantInfo& variant = *choice.variant.info;
    const int32_t bags = generated::forward_constants(variant).BAGS;
    for (int64_t first = 0; first < group.feature_count; first += kMaxGridY) {
      const int64_t count = std::min(group.feature_count - first, kMaxGridY);
      args.features = features + first * kFeatureColumns;
      if (why_not_stealing == nullptr) {
        add_work_stealing_launch(chain, request, group, count, args);
        continue;
      }
      chain.add(kForwardKernel, choice.variant, ceil_div(request.batch_size, bags), count, args,
                /*waits_first=*/follows_checks);
      if (chain.explains()) {
        chain.explain(
            count, " features of bucket ", group.bucket, "; ",
            describe_alignment(group, generic_reason), "; ",
            fused ? describe_check(request, choice) : describe_shape(request, choice),
            tells_of_small_tables(request.small_tables, layout)
                ? join("; not the small table's kernel because ", why_not_small)
                : "",
            request.work_stealing ? join("; no work stealing because ", why_not_stealing) : "");
      }
    }
  }
  return plan;
}

}  // namespace tbe_aot
