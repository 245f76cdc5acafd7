#include <algorithm>

#include "cpu/backward.h"
#include "cpu/dispatch.h"
#include "cpu/linear_lookups.h"
#include "cpu/lookups.h"
#include "cpu/parallel.h"

namespace tbe_aot::cpu {
namespace {

constexpr char kOperator[] = "tbe_aot::per_sample_weights_gradient";
// Elements read per piece of work given to a thread, about.
constexpr int64_t kGrainElements = 32768;

}  // namespace

void per_sample_weights_gradient(const SampleWeightsGradientRequest& request, const Layout& layout,
                                 int64_t gradient_numel) {
  const LookupArguments in = lookup_arguments(request, element_size(request.weight_dtype));
  const LinearLookups lookups = linearise(kOperator, in, layout, gradient_numel, nullptr,
                                          request.mean, InvalidIndex::kRefused);
  auto* result = static_cast<float*>(request.result);
  with_element(request.weight_dtype, [&](auto weight) {
    with_element(request.gradient_dtype, [&](auto element) {
      const auto* weights = static_cast<const decltype(weight)*>(request.weights);
      const auto* gradients = static_cast<const decltype(element)*>(request.gradient);
      const int64_t width = layout.output_width() / layout.feature_count() + 1;
      parallel_for(0, request.lookups, std::max<int64_t>(1, kGrainElements / width),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       result[i] = 0;
                       if (lookups.rows[static_cast<size_t>(i)] < 0) continue;
                       const Use& use = lookups.uses[static_cast<size_t>(i)];
                       const auto* row = weights + lookups.element(i);
                       const auto* gradient = gradients + use.gradient;
                       double dot = 0;
                       for (int64_t c = 0; c < use.feature[kDim]; ++c) {
                         dot += static_cast<double>(static_cast<float>(gradient[c])) *
                                static_cast<float>(row[c]);
                       }
                       result[i] = static_cast<float>(dot * use.factor);
                     }
                   });
    });
  });
}

}  // namespace tbe_aot::cpu
