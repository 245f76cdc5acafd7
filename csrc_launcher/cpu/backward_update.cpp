#include <algorithm>
#include <vector>

#include "core/error.h"
#include "cpu/backward.h"
#include "cpu/dispatch.h"
#include "cpu/linear_lookups.h"
#include "cpu/optimizers/adagrad.h"
#include "cpu/optimizers/adam.h"
#include "cpu/optimizers/rowwise_adagrad.h"
#include "cpu/optimizers/sgd.h"
#include "cpu/parallel.h"
#include "cpu/row.h"

namespace tbe_aot::cpu {
namespace {

constexpr char kOperator[] = "tbe_aot::backward_update";
// Runs from here on are summed in chunks of so many lookups, whose sums are then added in order.
constexpr int64_t kChunk = 256;
// Elements read per piece of work given to a thread, about.
constexpr int64_t kGrainElements = 32768;

struct Optimizer {
  std::string_view name;
  Formula formula;
};
constexpr Optimizer kOptimizers[] = {
    {"sgd", &sgd},
    {"rowwise_adagrad", &rowwise_adagrad},
    {"adagrad", &adagrad},
    {"adam", &adam},
};

Formula find_formula(std::string_view name) {
  for (const Optimizer& optimizer : kOptimizers) {
    if (optimizer.name == name) return optimizer.formula;
  }
  fail(kOperator, ": no formula for optimizer '", name, "'");
}

// The gradient without its scale, then clamped, in fp32.
std::vector<float> unscale_and_clip(const UpdateRequest& request) {
  std::vector<float> result(static_cast<size_t>(request.gradient_numel));
  const float scale = request.gradient_scale == nullptr ? 1.0f : *request.gradient_scale;
  const float clip = request.gradient_clip;
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

template <typename Weight, typename Gradient>
class Update {
 public:
  Update(const UpdateRequest& request, const Gradient* gradient, const LinearLookups& lookups,
         const Runs& runs)
      : gradient_(gradient),
        weights_(static_cast<Weight*>(request.weights)),
        lookups_(lookups),
        runs_(runs),
        formula_(find_formula(request.optimizer)),
        arguments_(request.arguments) {
    for (const Use& use : lookups.uses) {
      if (use.feature != nullptr) width_ = std::max(width_, use.feature[kDim]);
    }
    scratch_.resize(thread_count() * static_cast<size_t>(kBuffers * width_));
  }

  void run() {
    const int64_t run_elements =
        width_ *
        (static_cast<int64_t>(runs_.positions.size()) / std::max<int64_t>(runs_.count(), 1) + 1);
    parallel_for(0, runs_.count(), std::max<int64_t>(1, kGrainElements / (run_elements + 1)),
                 [this](int64_t first, int64_t end) {
                   float* scratch =
                       scratch_.data() + thread_index() * static_cast<size_t>(kBuffers * width_);
                   for (int64_t run = first; run < end; ++run) update_row(run, scratch);
                 });
  }

 private:
  static constexpr int64_t kBuffers = 3;  // A row's sum, a chunk's sum, the row's weights.

  void update_row(int64_t run, float* scratch) const {
    const int64_t begin = runs_.starts[static_cast<size_t>(run)];
    const int64_t end = runs_.starts[static_cast<size_t>(run + 1)];
    const int64_t first = runs_.positions[static_cast<size_t>(begin)];
    const int64_t dim = lookups_.uses[static_cast<size_t>(first)].feature[kDim];
    float* sum = scratch;
    float* weights = scratch + 2 * width_;
    add_lookups(begin, std::min(end, begin + kChunk), dim, sum);
    for (int64_t chunk = begin + kChunk; chunk < end; chunk += kChunk) {
      float* partial = scratch + width_;
      add_lookups(chunk, std::min(end, chunk + kChunk), dim, partial);
      for (int64_t c = 0; c < dim; ++c) sum[c] += partial[c];
    }
    const int64_t element = lookups_.element(first);
    Weight* row = weights_ + element;
    for (int64_t c = 0; c < dim; ++c) weights[c] = static_cast<float>(row[c]);
    formula_(arguments_, {lookups_.rows[static_cast<size_t>(first)], element, dim, sum, weights});
    for (int64_t c = 0; c < dim; ++c) row[c] = round_once<Weight>(weights[c]);
  }

  // sum = the gradients of lookups, each scaled before it is added, in their order.
  void add_lookups(int64_t begin, int64_t end, int64_t dim, float* sum) const {
    std::fill_n(sum, dim, 0.0f);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t position = runs_.positions[static_cast<size_t>(i)];
      const Use& use = lookups_.uses[static_cast<size_t>(position)];
      add_row(gradient_ + use.gradient, dim, sum, use.factor);
    }
  }

  const Gradient* gradient_;
  Weight* weights_;
  const LinearLookups& lookups_;
  const Runs& runs_;
  Formula formula_;
  const OptimizerArguments& arguments_;
  int64_t width_ = 0;  // Most columns of any row that was looked up.
  std::vector<float> scratch_;
};

}  // namespace

void backward_update(const UpdateRequest& given, const Layout& layout) {
  UpdateRequest request = given;
  const LinearLookups lookups =
      linearise(kOperator, request.lookups, layout, request.gradient_numel,
                request.per_sample_weights, request.mean);
  if (request.found_inf != nullptr && *request.found_inf != 0) return;
  const Runs runs = find_runs(lookups);
  std::vector<float> prepared;
  if (request.gradient_scale != nullptr || request.gradient_clip > 0) {
    prepared = unscale_and_clip(request);
    request.gradient = prepared.data();
    request.gradient_dtype = Dtype::kFloat32;
  }
  if (request.step != nullptr) request.arguments.step = *request.step + 1;
  with_element(request.weight_dtype, [&](auto weight) {
    with_element(request.gradient_dtype, [&](auto gradient) {
      const auto* values = static_cast<const decltype(gradient)*>(request.gradient);
      Update<decltype(weight), decltype(gradient)>(request, values, lookups, runs).run();
    });
  });
  if (request.step != nullptr) *request.step = request.arguments.step;
}

}  // namespace tbe_aot::cpu
