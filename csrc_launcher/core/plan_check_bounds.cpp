#include <algorithm>

#include "core/error.h"
#include "core/kernel_lookup.h"
#include "core/kernel_table.h"
#include "core/launch_chain.h"
#include "core/launch_limits.h"
#include "core/planner.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::kCheckIndicesKernel;
using generated::kCheckOffsetsKernel;
using generated::kRepairOffsetsKernel;

// Programs per feature that check indices; more would only be smaller.
constexpr int64_t kMaxPrograms = 65535;

void check(const CheckBoundsRequest& request) {
  if (request.index_width != 32 && request.index_width != 64) {
    fail("indices have ", request.index_width, " bits, allowed are 32 and 64");
  }
  if (request.feature_count < 0 || request.lookups < 0 || request.offsets_numel < 0) {
    fail("negative size: ", request.feature_count, " features, ", request.lookups, " lookups, ",
         request.offsets_numel, " offsets");
  }
}

template <typename Args>
void add_launch(Plan& plan, int32_t kernel, const Choice& choice, int64_t grid_x, int64_t grid_y,
                const Args& args, const char* purpose, Reasons* reasons) {
  append_launch(plan, kernel, choice, grid_x, grid_y, args);
  if (reasons != nullptr) {
    reasons->push_back(
        join(choice.info->name, " on grid (", grid_x, ", ", grid_y, ", 1): ", purpose));
  }
}

void add_offset_launches(Plan& plan, const CheckBoundsRequest& request, Reasons* reasons) {
  generated::CheckOffsetsAxes check_axes{};
  check_axes.index_width = request.index_width == 32 ? generated::CheckOffsetsIndexWidth::i32
                                                     : generated::CheckOffsetsIndexWidth::i64;
  const Choice check_choice =
      choose_variant(request.arch, kCheckOffsetsKernel, generated::check_offsets_cell(check_axes));
  generated::CheckOffsetsArgs check_args{};
  check_args.offsets_out = request.offsets_out;
  check_args.report = request.report;
  check_args.offsets = request.offsets;
  check_args.offsets_numel = request.offsets_numel;
  check_args.indices_numel = request.lookups;
  const int64_t blocks =
      ceil_div(request.offsets_numel, generated::check_offsets_constants(*check_choice.info).BLOCK);
  add_launch(plan, kCheckOffsetsKernel, check_choice,
             to_int32(blocks, "the grid that checks the offsets"), 1, check_args,
             "copies the offsets and looks for bad ones", reasons);

  generated::RepairOffsetsAxes repair_axes{};
  repair_axes.index_width = request.index_width == 32 ? generated::RepairOffsetsIndexWidth::i32
                                                      : generated::RepairOffsetsIndexWidth::i64;
  const Choice repair_choice = choose_variant(request.arch, kRepairOffsetsKernel,
                                              generated::repair_offsets_cell(repair_axes));
  generated::RepairOffsetsArgs repair_args{};
  repair_args.offsets = request.offsets_out;
  repair_args.report = request.report;
  repair_args.offsets_numel = request.offsets_numel;
  repair_args.indices_numel = request.lookups;
  add_launch(plan, kRepairOffsetsKernel, repair_choice, 1, 1, repair_args,
             "repairs the copied offsets if one was bad", reasons);
}

void add_index_launches(Plan& plan, const CheckBoundsRequest& request, Reasons* reasons) {
  generated::CheckIndicesAxes axes{};
  axes.index_width = request.index_width == 32 ? generated::CheckIndicesIndexWidth::i32
                                               : generated::CheckIndicesIndexWidth::i64;
  const Choice choice =
      choose_variant(request.arch, kCheckIndicesKernel, generated::check_indices_cell(axes));
  const auto* report = static_cast<const int64_t*>(request.report);
  const auto* features = static_cast<const int64_t*>(request.features);
  generated::CheckIndicesArgs args{};
  args.indices_out = request.indices_out;
  args.invalid_count =
      request.invalid_count != nullptr ? request.invalid_count : report + kInvalidIndices;
  args.report = report;
  args.indices = request.indices;
  args.offsets = request.offsets_out;
  args.vbe_bag_offsets = request.vbe_bag_offsets;
  args.indices_numel = request.lookups;
  args.batch_size = to_int32(request.batch_size, "the number of bags per feature");
  args.vbe = request.vbe_bag_offsets != nullptr ? 1 : 0;

  // Enough programs for the mean feature; those of a longer feature walk on over its lookups.
  const int64_t block = generated::check_indices_constants(*choice.info).BLOCK;
  const int64_t blocks = std::clamp<int64_t>(
      ceil_div(ceil_div(request.lookups, request.feature_count), block), 1, kMaxPrograms);
  for (int64_t first = 0; first < request.feature_count; first += kMaxGridY) {
    args.features = features + first * kFeatureColumns;
    add_launch(plan, kCheckIndicesKernel, choice, blocks,
               std::min(request.feature_count - first, kMaxGridY), args,
               "copies the indices and replaces invalid ones", reasons);
  }
}

}  // namespace

Plan plan_check_bounds(const CheckBoundsRequest& request, Reasons* reasons) {
  check(request);
  Plan plan;
  plan.arch = request.arch;
  plan.clear.address = request.report;
  plan.clear.bytes = kReportSize * sizeof(int64_t);
  if (request.offsets_numel > 0) add_offset_launches(plan, request, reasons);
  if (request.lookups > 0 && request.feature_count > 0) add_index_launches(plan, request, reasons);
  return plan;
}

}  // namespace tbe_aot
