// Which feature a bag belongs to, where its bags are, and whether what is said of the features
// holds.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layout.h"

namespace tbe_aot::cpu {

struct BagRange {
  int64_t first;
  int64_t end;
};

// Bags are numbered feature-major: feature f has B bags from f * B on, or, with a variable batch
// (VBE), those from vbe_bag_offsets[f] to vbe_bag_offsets[f + 1].
class Bags {
 public:
  // Throws Error when vbe_bag_offsets does not cover [0, total_bags) in order, or gives a feature
  // more bags than `batch_size`.
  Bags(const char* op, int64_t feature_count, int64_t batch_size, int64_t total_bags,
       const int64_t* vbe_bag_offsets);

  BagRange of_feature(int64_t feature) const {
    if (vbe_bag_offsets_ == nullptr) return {feature * batch_size_, (feature + 1) * batch_size_};
    return {vbe_bag_offsets_[feature], vbe_bag_offsets_[feature + 1]};
  }
  int64_t feature_of(int64_t bag) const;

 private:
  int64_t feature_count_;
  int64_t batch_size_;
  const int64_t* vbe_bag_offsets_;  // Null without VBE.
};

// The rows of the features tensor ([feature_count, 8], ordered by group) by the feature's position
// in the caller's order. Throws Error unless every position occurs once.
std::vector<const int64_t*> features_by_position(const char* op, const int64_t* features,
                                                 int64_t feature_count);

// Throws Error unless every table lies within the weights that the layout counts, and the features,
// by position, fill the columns of its output one after another.
void check_features(const char* op, const std::vector<const int64_t*>& features,
                    const Layout& layout);

// Throws Error unless the layout's groups promise of the features tensor ([feature_count, 8]) what
// holds. The kernels rely on it: they read no column beyond the bucket, and 16 bytes at once from
// rows that are said to be aligned. `element_size` is that of the weights, in bytes.
void check_groups(const char* op, const int64_t* features, const Layout& layout,
                  int64_t element_size);

}  // namespace tbe_aot::cpu
