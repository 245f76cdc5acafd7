// Appending launches to a plan, and letting one overlap with the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/kernel_lookup.h"
#include "core/plan.h"
#include "core/planner.h"

namespace tbe_aot {

// Bits of the kernels' argument `overlap`; kernel_specs/common/overlap.py says what they do.
inline constexpr int32_t kNextMayStart = 1;
inline constexpr int32_t kWaitLast = 2;
inline constexpr int32_t kWaitFirst = 4;

// Adds a launch that does not overlap with the one before it.
template <typename Args>
Launch& append_launch(Plan& plan, int32_t kernel, const Choice& choice, int64_t grid_x,
                      int64_t grid_y, const Args& args) {
  Launch& launch = plan.launches.add();
  launch.kernel = kernel;
  launch.variant = choice.variant;
  launch.grid[0] = static_cast<uint32_t>(grid_x);
  launch.grid[1] = static_cast<uint32_t>(grid_y);
  launch.grid[2] = 1;
  launch.set_args(args);
  return launch;
}

// Launches each of which may start while the one before it still runs. The first one starts when
// what the plan had before has ended.
class LaunchChain {
 public:
  // Both outlive the chain; `reasons` may be null.
  LaunchChain(Plan& plan, Reasons* reasons) : plan_(plan), reasons_(reasons) {}

  // Adds a launch; sets `args.overlap`. `waits_first`: it reads what a launch of the chain writes,
  // be it an earlier one than the last. Those that do not may run side by side.
  template <typename Args>
  void add(int32_t kernel, const Choice& choice, int64_t grid_x, int64_t grid_y, Args args,
           bool waits_first = false) {
    const bool is_first = variant_ == nullptr;
    if (!is_first) let_next_start();
    args.overlap = is_first ? 0 : waits_first ? kWaitFirst : kWaitLast;
    append_launch(plan_, kernel, choice, grid_x, grid_y, args).overlaps_previous = !is_first;
    overlap_offset_ = offsetof(Args, overlap);
    variant_ = choice.info;
  }

  // Whether someone wants to know why.
  bool explains() const { return reasons_ != nullptr; }

  // Says why the last launch is what it is.
  template <typename... Parts>
  void explain(const Parts&... parts) {
    if (reasons_ == nullptr) return;
    const Launch& launch = plan_.launches.back();
    reasons_->push_back(join(variant_->name, " on grid (", launch.grid[0], ", ", launch.grid[1],
                             ", 1): ", parts...));
  }

 private:
  void let_next_start() {
    unsigned char* overlap = plan_.launches.back().args + overlap_offset_;
    int32_t bits = 0;
    std::memcpy(&bits, overlap, sizeof(bits));
    bits |= kNextMayStart;
    std::memcpy(overlap, &bits, sizeof(bits));
  }

  Plan& plan_;
  Reasons* reasons_;
  size_t overlap_offset_ = 0;             // In the arguments of the last launch.
  const VariantInfo* variant_ = nullptr;  // Of the last launch; null before the first.
};

}  // namespace tbe_aot
