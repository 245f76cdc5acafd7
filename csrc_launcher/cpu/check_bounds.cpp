#include "cpu/check_bounds.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "core/layout.h"
#include "cpu/bags.h"
#include "cpu/parallel.h"

namespace tbe_aot::cpu {
namespace {

constexpr int64_t kGrainLookups = 32768;

// Copies the offsets; repairs the copy if any entry is bad.
template <typename Index>
void check_offsets(const CheckBoundsRequest& request) {
  const auto* offsets = static_cast<const Index*>(request.offsets);
  auto* checked = static_cast<Index*>(request.offsets_out);
  auto* report = static_cast<int64_t*>(request.report);
  const int64_t count = request.offsets_numel;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = offsets[i];
    const bool bad = value < 0 || value > request.lookups || (i > 0 && value < offsets[i - 1]) ||
                     (i == count - 1 && value != request.lookups);
    if (bad && report[kBadOffsets]++ == 0) report[kFirstBadOffset] = count - i;
    checked[i] = offsets[i];
  }
  if (report[kBadOffsets] == 0) return;
  int64_t reached = 0;
  for (int64_t i = 0; i < count; ++i) {
    reached = std::max(reached, std::min<int64_t>(offsets[i], request.lookups));
    checked[i] = static_cast<Index>(reached);
  }
  checked[count - 1] = static_cast<Index>(request.lookups);
}

template <typename Index>
void check_indices(const char* op, const CheckBoundsRequest& request) {
  const auto* indices = static_cast<const Index*>(request.indices);
  const auto* offsets = static_cast<const Index*>(request.offsets_out);
  auto* checked = static_cast<Index*>(request.indices_out);
  auto* report = static_cast<int64_t*>(request.report);
  const Bags bags(op, request.feature_count, request.batch_size, request.offsets_numel - 1,
                  static_cast<const int64_t*>(request.vbe_bag_offsets));
  // Lookups before the first offset belong to no bag.
  std::copy_n(indices, offsets[0], checked);
  std::atomic<int64_t> invalid{0};
  std::atomic<int64_t> first{0};  // lookups - position of the first invalid index.
  for (const int64_t* feature : features_by_position(
           op, static_cast<const int64_t*>(request.features), request.feature_count)) {
    const int64_t rows = feature[kRows];
    const Index replacement = rows > 0 ? 0 : -1;
    const BagRange range = bags.of_feature(feature[kFeaturePosition]);
    parallel_for(offsets[range.first], offsets[range.end], kGrainLookups,
                 [&](int64_t begin, int64_t end) {
                   int64_t invalid_here = 0;
                   int64_t first_here = 0;
                   for (int64_t i = begin; i < end; ++i) {
                     const bool bad = indices[i] < -1 || indices[i] >= rows;
                     checked[i] = bad ? replacement : indices[i];
                     invalid_here += bad;
                     if (bad) first_here = std::max(first_here, request.lookups - i);
                   }
                   invalid += invalid_here;
                   int64_t known = first.load();
                   while (first_here > known && !first.compare_exchange_weak(known, first_here)) {
                   }
                 });
  }
  report[kFirstInvalidIndex] = first.load();
  report[kInvalidIndices] = invalid.load();
}

}  // namespace

void check_bounds(const char* op, const CheckBoundsRequest& request) {
  std::fill_n(static_cast<int64_t*>(request.report), kReportSize, 0);
  if (request.index_width == 32) {
    check_offsets<int32_t>(request);
    check_indices<int32_t>(op, request);
  } else {
    check_offsets<int64_t>(request);
    check_indices<int64_t>(op, request);
  }
  if (request.invalid_count != nullptr) add_invalid_indices(request, request.invalid_count);
}

void add_invalid_indices(const CheckBoundsRequest& checked, void* counter) {
  // Calls on several threads may share the counter; C++17 has no atomic access to a plain integer.
  __atomic_fetch_add(static_cast<int64_t*>(counter),
                     static_cast<const int64_t*>(checked.report)[kInvalidIndices],
                     __ATOMIC_RELAXED);
}

}  // namespace tbe_aot::cpu
