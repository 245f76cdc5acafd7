#include "cpu/forward.h"

#include <algorithm>

#include "cpu/dispatch.h"
#include "cpu/element.h"
#include "cpu/lookups.h"
#include "cpu/parallel.h"
#include "cpu/row.h"

namespace tbe_aot::cpu {
namespace {

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
  Pooling(const char* op, const ForwardRequest& request, const Layout& layout, int64_t output_numel)
      : request_(request),
        lookups_(op, lookup_arguments(request, element_size(request.weight_dtype)), layout,
                 output_numel),
        output_width_(layout.output_width()) {}

  void run() {
    const int64_t bag_elements = (request_.lookups / request_.total_bags + 1) *
                                 (output_width_ / lookups_.feature_count() + 1);
    parallel_for(0, request_.total_bags, std::max<int64_t>(1, kGrainElements / bag_elements),
                 [this](int64_t first, int64_t end) {
                   for (int64_t bag = first; bag < end; ++bag) {
                     if (!pool(bag)) lookups_.refuse(bag);
                   }
                 });
    lookups_.expect_none_refused();
  }

 private:
  // False when an offset, an index or an output position is out of bounds; writes nothing outside.
  bool pool(int64_t number) const {
    using Sum = Accumulator<Weight>;
    const Index* indices = lookups_.indices();
    const auto* sample_weights = static_cast<const float*>(request_.per_sample_weights);
    const Bag bag = lookups_.bag(number);
    if (!lookups_.is_within(bag)) return false;

    const int64_t* feature = bag.feature;
    const int64_t dim = feature[kDim];
    const Weight* table = static_cast<const Weight*>(request_.weights) + feature[kWeightOffset];
    Output* output = static_cast<Output*>(const_cast<void*>(request_.output)) + bag.output;
    const Sum divisor =
        request_.mean ? static_cast<Sum>(std::max<int64_t>(bag.end - bag.start, 1)) : Sum{1};
    for (int64_t column = 0; column < dim; column += kColumns) {
      const int64_t columns = std::min(kColumns, dim - column);
      Sum sums[kColumns];
      std::fill_n(sums, columns, Sum{0});
      for (int64_t i = bag.start; i < bag.end; ++i) {
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

  const ForwardRequest& request_;
  Lookups<Index> lookups_;
  int64_t output_width_;
};

template <typename Weight, typename Output>
void choose_index(const char* op, const ForwardRequest& request, const Layout& layout,
                  int64_t output_numel) {
  if (request.index_width == 32) {
    Pooling<Weight, Output, int32_t>(op, request, layout, output_numel).run();
  } else {
    Pooling<Weight, Output, int64_t>(op, request, layout, output_numel).run();
  }
}

template <typename Weight>
void choose_output(const char* op, const ForwardRequest& request, const Layout& layout,
                   int64_t output_numel) {
  switch (request.output_dtype) {
    case Dtype::kFloat32:
      return choose_index<Weight, float>(op, request, layout, output_numel);
    case Dtype::kFloat16:
      return choose_index<Weight, Half>(op, request, layout, output_numel);
    case Dtype::kBFloat16:
      return choose_index<Weight, BFloat16>(op, request, layout, output_numel);
  }
}

}  // namespace

void forward(const char* op, const ForwardRequest& request, const Layout& layout,
             int64_t output_numel) {
  switch (request.weight_dtype) {
    case Dtype::kFloat32:
      return choose_output<float>(op, request, layout, output_numel);
    case Dtype::kFloat16:
      return choose_output<Half>(op, request, layout, output_numel);
    case Dtype::kBFloat16:
      return choose_output<BFloat16>(op, request, layout, output_numel);
  }
}

}  // namespace tbe_aot::cpu
