#include <algorithm>

#include "core/check_launches.h"
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

}  // namespace

void add_offset_checks(Plan& plan, LaunchChain& chain, const CheckBoundsRequest& request) {
  check(request);
  plan.clear.address = request.report;
  plan.clear.bytes = kReportSize * sizeof(int64_t);
  if (request.offsets_numel == 0) return;
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
  chain.add(kCheckOffsetsKernel, check_choice, to_int32(blocks, "the grid that checks the offsets"),
            1, check_args);
  chain.explain("copies the offsets and looks for bad ones");

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
  chain.add(kRepairOffsetsKernel, repair_choice, 1, 1, repair_args, /*waits_first=*/true);
  chain.explain("repairs the copied offsets if one was bad");
}

const void* invalid_count_of(const CheckBoundsRequest& request) {
  if (request.invalid_count != nullptr) return request.invalid_count;
  return static_cast<const int64_t*>(request.report) + kInvalidIndices;
}

void add_index_checks(LaunchChain& chain, const CheckBoundsRequest& request, const char* why) {
  if (request.lookups == 0 || request.feature_count == 0) return;
  generated::CheckIndicesAxes axes{};
  axes.index_width = request.index_width == 32 ? generated::CheckIndicesIndexWidth::i32
                                               : generated::CheckIndicesIndexWidth::i64;
  const Choice choice =
      choose_variant(request.arch, kCheckIndicesKernel, generated::check_indices_cell(axes));
  const auto* features = static_cast<const int64_t*>(request.features);
  generated::CheckIndicesArgs args{};
  args.indices_out = request.indices_out;
  args.invalid_count = invalid_count_of(request);
  args.report = request.report;
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
    chain.add(kCheckIndicesKernel, choice, blocks,
              std::min(request.feature_count - first, kMaxGridY), args, /*waits_first=*/true);
    chain.explain("copies the indices and replaces invalid ones",
                  why == nullptr ? "" : "; not in the lookup because ", why == nullptr ? "" : why);
  }
}

Plan plan_check_bounds(const CheckBoundsRequest& request, Reasons* reasons) {
  Plan plan;
  plan.arch = request.arch;
  LaunchChain chain(plan, reasons);
  add_offset_checks(plan, chain, request);
  add_index_checks(chain, request);
  return plan;
}

}  // namespace tbe_aot
