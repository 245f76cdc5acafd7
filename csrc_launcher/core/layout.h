// The host's half of the table metadata: a short list of integers that says how many features there
// are, how much memory they need and how they are grouped for launching.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tbe_aot {

// Integers per row of the `features` tensor, and the meaning of each column.
inline constexpr int32_t kFeatureColumns = 8;
enum FeatureColumn : int32_t {
  kFeaturePosition = 0,  // Position in the caller's order: of its offsets and of its output.
  kWeightOffset = 1,     // First element of the table in the weights.
  kRowPitch = 2,         // Elements between the starts of two rows.
  kDim = 3,
  kRows = 4,
  kOutputColumn = 5,
  kTable = 6,
  kFirstGlobalRow = 7,
};

// Consecutive rows of the `features` tensor that one launch serves.
struct FeatureGroup {
  int32_t bucket;
  bool aligned;
  int64_t feature_count;
};

// A checked view of the `layout` argument of the operators:
//   [1, T, output_width, weights_numel, total_rows, max_rows] then (bucket, aligned, features) per
//   group.
// Does not own the integers.
class Layout {
 public:
  static constexpr int64_t kFormatVersion = 1;

  // Throws Error when the integers are not a layout of this format version.
  Layout(const int64_t* values, size_t count);

  int64_t feature_count() const { return values_[1]; }
  int64_t output_width() const { return values_[2]; }   // Sum of the features' dims.
  int64_t weights_numel() const { return values_[3]; }  // The weights must have at least as many.
  int64_t total_rows() const { return values_[4]; }
  int64_t max_rows() const { return values_[5]; }  // Rows of the largest table.
  size_t group_count() const { return group_count_; }
  FeatureGroup group(size_t index) const;

 private:
  const int64_t* values_;
  size_t group_count_;
};

}  // namespace tbe_aot
