#include "cpu/bags.h"

#include <algorithm>

#include "core/error.h"

namespace tbe_aot::cpu {

Bags::Bags(const char* op, int64_t feature_count, int64_t batch_size, int64_t total_bags,
           const int64_t* vbe_bag_offsets)
    : feature_count_(feature_count), batch_size_(batch_size), vbe_bag_offsets_(vbe_bag_offsets) {
  if (vbe_bag_offsets == nullptr) return;
  if (vbe_bag_offsets[0] != 0 || vbe_bag_offsets[feature_count] != total_bags ||
      !std::is_sorted(vbe_bag_offsets, vbe_bag_offsets + feature_count + 1)) {
    fail(op, ": vbe_bag_offsets must rise from 0 to the number of bags, ", total_bags);
  }
  for (int64_t f = 0; f < feature_count; ++f) {
    const int64_t bags = vbe_bag_offsets[f + 1] - vbe_bag_offsets[f];
    if (bags > batch_size) {
      fail(op, ": vbe_max_batch is ", batch_size, ", too few for the ", bags, " bags of feature ",
           f);
    }
  }
}

int64_t Bags::feature_of(int64_t bag) const {
  if (vbe_bag_offsets_ == nullptr) return bag / batch_size_;
  const int64_t* end = vbe_bag_offsets_ + feature_count_ + 1;
  return std::upper_bound(vbe_bag_offsets_, end, bag) - vbe_bag_offsets_ - 1;
}

// Written so that no number in `features`, however large, makes the sums wrap around.
void check_features(const char* op, const std::vector<const int64_t*>& features,
                    const Layout& layout) {
  const int64_t weights_numel = layout.weights_numel();
  const int64_t output_width = layout.output_width();
  int64_t column = 0;
  for (const int64_t* feature : features) {
    const int64_t rows = feature[kRows];
    const int64_t pitch = feature[kRowPitch];
    const int64_t dim = feature[kDim];
    const int64_t start = feature[kWeightOffset];
    bool fits = dim >= 1 && dim <= output_width - column && feature[kOutputColumn] == column &&
                rows >= 0 && pitch >= dim && start >= 0 && start <= weights_numel;
    if (fits && rows > 0) {
      const int64_t room = weights_numel - start;
      fits = dim <= room && rows - 1 <= (room - dim) / pitch;
    }
    if (!fits) {
      fail(op, ": features says that feature ", feature[kFeaturePosition], " has ", rows,
           " rows of ", dim, " elements, ", pitch, " apart, from ", start,
           " on, and output column ", feature[kOutputColumn], ": not within ", weights_numel,
           " weights, or not columns ", column, " on of ", output_width);
    }
    column += dim;
  }
  if (column != output_width) {
    fail(op, ": layout says ", output_width, " columns, features has ", column);
  }
}

void check_groups(const char* op, const int64_t* features, const Layout& layout,
                  int64_t element_size) {
  const int64_t unit = 16 / element_size;
  const int64_t* feature = features;
  for (size_t g = 0; g < layout.group_count(); ++g) {
    const FeatureGroup group = layout.group(g);
    for (int64_t i = 0; i < group.feature_count; ++i, feature += kFeatureColumns) {
      if (feature[kDim] > group.bucket) {
        fail(op, ": layout puts feature ", feature[kFeaturePosition], " of ", feature[kDim],
             " elements into bucket ", group.bucket);
      }
      if (group.aligned != 0 &&
          (feature[kWeightOffset] % unit != 0 || feature[kRowPitch] % unit != 0)) {
        fail(op, ": layout says that feature ", feature[kFeaturePosition],
             " is aligned, but its rows start at element ", feature[kWeightOffset], " and lie ",
             feature[kRowPitch], " apart, expected multiples of ", unit,
             "; metadata belongs to one weight dtype");
      }
      if (group.aligned == 2 && (feature[kDim] % unit != 0 || feature[kOutputColumn] % unit != 0 ||
                                 layout.output_width() % unit != 0)) {
        fail(op, ": layout says that output rows of feature ", feature[kFeaturePosition],
             " are aligned, but it has ", feature[kDim], " columns from ", feature[kOutputColumn],
             " on, of ", layout.output_width(), ", expected multiples of ", unit);
      }
    }
  }
}

std::vector<const int64_t*> features_by_position(const char* op, const int64_t* features,
                                                 int64_t feature_count) {
  std::vector<const int64_t*> by_position(static_cast<size_t>(feature_count), nullptr);
  for (int64_t i = 0; i < feature_count; ++i) {
    const int64_t* feature = features + i * kFeatureColumns;
    const int64_t position = feature[kFeaturePosition];
    if (position < 0 || position >= feature_count ||
        by_position[static_cast<size_t>(position)] != nullptr) {
      fail(op, ": features row ", i, " has position ", position, ", expected each of 0 to ",
           feature_count - 1, " once");
    }
    by_position[static_cast<size_t>(position)] = feature;
  }
  return by_position;
}

}  // namespace tbe_aot::cpu
