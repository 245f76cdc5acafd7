#include "cpu/transposed.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace tbe_aot::cpu {
namespace {

// Numbers of lookups in the order of their rows, then of the lookups. Least significant digit
// first.
std::vector<int64_t> sort_by_row(const std::vector<int64_t>& rows) {
  constexpr int kDigitBits = 8;
  constexpr size_t kDigits = size_t{1} << kDigitBits;
  std::vector<int64_t> order(rows.size());
  int64_t largest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    order[i] = static_cast<int64_t>(i);
    largest = std::max(largest, rows[i]);
  }
  std::vector<int64_t> sorted(rows.size());
  for (int shift = 0; shift < 63 && (largest >> shift) != 0; shift += kDigitBits) {
    auto digit = [&](int64_t lookup) {
      return static_cast<size_t>(rows[static_cast<size_t>(lookup)] >> shift) & (kDigits - 1);
    };
    std::array<size_t, kDigits + 1> starts{};
    for (const int64_t lookup : order) ++starts[digit(lookup) + 1];
    for (size_t d = 0; d < kDigits; ++d) starts[d + 1] += starts[d];
    for (const int64_t lookup : order) sorted[starts[digit(lookup)]++] = lookup;
    order.swap(sorted);
  }
  return order;
}

// The runs that are written, one after the other.
class Writer {
 public:
  Writer(const int64_t* features, const Layout& layout, const TransposedFormat& format,
         int32_t* words)
      : features_(features),
        total_rows_(layout.total_rows()),
        feature_count_(layout.feature_count()),
        run_rows_(reinterpret_cast<int64_t*>(words + format.run_rows)),
        run_starts_(words + format.run_starts),
        run_slots_(words + format.run_slots),
        run_begins_(words + format.run_begins),
        chunk_starts_(words + format.chunk_starts),
        chunk_runs_(words + format.chunk_runs) {
    std::fill_n(chunk_starts_, format.chunks, -1);
    std::fill_n(chunk_runs_, format.chunks, -1);
  }

  // The run of `row`, which is not before those added so far: sorted lookups start .. end.
  void add(int64_t row, int64_t start, int64_t end) {
    while (slot_ < feature_count_ && first_row(slot_ + 1) <= row) run_begins_[++slot_] = count_;
    run_rows_[count_] = row;
    run_starts_[count_] = static_cast<int32_t>(start);
    run_slots_[count_] = slot_;
    const bool pruned = row == total_rows_;
    for (int64_t chunk = start; chunk + kChunk <= end && !pruned; chunk += kChunk) {
      chunk_starts_[chunk / kChunk] = static_cast<int32_t>(chunk);
      chunk_runs_[chunk / kChunk] = count_;
    }
    ++count_;
  }

  void finish(int64_t lookups) {
    while (slot_ < feature_count_) run_begins_[++slot_] = count_;
    run_starts_[count_] = static_cast<int32_t>(lookups);
    run_begins_[0] = 0;
  }

 private:
  // Pruned lookups are those of one more slot.
  int64_t first_row(int32_t slot) const {
    return slot < feature_count_ ? features_[slot * kFeatureColumns + kFirstGlobalRow]
                                 : total_rows_;
  }

  const int64_t* features_;
  int64_t total_rows_;
  int64_t feature_count_;
  int64_t* run_rows_;
  int32_t* run_starts_;
  int32_t* run_slots_;
  int32_t* run_begins_;
  int32_t* chunk_starts_;
  int32_t* chunk_runs_;
  int32_t count_ = 0;
  int32_t slot_ = 0;
};

}  // namespace

Transposed::Transposed(const int32_t* words, int64_t lookup_count, int64_t feature_number,
                       bool factored)
    : lookups(lookup_count), feature_count(feature_number) {
  const TransposedFormat format = transposed_format(lookups, feature_count, factored);
  run_rows = reinterpret_cast<const int64_t*>(words + format.run_rows);
  positions = reinterpret_cast<const uint32_t*>(words + format.positions);
  run_starts = words + format.run_starts;
  run_slots = words + format.run_slots;
  run_begins = words + format.run_begins;
  factors = factored ? reinterpret_cast<const float*>(words + format.factors) : nullptr;
}

void transpose(const LinearLookups& lookups, const int64_t* features, const Layout& layout,
               bool factored, int32_t* words) {
  const auto count = static_cast<int64_t>(lookups.rows.size());
  const TransposedFormat format = transposed_format(count, layout.feature_count(), factored);
  // What is unspecified, too: equal lookups give equal words.
  std::fill_n(words, format.numel, 0);
  std::vector<int64_t> rows = lookups.rows;
  std::replace(rows.begin(), rows.end(), int64_t{-1}, layout.total_rows());
  const std::vector<int64_t> order = sort_by_row(rows);
  for (int64_t i = 0; i < count; ++i) {
    const Use& use = lookups.uses[static_cast<size_t>(order[static_cast<size_t>(i)])];
    words[format.positions + i] = static_cast<int32_t>(static_cast<uint32_t>(use.gradient));
    if (factored) std::memcpy(words + format.factors + i, &use.factor, sizeof(use.factor));
  }
  Writer writer(features, layout, format, words);
  const auto row_of = [&](int64_t i) {
    return rows[static_cast<size_t>(order[static_cast<size_t>(i)])];
  };
  for (int64_t start = 0; start < count;) {
    int64_t end = start + 1;
    while (end < count && row_of(end) == row_of(start)) ++end;
    writer.add(row_of(start), start, end);
    start = end;
  }
  writer.finish(count);
}

void check_transposed(const char* op, const Transposed& given, const int64_t* features,
                      int64_t gradient_numel) {
  const auto refuse = [op](auto... what) {
    fail(op, ": transposed is not what transpose_indices returned for these arguments: ", what...);
  };
  const int64_t slots = given.feature_count;
  const int64_t runs = given.run_count();
  if (given.run_begins[0] != 0 || runs > given.lookups ||
      !std::is_sorted(given.run_begins, given.run_begins + slots + 1)) {
    refuse("it has ", runs, " runs of ", given.lookups, " lookups");
  }
  if (given.run_starts[0] != 0) refuse("run 0 starts at lookup ", given.run_starts[0]);
  int64_t free_row = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t* feature = features + slot * kFeatureColumns;
    for (int64_t run = given.run_begins[slot]; run < given.run_begins[slot + 1]; ++run) {
      const int64_t row = given.run_rows[run];
      const int64_t start = given.run_starts[run];
      const int64_t end = given.run_starts[run + 1];
      if (given.run_slots[run] != slot || row < free_row || row < feature[kFirstGlobalRow] ||
          row - feature[kFirstGlobalRow] >= feature[kRows] || end <= start || end > given.lookups) {
        refuse("run ", run, " is of global row ", row, " in slot ", given.run_slots[run],
               ", lookups ", start, " to ", end);
      }
      free_row = row + 1;
      for (int64_t i = start; i < end; ++i) {
        if (given.positions[i] > gradient_numel - feature[kDim]) {
          refuse("lookup ", i, " has the gradient from element ", given.positions[i], " of ",
                 gradient_numel, " on");
        }
      }
    }
  }
}

}  // namespace tbe_aot::cpu
