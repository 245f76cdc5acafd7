#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/transposed_format.h"
#include "cpu/backward.h"
#include "cpu/dispatch.h"
#include "cpu/linear_lookups.h"
#include "cpu/lookups.h"
#include "cpu/optimizers/row_update.h"
#include "cpu/parallel.h"
#include "cpu/rounding.h"
#include "cpu/row.h"
#include "cpu/transposed.h"
#include "optimizer_formulas.h"

namespace tbe_aot::cpu {
namespace {

constexpr char kOperator[] = "tbe_aot::backward_update";
constexpr char kTranspose[] = "tbe_aot::transpose_indices";
// Elements read per piece of work given to a thread, about.
constexpr int64_t kGrainElements = 32768;

// The numbers of the optimizer, but for the step.
OptimizerArguments optimizer_arguments(const BackwardUpdateRequest& request) {
  OptimizerArguments in;
  in.learning_rate = *static_cast<const float*>(request.learning_rate);
  in.eps = request.eps;
  in.beta1 = request.beta1;
  in.beta2 = request.beta2;
  in.l2_decay = request.l2_decay;
  in.decoupled_decay = request.decoupled_decay;
  in.momentum1 = static_cast<float*>(request.momentum1);
  in.momentum2 = static_cast<float*>(request.momentum2);
  return in;
}

// The gradient without its scale, then clamped, in fp32.
std::vector<float> unscale_and_clip(const BackwardUpdateRequest& request) {
  std::vector<float> result(static_cast<size_t>(request.gradient_numel));
  const float scale =
      request.gradient_scale == nullptr ? 1.0f : *static_cast<const float*>(request.gradient_scale);
  const float clip = request.clip;
  with_element(request.gradient_dtype, [&](auto element) {
    const auto* gradient = static_cast<const decltype(element)*>(request.gradient);
    parallel_for(0, request.gradient_numel, kGrainElements, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float g = static_cast<float>(gradient[i]) / scale;
        // Written so that NaN stays.
        if (clip > 0 && g > clip) g = clip;
        if (clip > 0 && g < -clip) g = -clip;
        result[static_cast<size_t>(i)] = g;
      }
    });
  });
  return result;
}

// The largest seed is followed by the smallest, as on a GPU.
int64_t next_seed(int64_t seed) { return static_cast<int64_t>(static_cast<uint64_t>(seed) + 1); }

template <typename Weight, typename Gradient>
class Update {
 public:
  // `seed` is read where rows are rounded stochastically.
  Update(const BackwardUpdateRequest& request, const OptimizerArguments& arguments,
         const Gradient* gradient, const Transposed& runs, int64_t seed)
      : gradient_(gradient),
        weights_(static_cast<Weight*>(request.weights)),
        features_(static_cast<const int64_t*>(request.features)),
        runs_(runs),
        formula_(kFormulas[static_cast<size_t>(request.optimizer)]),
        arguments_(arguments),
        stochastic_(request.rounding_seed != nullptr),
        seed_(seed) {
    for (int64_t slot = 0; slot < runs.feature_count; ++slot) {
      width_ = std::max(width_, feature(slot)[kDim]);
    }
    scratch_.resize(thread_count() * static_cast<size_t>(kBuffers * width_));
  }

  void run() {
    const int64_t count = runs_.run_count();
    const int64_t run_elements = width_ * (runs_.lookups / std::max<int64_t>(count, 1) + 1);
    parallel_for(0, count, std::max<int64_t>(1, kGrainElements / (run_elements + 1)),
                 [this](int64_t first, int64_t end) {
                   float* scratch =
                       scratch_.data() + thread_index() * static_cast<size_t>(kBuffers * width_);
                   for (int64_t run = first; run < end; ++run) update_row(run, scratch);
                 });
  }

 private:
  static constexpr int64_t kBuffers = 3;  // A row's sum, a chunk's sum, the row's weights.

  const int64_t* feature(int64_t slot) const { return features_ + slot * kFeatureColumns; }

