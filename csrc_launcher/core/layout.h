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
  // 1: rows of the weights start at multiples of 16 bytes and are padded to them. 2: so do rows of
  // the output, and of the gradient: dims, output columns and the width of the output are multiples
  // of what 16 bytes of weights hold.
  int32_t aligned;
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
  int64_t max_rows() const { return values_[5]; }  // Of the largest table that is looked up.
  size_t group_count() const { return group_count_; }
  FeatureGroup group(size_t index) const;

  // Whether rows of a 1-D output (VBE) lie at multiples of what 16 bytes of weights hold, as rows
  // of that size do, one after another.
  bool all_rows_aligned() const;

 private:
  const int64_t* values_;
  size_t group_count_;
};

}  // namespace tbe_aot
