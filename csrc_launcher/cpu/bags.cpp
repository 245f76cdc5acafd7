#include "cpu/bags.h"

#include <algorithm>

#include "core/error.h"
#include "core/layout.h"

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
