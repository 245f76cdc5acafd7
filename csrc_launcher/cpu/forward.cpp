#include "cpu/forward.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "cpu/bags.h"
#include "cpu/element.h"
#include "cpu/parallel.h"
#include "cpu/row.h"
#include "cpu/subnormals.h"

namespace tbe_aot::cpu {
namespace {

constexpr char kOperator[] = "tbe_aot::forward";
// Columns that are pooled together: their accumulators stay in the first cache level.
constexpr int64_t kColumns = 512;
// Lookups between asking for a row and adding it: far enough to hide memory, near enough to stay in
// the cache.
constexpr int64_t kAhead = 6;
// Elements read and written per piece of work given to a thread, about.
constexpr int64_t kGrainElements = 32768;

// Asks the cache for a row that is added soon. Where there is no such row, nothing happens.
template <typename Weight>
void prefetch_row(const Weight* table, int64_t offset, int64_t columns) {
  constexpr int64_t kLine = 64;
  const uintptr_t row = reinterpret_cast<uintptr_t>(table) + offset * sizeof(Weight);
  const int64_t bytes = columns * static_cast<int64_t>(sizeof(Weight));
  for (int64_t byte = 0; byte < bytes; byte += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(row + byte));
  }
}

template <typename Weight, typename Output, typename Index>
class Pooling {
 public:
  Pooling(const ForwardRequest& request, const Layout& layout, int64_t output_numel)
      : request_(request),
        bags_(kOperator, layout.feature_count(), request.batch_size, request.total_bags,
              static_cast<const int64_t*>(request.vbe_bag_offsets)),
        features_(features_by_position(kOperator, static_cast<const int64_t*>(request.features),
                                       layout.feature_count())),
        weights_numel_(layout.weights_numel()),
        output_width_(layout.output_width()),
        output_numel_(output_numel) {
    check_features();
    check_groups(layout);
  }