  void update_row(int64_t run, float* scratch) const {
    const int64_t begin = runs_.run_starts[run];
    const int64_t end = runs_.run_starts[run + 1];
    const int64_t* table = feature(runs_.run_slots[run]);
    const int64_t dim = table[kDim];
    float* sum = scratch;
    float* weights = scratch + 2 * width_;
    // Long runs are summed in chunks, whose sums are then added in order; the last one takes the
    // rest.
    int64_t chunks = std::max<int64_t>(1, (end - begin) / kChunk);
    int64_t chunk = begin;
    add_lookups(chunk, chunks == 1 ? end : chunk + kChunk, dim, sum);
    while (--chunks > 0) {
      chunk += kChunk;
      float* partial = scratch + width_;
      add_lookups(chunk, chunks == 1 ? end : chunk + kChunk, dim, partial);
      for (int64_t c = 0; c < dim; ++c) sum[c] += partial[c];
    }
    const int64_t row_number = runs_.run_rows[run];
    const int64_t element =
        table[kWeightOffset] + (row_number - table[kFirstGlobalRow]) * table[kRowPitch];
    Weight* row = weights_ + element;
    for (int64_t c = 0; c < dim; ++c) weights[c] = static_cast<float>(row[c]);
    formula_(arguments_, {row_number, element, dim, sum, weights});
    if (!stochastic_) {
      for (int64_t c = 0; c < dim; ++c) row[c] = round_once<Weight>(weights[c]);
      return;
    }
    const RowRandom random(seed_, row_number);
    for (int64_t c = 0; c < dim; ++c) {
      row[c] = round_stochastically<Weight>(weights[c], random, c);
    }
  }

  // sum = the gradients of lookups, each scaled before it is added, in their order.
  void add_lookups(int64_t begin, int64_t end, int64_t dim, float* sum) const {
    std::fill_n(sum, dim, 0.0f);
    for (int64_t i = begin; i < end; ++i) {
      const float factor = runs_.factors == nullptr ? 1.0f : runs_.factors[i];
      add_row(gradient_ + runs_.positions[i], dim, sum, factor);
    }
  }

  const Gradient* gradient_;
  Weight* weights_;
  const int64_t* features_;
  const Transposed& runs_;
  Formula formula_;
  const OptimizerArguments& arguments_;
  bool stochastic_;
  int64_t seed_;
  int64_t width_ = 0;  // Most columns of any table.
  std::vector<float> scratch_;
};

}  // namespace

void transpose_indices(const TransposeRequest& request, const Layout& layout) {
  // The narrowest unit of alignment: this operator knows no weights.
  const LookupArguments in = lookup_arguments(request, element_size(Dtype::kFloat32));
  const auto* sample_weights = static_cast<const float*>(request.per_sample_weights);
  const LinearLookups lookups = linearise(kTranspose, in, layout, kMaxGradientNumel, sample_weights,
                                          request.mean, InvalidIndex::kRow0);
  transpose(lookups, static_cast<const int64_t*>(request.features), layout,
            request.mean || sample_weights != nullptr, static_cast<int32_t*>(request.transposed));
}

void backward_update(const BackwardUpdateRequest& given, const TransposeRequest& lookups,
                     const Layout& layout) {
  BackwardUpdateRequest request = given;
  const auto* features = static_cast<const int64_t*>(request.features);
  const LookupArguments in = lookup_arguments(lookups, element_size(request.weight_dtype));
  std::vector<int32_t> words;
  if (given.transposed == nullptr) {
    const LinearLookups linear = linearise(kOperator, in, layout, request.gradient_numel,
                                           static_cast<const float*>(lookups.per_sample_weights),
                                           lookups.mean, InvalidIndex::kRow0);
    const TransposedFormat format =
        transposed_format(request.lookups, layout.feature_count(), request.factored);
    words.resize(static_cast<size_t>(format.numel));
    transpose(linear, features, layout, request.factored, words.data());
    request.transposed = words.data();
  } else {
    check_metadata(kOperator, in, layout);
  }
  const Transposed runs(static_cast<const int32_t*>(request.transposed), request.lookups,
                        layout.feature_count(), request.factored);
  if (given.transposed != nullptr) {
    check_transposed(kOperator, runs, features, request.gradient_numel);
  }
  if (request.found_inf != nullptr && *static_cast<const float*>(request.found_inf) != 0) return;
  std::vector<float> prepared;
  if (request.gradient_scale != nullptr || request.clip > 0) {
    prepared = unscale_and_clip(request);
    request.gradient = prepared.data();
    request.gradient_dtype = Dtype::kFloat32;
  }
  OptimizerArguments arguments = optimizer_arguments(request);
  auto* step = static_cast<int64_t*>(request.step);
  if (step != nullptr) arguments.step = *step + 1;
  auto* rounding_seed = static_cast<int64_t*>(request.rounding_seed);
  const int64_t seed = rounding_seed == nullptr ? 0 : next_seed(*rounding_seed);
  with_element(request.weight_dtype, [&](auto weight) {
    with_element(request.gradient_dtype, [&](auto gradient) {
      const auto* values = static_cast<const decltype(gradient)*>(request.gradient);
      Update<decltype(weight), decltype(gradient)>(request, arguments, values, runs, seed).run();
    });
  });
  if (step != nullptr) *step = arguments.step;
  if (rounding_seed != nullptr) *rounding_seed = seed;
}

}  // namespace tbe_aot::cpu
