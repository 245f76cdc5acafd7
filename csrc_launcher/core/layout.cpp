#include "core/layout.h"

#include <cstdint>
#include <limits>

#include "core/error.h"

namespace tbe_aot {
namespace {

constexpr size_t kHeaderSize = 6;
constexpr size_t kGroupSize = 3;

}  // namespace

Layout::Layout(const int64_t* values, size_t count) : values_(values), group_count_(0) {
  if (count < kHeaderSize || (count - kHeaderSize) % kGroupSize != 0) {
    fail("layout: ", count, " integers given; it has ", kHeaderSize, " and ", kGroupSize,
         " more for each group of features");
  }
  if (values[0] != kFormatVersion) {
    fail("layout: format version ", values[0], " given, this library reads version ",
         kFormatVersion);
  }
  for (size_t i = 1; i < kHeaderSize; ++i) {
    if (values[i] < 0) fail("layout: entry ", i, " is negative: ", values[i]);
  }
  group_count_ = (count - kHeaderSize) / kGroupSize;
  int64_t features = 0;
  for (size_t i = 0; i < group_count_; ++i) {
    const int64_t* entry = values + kHeaderSize + i * kGroupSize;
    if (entry[0] < 1 || entry[0] > std::numeric_limits<int32_t>::max()) {
      fail("layout: group ", i, " has bucket ", entry[0]);
    }
    if (entry[1] < 0 || entry[1] > 2) {
      fail("layout: group ", i, " has aligned = ", entry[1], ", allowed are 0, 1 and 2");
    }
    if (entry[2] < 0 || entry[2] > feature_count() - features) {
      fail("layout: group ", i, " has ", entry[2], " features, but ", feature_count() - features,
           " of ", feature_count(), " are left");
    }
    features += entry[2];
  }
  if (features != feature_count()) {
    fail("layout: the groups hold ", features, " features, the layout says ", feature_count());
  }
}

FeatureGroup Layout::group(size_t index) const {
  const int64_t* entry = values_ + kHeaderSize + index * kGroupSize;
  return {static_cast<int32_t>(entry[0]), static_cast<int32_t>(entry[1]), entry[2]};
}

bool Layout::all_rows_aligned() const {
  for (size_t i = 0; i < group_count_; ++i) {
    if (group(i).aligned < 2) return false;
  }
  return true;
}

}  // namespace tbe_aot