  void run() {
    const int64_t bag_elements =
        (request_.lookups / request_.total_bags + 1) * (output_width_ / features_count() + 1);
    parallel_for(0, request_.total_bags, std::max<int64_t>(1, kGrainElements / bag_elements),
                 [this](int64_t first, int64_t end) {
                   const SubnormalsCount subnormals;
                   for (int64_t bag = first; bag < end; ++bag) {
                     if (!pool(bag)) refuse(bag);
                   }
                 });
    const int64_t bag = first_refused_.load();
    if (bag != kNone) explain(bag);
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  int64_t features_count() const { return static_cast<int64_t>(features_.size()); }

  // Written so that no number in `features`, however large, makes the sums wrap around.
  void check_features() const {
    int64_t column = 0;
    for (const int64_t* feature : features_) {
      const int64_t rows = feature[kRows];
      const int64_t pitch = feature[kRowPitch];
      const int64_t dim = feature[kDim];
      const int64_t start = feature[kWeightOffset];
      bool fits = dim >= 1 && dim <= output_width_ - column && feature[kOutputColumn] == column &&
                  rows >= 0 && pitch >= dim && start >= 0 && start <= weights_numel_;
      if (fits && rows > 0) {
        const int64_t room = weights_numel_ - start;
        fits = dim <= room && rows - 1 <= (room - dim) / pitch;
      }
      if (!fits) {
        fail(kOperator, ": features says that feature ", feature[kFeaturePosition], " has ", rows,
             " rows of ", dim, " elements, ", pitch, " apart, from ", start,
             " on, and output column ", feature[kOutputColumn], ": not within ", weights_numel_,
             " weights, or not columns ", column, " on of ", output_width_);
      }
      column += dim;
    }
    if (column != output_width_) {
      fail(kOperator, ": layout says ", output_width_, " columns, features has ", column);
    }
  }

  // What the kernels rely on: they read no column beyond the bucket, and 16 bytes at once from rows
  // that are said to be aligned.
  void check_groups(const Layout& layout) const {
    constexpr int64_t kUnit = 16 / static_cast<int64_t>(sizeof(Weight));
    const auto* feature = static_cast<const int64_t*>(request_.features);
    for (size_t g = 0; g < layout.group_count(); ++g) {
      const FeatureGroup group = layout.group(g);
      for (int64_t i = 0; i < group.feature_count; ++i, feature += kFeatureColumns) {
        if (feature[kDim] > group.bucket) {
          fail(kOperator, ": layout puts feature ", feature[kFeaturePosition], " of ",
               feature[kDim], " elements into bucket ", group.bucket);
        }
        if (group.aligned &&
            (feature[kWeightOffset] % kUnit != 0 || feature[kRowPitch] % kUnit != 0)) {
          fail(kOperator, ": layout says that feature ", feature[kFeaturePosition],
               " is aligned, but its rows start at element ", feature[kWeightOffset], " and lie ",
               feature[kRowPitch], " apart, expected multiples of ", kUnit,
               "; metadata belongs to one weight dtype");
        }
      }
    }
  }

  // False when an offset, an index or an output position is out of bounds; writes nothing outside.
  bool pool(int64_t bag) const {
    using Sum = Accumulator<Weight>;
    const auto* offsets = static_cast<const Index*>(request_.offsets);
    const auto* indices = static_cast<const Index*>(request_.indices);
    const auto* sample_weights = static_cast<const float*>(request_.per_sample_weights);

    const int64_t position = bags_.feature_of(bag);
    const int64_t* feature = features_[static_cast<size_t>(position)];
    const int64_t start = offsets[bag];
    const int64_t end = offsets[bag + 1];
    const int64_t dim = feature[kDim];
    const int64_t output_start = output_of(bag, position, feature);
    if (start < 0 || end < start || end > request_.lookups || output_start < 0) return false;

    const Weight* table = static_cast<const Weight*>(request_.weights) + feature[kWeightOffset];
    Output* output = static_cast<Output*>(const_cast<void*>(request_.output)) + output_start;
    const Sum divisor =
        request_.mean ? static_cast<Sum>(std::max<int64_t>(end - start, 1)) : Sum{1};
    for (int64_t column = 0; column < dim; column += kColumns) {
      const int64_t columns = std::min(kColumns, dim - column);
      Sum sums[kColumns];
      std::fill_n(sums, columns, Sum{0});
      for (int64_t i = start; i < end; ++i) {
        const int64_t index = indices[i];
        if (index == -1) continue;
        if (index < 0 || index >= feature[kRows]) return false;
        if (i + kAhead < request_.lookups) {
          prefetch_row(table + column, indices[i + kAhead] * feature[kRowPitch], columns);
        }
        const Weight* row = table + index * feature[kRowPitch] + column;
        if (sample_weights == nullptr) {
          add_row(row, columns, sums);
        } else {
          add_row(row, columns, sums, static_cast<Sum>(sample_weights[i]));
        }
      }
      for (int64_t c = 0; c < columns; ++c) {
        output[column + c] = round_once<Output>(sums[c] / divisor);
      }
    }
    return true;
  }

  // The element where the bag's row starts, or -1 when the row would not lie in the output.
  int64_t output_of(int64_t bag, int64_t position, const int64_t* feature) const {
    if (request_.vbe_output_offsets == nullptr) {
      return (bag - bags_.of_feature(position).first) * output_width_ + feature[kOutputColumn];
    }
    const int64_t start = static_cast<const int64_t*>(request_.vbe_output_offsets)[bag];
    return start >= 0 && start <= output_numel_ - feature[kDim] ? start : -1;
  }

  void refuse(int64_t bag) {
    int64_t first = first_refused_.load();
    while (bag < first && !first_refused_.compare_exchange_weak(first, bag)) {
    }
  }

  // Says what is wrong with a bag that pool() refused.
  [[noreturn]] void explain(int64_t bag) const {
    const auto* offsets = static_cast<const Index*>(request_.offsets);
    const auto* indices = static_cast<const Index*>(request_.indices);
    const int64_t position = bags_.feature_of(bag);
    const int64_t* feature = features_[static_cast<size_t>(position)];
    const int64_t start = offsets[bag];
    const int64_t end = offsets[bag + 1];
    const std::string where =
        join("feature ", position, ", bag ", bag - bags_.of_feature(position).first);
    if (start < 0 || end < start || end > request_.lookups) {
      fail(kOperator, ": offsets has ", start, " and ", end, " for ", where,
           ", expected a range within the ", request_.lookups, " indices");
    }
    if (output_of(bag, position, feature) < 0) {
      fail(kOperator, ": vbe_output_offsets puts ", where, " outside of the output of ",
           output_numel_, " elements");
    }
    for (int64_t i = start; i < end; ++i) {
      if (indices[i] < -1 || indices[i] >= feature[kRows]) {
        fail(kOperator, ": indices has ", indices[i], " at position ", i, " (", where,
             "), expected -1 to ", feature[kRows] - 1, "; check_bounds can repair it");
      }
    }
    fail(kOperator, ": ", where, " changed while it was read");
  }

  const ForwardRequest& request_;
  Bags bags_;
  std::vector<const int64_t*> features_;
  int64_t weights_numel_;
  int64_t output_width_;
  int64_t output_numel_;
  std::atomic<int64_t> first_refused_{kNone};
};

template <typename Weight, typename Output>
void choose_index(const ForwardRequest& request, const Layout& layout, int64_t output_numel) {
  if (request.index_width == 32) {
    Pooling<Weight, Output, int32_t>(request, layout, output_numel).run();
  } else {
    Pooling<Weight, Output, int64_t>(request, layout, output_numel).run();
  }
}

template <typename Weight>
void choose_output(const ForwardRequest& request, const Layout& layout, int64_t output_numel) {
  switch (request.output_dtype) {
    case Dtype::kFloat32:
      return choose_index<Weight, float>(request, layout, output_numel);
    case Dtype::kFloat16:
      return choose_index<Weight, Half>(request, layout, output_numel);
    case Dtype::kBFloat16:
      return choose_index<Weight, BFloat16>(request, layout, output_numel);
  }
}

}  // namespace

void forward(const ForwardRequest& request, const Layout& layout, int64_t output_numel) {
  switch (request.weight_dtype) {
    case Dtype::kFloat32:
      return choose_output<float>(request, layout, output_numel);
    case Dtype::kFloat16:
      return choose_output<Half>(request, layout, output_numel);
    case Dtype::kBFloat16:
      return choose_output<BFloat16>(request, layout, output_numel);
  }
}

}  // namespace tbe_aot::cpu
