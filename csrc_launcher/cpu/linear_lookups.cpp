#include "cpu/linear_lookups.h"

#include <algorithm>
#include <numeric>

#include "core/axis_values.h"
#include "core/error.h"
#include "cpu/parallel.h"

namespace tbe_aot::cpu {
namespace {

// Lookups per piece of work given to a thread, about.
constexpr int64_t kGrainLookups = 8192;

// Rows are summed by their global number, and which feature a row belongs to is found by it: from
// slot to slot (row of the features tensor) it rises, but for features that share a table, side by
// side. Written so that no number in `features` makes a sum wrap around. Returns the first feature
// of each table that has rows.
std::vector<const int64_t*> check_global_rows(const char* op, const int64_t* features,
                                              const Layout& layout) {
  const int64_t total_rows = layout.total_rows();
  std::vector<const int64_t*> tables;
  const int64_t* before = nullptr;
  size_t group_before = 0;
  const int64_t* feature = features;
  for (size_t group = 0; group < layout.group_count(); ++group) {
    for (int64_t i = 0; i < layout.group(group).feature_count; ++i, feature += kFeatureColumns) {
      const int64_t first = feature[kFirstGlobalRow];
      const bool same =
          before != nullptr &&
          std::equal(feature + kWeightOffset, feature + kOutputColumn, before + kWeightOffset) &&
          first == before[kFirstGlobalRow];
      const int64_t free = before == nullptr ? 0 : before[kFirstGlobalRow] + before[kRows];
      if (!same && (first < free || first > total_rows || feature[kRows] > total_rows - first)) {
        fail(op, ": features says that feature ", feature[kFeaturePosition], " has ",
             feature[kRows], " global rows from ", first, " on, expected ",
             before == nullptr ? "some"
                               : join("those of feature ", before[kFeaturePosition],
                                      ", which comes before it, if they share a table, else some"),
             " within ", free, " to ", total_rows - 1);
      }
      if (same && group != group_before) {
        fail(op, ": layout puts feature ", before[kFeaturePosition], " and feature ",
             feature[kFeaturePosition], ", which share a table, into two groups, expected one");
      }
      if (!same && feature[kRows] > 0) tables.push_back(feature);
      before = feature;
      group_before = group;
    }
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

// Throws Error unless features that are told apart have no row and no element in common.
void check_tables(const char* op, const LookupArguments& in, const Layout& layout) {
  const auto* features = static_cast<const int64_t*>(in.features);
  check_tables_apart(op, check_global_rows(op, features, layout));
}

template <typename Index>
LinearLookups linearise_as(const char* op, const LookupArguments& in, const Layout& layout,
                           int64_t gradient_numel, const float* sample_weights, bool mean,
                           InvalidIndex invalid) {
  const int64_t gradient_unit = layout.all_rows_aligned() ? kVectorBytes / in.element_size : 1;
  Lookups<Index> lookups(op, in, layout, gradient_numel, gradient_unit);
  check_tables(op, in, layout);
  LinearLookups linear;
  linear.rows.assign(static_cast<size_t>(in.lookups), -1);
  linear.uses.resize(static_cast<size_t>(in.lookups));
  auto read = [&](const Bag& bag) {
    const float length = mean ? static_cast<float>(bag.end - bag.start) : 1.0f;
    const int64_t rows = bag.feature[kRows];
    for (int64_t i = bag.start; i < bag.end; ++i) {
      int64_t index = lookups.indices()[i];
      if (index < -1 || index >= rows) {
        if (invalid == InvalidIndex::kRefused) return false;
        index = rows > 0 ? 0 : -1;
      }
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

}  // namespace

LinearLookups linearise(const char* op, const LookupArguments& in, const Layout& layout,
                        int64_t gradient_numel, const float* sample_weights, bool mean,
                        InvalidIndex invalid) {
  return in.index_width == 32
             ? linearise_as<int32_t>(op, in, layout, gradient_numel, sample_weights, mean, invalid)
             : linearise_as<int64_t>(op, in, layout, gradient_numel, sample_weights, mean, invalid);
}

void check_metadata(const char* op, const LookupArguments& in, const Layout& layout) {
  const auto* features = static_cast<const int64_t*>(in.features);
  check_features(op, features_by_position(op, features, layout.feature_count()), layout);
  check_groups(op, features, layout, in.element_size);
  check_tables(op, in, layout);
}

}  // namespace tbe_aot::cpu
