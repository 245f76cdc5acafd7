// The lookups of a call, checked before they are followed: which feature a bag belongs to, its
// range of indices, where its row of the output or of the gradient lies.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/layout.h"
#include "cpu/bags.h"

namespace tbe_aot::cpu {

// Pointers and sizes as the operators describe them.
struct LookupArguments {
  int32_t index_width = 64;  // Of indices and offsets.
  int64_t element_size = 4;  // Bytes of a weight.
  const void* features = nullptr;
  const void* indices = nullptr;
  const void* offsets = nullptr;
  const void* vbe_bag_offsets = nullptr;     // Null without VBE.
  const void* vbe_output_offsets = nullptr;  // Null without VBE.
  int64_t lookups = 0;
  int64_t batch_size = 0;  // Bags of each feature, without VBE.
  int64_t total_bags = 0;
};

// Those of a request; `element_size`: bytes of a weight.
template <typename Request>
LookupArguments lookup_arguments(const Request& request, int64_t element_size) {
  LookupArguments in;
  in.index_width = request.index_width;
  in.element_size = element_size;
  in.features = request.features;
  in.indices = request.indices;
  in.offsets = request.offsets;
  in.vbe_bag_offsets = request.vbe_bag_offsets;
  in.vbe_output_offsets = request.vbe_output_offsets;
  in.lookups = request.lookups;
  in.batch_size = request.batch_size;
  in.total_bags = request.total_bags;
  return in;
}

// What is known of one bag.
struct Bag {
  const int64_t* feature;  // Its row of the features tensor.
  int64_t start;           // Its range of indices.
  int64_t end;
  int64_t output;  // The element of output or gradient where its row starts; -1: not within it.
};

template <typename Index>
class Lookups {
 public:
  // Throws Error when the features do not fit the weights or the layout; `output_numel` bounds the
  // 1-D output of a variable batch, where a row starts at a multiple of `output_unit`.
  Lookups(const char* op, const LookupArguments& in, const Layout& layout, int64_t output_numel,
          int64_t output_unit = 1)
      : op_(op),
        in_(in),
        bags_(op, layout.feature_count(), in.batch_size, in.total_bags,
              static_cast<const int64_t*>(in.vbe_bag_offsets)),
        features_(features_by_position(op, static_cast<const int64_t*>(in.features),
                                       layout.feature_count())),
        output_width_(layout.output_width()),
        output_numel_(output_numel),
        output_unit_(output_unit) {
    check_features(op, features_, layout);
    check_groups(op, static_cast<const int64_t*>(in.features), layout, in.element_size);
  }

  int64_t feature_count() const { return static_cast<int64_t>(features_.size()); }
  const std::vector<const int64_t*>& features() const { return features_; }
  const Index* indices() const { return static_cast<const Index*>(in_.indices); }

  Bag bag(int64_t number) const {
    const auto* offsets = static_cast<const Index*>(in_.offsets);
    const int64_t position = bags_.feature_of(number);
    const int64_t* feature = features_[static_cast<size_t>(position)];
    return {feature, offsets[number], offsets[number + 1], output_of(number, position, feature)};
  }

  // Whether the bag's range and row are within bounds; its indices are looked at where they are
  // used.
  bool is_within(const Bag& bag) const {
    return bag.start >= 0 && bag.end >= bag.start && bag.end <= in_.lookups && bag.output >= 0;
  }

  // Remembers a bag that is out of bounds; for any thread.
  void refuse(int64_t number) {
    int64_t first = first_refused_.load();
    while (number < first && !first_refused_.compare_exchange_weak(first, number)) {
    }
  }

  // Throws Error about the first bag that was refused, if any.
  void expect_none_refused() const {
    const int64_t number = first_refused_.load();
    if (number != kNone) explain(number);
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  int64_t output_of(int64_t number, int64_t position, const int64_t* feature) const {
    if (in_.vbe_output_offsets == nullptr) {
      return (number - bags_.of_feature(position).first) * output_width_ + feature[kOutputColumn];
    }
    const int64_t start = static_cast<const int64_t*>(in_.vbe_output_offsets)[number];
    const bool fits = start >= 0 && start <= output_numel_ - feature[kDim];
    return fits && start % output_unit_ == 0 ? start : -1;
  }

  [[noreturn]] void explain(int64_t number) const {
    const Bag bag = this->bag(number);
    const int64_t position = bag.feature[kFeaturePosition];
    const std::string where =
        join("feature ", position, ", bag ", number - bags_.of_feature(position).first);
    if (bag.start < 0 || bag.end < bag.start || bag.end > in_.lookups) {
      fail(op_, ": offsets has ", bag.start, " and ", bag.end, " for ", where,
           ", expected a range within the ", in_.lookups, " indices");
    }
    if (bag.output < 0) {
      const int64_t start = static_cast<const int64_t*>(in_.vbe_output_offsets)[number];
      if (start >= 0 && start % output_unit_ != 0) {
        fail(op_, ": vbe_output_offsets puts ", where, " at element ", start,
             ", expected a multiple of ", output_unit_,
             " where layout says of every feature that its output rows are aligned");
      }
      fail(op_, ": vbe_output_offsets puts ", where, " outside of the output of ", output_numel_,
           " elements");
    }
    for (int64_t i = bag.start; i < bag.end; ++i) {
      if (indices()[i] < -1 || indices()[i] >= bag.feature[kRows]) {
        fail(op_, ": indices has ", indices()[i], " at position ", i, " (", where,
             "), expected -1 to ", bag.feature[kRows] - 1, "; check_bounds can repair it");
      }
    }
    fail(op_, ": ", where, " changed while it was read");
  }

  const char* op_;
  LookupArguments in_;
  Bags bags_;
  std::vector<const int64_t*> features_;
  int64_t output_width_;
  int64_t output_numel_;
  int64_t output_unit_;
  std::atomic<int64_t> first_refused_{kNone};
};

}  // namespace tbe_aot::cpu
