#include "cpu/linear_lookups.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "core/error.h"
#include "cpu/parallel.h"

namespace tbe_aot::cpu {
namespace {

// Lookups per piece of work given to a thread, about.
constexpr int64_t kGrainLookups = 8192;

// Rows are summed by their global number: two features either share a table or have no row in
// common. Written so that no number in `features` makes a sum wrap around. Returns the first
// feature of each table that has rows.
std::vector<const int64_t*> check_global_rows(const char* op, std::vector<const int64_t*> features,
                                              int64_t total_rows) {
  std::sort(features.begin(), features.end(), [](const int64_t* a, const int64_t* b) {
    return std::tuple(a[kFirstGlobalRow], a[kRows], a[kFeaturePosition]) <
           std::tuple(b[kFirstGlobalRow], b[kRows], b[kFeaturePosition]);
  });
  std::vector<const int64_t*> tables;
  const int64_t* before = nullptr;
  for (const int64_t* feature : features) {
    if (feature[kRows] == 0) continue;
    const int64_t first = feature[kFirstGlobalRow];
    const bool same =
        before != nullptr &&
        std::equal(feature + kWeightOffset, feature + kOutputColumn, before + kWeightOffset) &&
        first == before[kFirstGlobalRow];
    const int64_t free = before == nullptr ? 0 : before[kFirstGlobalRow] + before[kRows];
    if (!same && (first < free || first > total_rows || feature[kRows] > total_rows - first)) {
      fail(op, ": features says that feature ", feature[kFeaturePosition], " has ", feature[kRows],
           " global rows from ", first,
           " on, expected those of another feature with the same table, or within ", free, " to ",
           total_rows - 1);
    }
    if (!same) tables.push_back(feature);
    before = feature;
  }
  return tables;
}

int64_t end_of(const int64_t* table) {
  return table[kWeightOffset] + (table[kRows] - 1) * table[kRowPitch] + table[kDim];
}

// Whether two tables have no element in common although the later one starts before the first ends:
// they may lie in each other's gaps, as columns of one matrix do. Of pitches that differ, it sees
// only gaps that repeat every common divisor of both.
bool are_interleaved(const int64_t* table, const int64_t* later) {
  const int64_t pitch =
      std::gcd(table[kRows] == 1 ? 0 : table[kRowPitch], later[kRows] == 1 ? 0 : later[kRowPitch]);
  if (pitch == 0) return false;
  const int64_t shift = (later[kWeightOffset] - table[kWeightOffset]) % pitch;
  return shift >= table[kDim] && later[kDim] <= pitch - shift;
}

// Threads update rows in parallel, each one once: tables of their own must not overlap in the
// weights. Every table lies within the weights, so that no sum wraps around.
void check_tables_apart(const char* op, std::vector<const int64_t*> tables) {
  std::sort(tables.begin(), tables.end(),
            [](const int64_t* a, const int64_t* b) { return a[kWeightOffset] < b[kWeightOffset]; });
  for (size_t i = 0; i < tables.size(); ++i) {
    const int64_t* table = tables[i];
    for (size_t j = i + 1; j < tables.size() && tables[j][kWeightOffset] < end_of(table); ++j) {
      const int64_t* later = tables[j];
      if (are_interleaved(table, later)) continue;
      const auto [a, b] = std::minmax(table[kFeaturePosition], later[kFeaturePosition]);
      fail(op, ": features says that rows of feature ", a, " and of feature ", b,
           " overlap in the weights, expected one table or no element in common");
    }
  }
}

template <typename Index>
LinearLookups linearise_as(const char* op, const LookupArguments& in, const Layout& layout,
                           int64_t gradient_numel, const float* sample_weights, bool mean) {
  Lookups<Index> lookups(op, in, layout, gradient_numel);
  check_tables_apart(op, check_global_rows(op, lookups.features(), layout.total_rows()));
  LinearLookups linear;
  linear.rows.assign(static_cast<size_t>(in.lookups), -1);
  linear.uses.resize(static_cast<size_t>(in.lookups));
  auto read = [&](const Bag& bag) {
    const float length = mean ? static_cast<float>(bag.end - bag.start) : 1.0f;
    for (int64_t i = bag.start; i < bag.end; ++i) {
      const int64_t index = lookups.indices()[i];
      if (index < -1 || index >= bag.feature[kRows]) return false;
      const auto at = static_cast<size_t>(i);
      const float weight = sample_weights == nullptr ? 1.0f : sample_weights[i];
      linear.uses[at] = {bag.feature, bag.output, weight / length};
      if (index >= 0) linear.rows[at] = bag.feature[kFirstGlobalRow] + index;
    }
    return true;
  };
  const int64_t bag_lookups = in.total_bags == 0 ? 1 : in.lookups / in.total_bags + 1;
  parallel_for(0, in.total_bags, std::max<int64_t>(1, kGrainLookups / bag_lookups),
               [&](int64_t first, int64_t end) {
                 for (int64_t number = first; number < end; ++number) {
                   const Bag bag = lookups.bag(number);
                   if (!lookups.is_within(bag) || !read(bag)) lookups.refuse(number);
                 }
               });
  lookups.expect_none_refused();
  return linear;
}

// Stable: least significant digit first.
void sort_by_row(const std::vector<int64_t>& rows, std::vector<int64_t>& positions) {
  constexpr int kDigitBits = 8;
  constexpr size_t kDigits = size_t{1} << kDigitBits;
  int64_t largest = 0;
  for (int64_t position : positions) {
    largest = std::max(largest, rows[static_cast<size_t>(position)]);
  }
  std::vector<int64_t> sorted(positions.size());
  for (int shift = 0; shift < 63 && (largest >> shift) != 0; shift += kDigitBits) {
    auto digit = [&](int64_t position) {
      const int64_t row = rows[static_cast<size_t>(position)];
      return static_cast<size_t>(row >> shift) & (kDigits - 1);
    };
    std::array<size_t, kDigits + 1> starts{};
    for (int64_t position : positions) ++starts[digit(position) + 1];
    for (size_t d = 0; d < kDigits; ++d) starts[d + 1] += starts[d];
    for (int64_t position : positions) sorted[starts[digit(position)]++] = position;
    positions.swap(sorted);
  }
}

}  // namespace

LinearLookups linearise(const char* op, const LookupArguments& in, const Layout& layout,
                        int64_t gradient_numel, const float* sample_weights, bool mean) {
  return in.index_width == 32
             ? linearise_as<int32_t>(op, in, layout, gradient_numel, sample_weights, mean)
             : linearise_as<int64_t>(op, in, layout, gradient_numel, sample_weights, mean);
}

Runs find_runs(const LinearLookups& lookups) {
  Runs runs;
  for (size_t i = 0; i < lookups.rows.size(); ++i) {
    if (lookups.rows[i] >= 0) runs.positions.push_back(static_cast<int64_t>(i));
  }
  sort_by_row(lookups.rows, runs.positions);
  for (size_t i = 0; i < runs.positions.size(); ++i) {
    if (i == 0 || lookups.rows[static_cast<size_t>(runs.positions[i])] !=
                      lookups.rows[static_cast<size_t>(runs.positions[i - 1])]) {
      runs.starts.push_back(static_cast<int64_t>(i));
    }
  }
  runs.starts.push_back(static_cast<int64_t>(runs.positions.size()));
  return runs;
}

}  // namespace tbe_aot::cpu
