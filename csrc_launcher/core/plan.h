// What the planner hands to the launcher: which variants run on which grid with which arguments.
// A plan has no heap memory unless it has more launches than fit inline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace tbe_aot {

// One kernel launch. Block size and shared memory belong to the variant (VariantInfo).
// Left uninitialised on purpose: a plan holds many, most of them unused.
struct Launch {
  static constexpr size_t kMaxArgsSize = 256;

  int32_t kernel;          // Index in kBuild.kernels.
  int32_t variant;         // Index in that kernel's variants.
  bool overlaps_previous;  // May start before the launch before it has ended.
  uint32_t grid[3];
  uint32_t args_size;
  alignas(8) unsigned char args[kMaxArgsSize];  // The kernel's generated argument struct.

  template <typename Args>
  void set_args(const Args& value) {
    static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMaxArgsSize);
    args_size = sizeof(Args);
    std::memcpy(args, &value, sizeof(Args));
  }
};

// A list that only grows; the first launches are stored inline.
class LaunchList {
 public:
  static constexpr size_t kInlineCapacity = 16;

  LaunchList() {}  // Not "= default": value-initialisation would then clear the inline storage.

  Launch& add() {
    Launch& slot = size_ < kInlineCapacity ? inline_[size_] : overflow_.emplace_back();
    ++size_;
    slot.overlaps_previous = false;
    return slot;
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const Launch& operator[](size_t index) const {
    return index < kInlineCapacity ? inline_[index] : overflow_[index - kInlineCapacity];
  }
  // The launch added last; there is one.
  Launch& back() { return size_ <= kInlineCapacity ? inline_[size_ - 1] : overflow_.back(); }

 private:
  size_t size_ = 0;
  std::array<Launch, kInlineCapacity> inline_;
  std::vector<Launch> overflow_;
};

// Device memory that is set to zero before the first launch.
struct Clear {
  const void* address = nullptr;
  size_t bytes = 0;  // A multiple of 4; 0 = nothing to clear.
};

struct Plan {
  int32_t arch = 0;  // Index in kBuild.archs; variants and tuning constants are that arch's.
  Clear clear;
  LaunchList launches;
};

}  // namespace tbe_aot
