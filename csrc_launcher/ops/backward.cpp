#include "ops/backward.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/launcher.h"
#include "core/layout.h"
#include "core/optimizers.h"
#include "core/planner.h"
#include "core/transposed_format.h"
#include "cpu/backward.h"
#include "cpu/subnormals.h"
#include "operator_rules.h"
#include "ops/cuda_stream.h"
#include "ops/request.h"
#include "ops/stable_tensor.h"

namespace tbe_aot {
namespace {

rules::TransposeIndicesArguments read_transpose(BoxedArguments& boxed) {
  rules::TransposeIndicesArguments in;
  in.features = boxed.tensor(rules::kTransposeIndicesFeatures).info();
  in.layout = boxed.integer_list(rules::kTransposeIndicesLayout);
  in.indices = boxed.tensor(rules::kTransposeIndicesIndices).info();
  in.offsets = boxed.tensor(rules::kTransposeIndicesOffsets).info();
  in.per_sample_weights = boxed.tensor(rules::kTransposeIndicesPerSampleWeights).info();
  in.pooling = boxed.string(rules::kTransposeIndicesPooling);
  in.vbe_bag_offsets = boxed.tensor(rules::kTransposeIndicesVbeBagOffsets).info();
  in.vbe_output_offsets = boxed.tensor(rules::kTransposeIndicesVbeOutputOffsets).info();
  in.vbe_max_batch = boxed.integer(rules::kTransposeIndicesVbeMaxBatch);
  return in;
}

rules::BackwardUpdateArguments read_update(BoxedArguments& boxed) {
  rules::BackwardUpdateArguments in;
  in.grad_output = boxed.tensor(rules::kBackwardUpdateGradOutput).info();
  in.weights = boxed.tensor(rules::kBackwardUpdateWeights).info();
  in.features = boxed.tensor(rules::kBackwardUpdateFeatures).info();
  in.layout = boxed.integer_list(rules::kBackwardUpdateLayout);
  in.indices = boxed.tensor(rules::kBackwardUpdateIndices).info();
  in.offsets = boxed.tensor(rules::kBackwardUpdateOffsets).info();
  in.optimizer = boxed.string(rules::kBackwardUpdateOptimizer);
  in.learning_rate = boxed.tensor(rules::kBackwardUpdateLearningRate).info();
  in.momentum1 = boxed.tensor(rules::kBackwardUpdateMomentum1).info();
  in.momentum2 = boxed.tensor(rules::kBackwardUpdateMomentum2).info();
  in.step = boxed.tensor(rules::kBackwardUpdateStep).info();
  in.eps = boxed.real(rules::kBackwardUpdateEps);
  in.beta1 = boxed.real(rules::kBackwardUpdateBeta1);
  in.beta2 = boxed.real(rules::kBackwardUpdateBeta2);
  in.weight_decay = boxed.real(rules::kBackwardUpdateWeightDecay);
  in.weight_decay_mode = boxed.string(rules::kBackwardUpdateWeightDecayMode);
  in.per_sample_weights = boxed.tensor(rules::kBackwardUpdatePerSampleWeights).info();
  in.pooling = boxed.string(rules::kBackwardUpdatePooling);
  in.gradient_clip = boxed.real(rules::kBackwardUpdateGradientClip);
  in.gradient_scale = boxed.tensor(rules::kBackwardUpdateGradientScale).info();
  in.found_inf = boxed.tensor(rules::kBackwardUpdateFoundInf).info();
  in.vbe_bag_offsets = boxed.tensor(rules::kBackwardUpdateVbeBagOffsets).info();
  in.vbe_output_offsets = boxed.tensor(rules::kBackwardUpdateVbeOutputOffsets).info();
  in.vbe_max_batch = boxed.integer(rules::kBackwardUpdateVbeMaxBatch);
  in.transposed = boxed.tensor(rules::kBackwardUpdateTransposed).info();
  in.rounding_seed = boxed.tensor(rules::kBackwardUpdateRoundingSeed).info();
  in.small_tables = boxed.string(rules::kBackwardUpdateSmallTables);
  in.fused_long_runs = boxed.string(rules::kBackwardUpdateFusedLongRuns);
  if (aoti_torch_grad_mode_is_enabled()) {
    in.grad_output.requires_grad = boxed.tensor(rules::kBackwardUpdateGradOutput).requires_grad();
    in.weights.requires_grad = boxed.tensor(rules::kBackwardUpdateWeights).requires_grad();
    in.per_sample_weights.requires_grad =
        boxed.tensor(rules::kBackwardUpdatePerSampleWeights).requires_grad();
  }
  return in;
}

rules::PerSampleWeightsGradientArguments read_sample_weights(BoxedArguments& boxed) {
  rules::PerSampleWeightsGradientArguments in;
  in.grad_output = boxed.tensor(rules::kPerSampleWeightsGradientGradOutput).info();
  in.weights = boxed.tensor(rules::kPerSampleWeightsGradientWeights).info();
  in.features = boxed.tensor(rules::kPerSampleWeightsGradientFeatures).info();
  in.layout = boxed.integer_list(rules::kPerSampleWeightsGradientLayout);
  in.indices = boxed.tensor(rules::kPerSampleWeightsGradientIndices).info();
  in.offsets = boxed.tensor(rules::kPerSampleWeightsGradientOffsets).info();
  in.pooling = boxed.string(rules::kPerSampleWeightsGradientPooling);
  in.vbe_bag_offsets = boxed.tensor(rules::kPerSampleWeightsGradientVbeBagOffsets).info();
  in.vbe_output_offsets = boxed.tensor(rules::kPerSampleWeightsGradientVbeOutputOffsets).info();
  in.vbe_max_batch = boxed.integer(rules::kPerSampleWeightsGradientVbeMaxBatch);
  if (aoti_torch_grad_mode_is_enabled()) {
    in.grad_output.requires_grad =
        boxed.tensor(rules::kPerSampleWeightsGradientGradOutput).requires_grad();
    in.weights.requires_grad =
        boxed.tensor(rules::kPerSampleWeightsGradientWeights).requires_grad();
  }
  return in;
}

// Where the arguments that say who looked up what are in a call.
struct LookupPositions {
  size_t features, indices, offsets, vbe_bag_offsets, vbe_output_offsets;
};

// Fills in what requests say of the lookups; tensors that are not dense are replaced by copies.
template <typename Arguments, typename Request>
void describe_lookups(BoxedArguments& boxed, const LookupPositions& at, const Arguments& in,
                      Request& request) {
  const TensorDtype index_dtype = lookup_dtype(in.indices, in.offsets);
  request.index_width = index_dtype == TensorDtype::k_int32 ? 32 : 64;
  request.mean = in.pooling == "mean";
  request.features = boxed.tensor(at.features).data();
  request.indices = dense_data(boxed.tensor(at.indices), in.indices, index_dtype);
  request.offsets = dense_data(boxed.tensor(at.offsets), in.offsets, index_dtype);
  if (in.vbe) {
    request.vbe_bag_offsets = boxed.tensor(at.vbe_bag_offsets).data();
    request.vbe_output_offsets = boxed.tensor(at.vbe_output_offsets).data();
  }
  request.lookups = in.indices.numel;
  request.batch_size = in.batch_size;
  request.total_bags = in.total_bags;
}

// The same with the factors of the lookups.
template <typename Arguments>
TransposeRequest describe_transpose(BoxedArguments& boxed, const LookupPositions& at,
                                    size_t sample_weights, const Arguments& in) {
  TransposeRequest request;
  describe_lookups(boxed, at, in, request);
  if (in.weighted) {
    request.per_sample_weights =
        dense_data(boxed.tensor(sample_weights), in.per_sample_weights, TensorDtype::k_float32);
  }
  return request;
}

// Fills in what requests say of weights and gradient. A GPU has no kernels for every pair of
// dtypes: other gradients are widened.
template <typename Request>
void describe_gradient(StableTensor& gradient, const TensorInfo& gradient_info,
                       const TensorInfo& weights, Request& request) {
  request.weight_dtype = to_planner(weights.dtype);
  request.gradient_dtype = to_planner(gradient_info.dtype);
  TensorDtype dtype = gradient_info.dtype;
  if (weights.device_kind == DeviceKind::kCuda &&
      !has_gradient_variants(request.weight_dtype, request.gradient_dtype)) {
    request.gradient_dtype = Dtype::kFloat32;
    dtype = TensorDtype::k_float32;
  }
  request.gradient = dense_data(gradient, gradient_info, dtype);
}

// The address of a tensor that may be absent.
const void* optional_data(const StableTensor& tensor, const TensorInfo& info) {
  return info.given ? tensor.data() : nullptr;
}

void* optional_mutable_data(const StableTensor& tensor, const TensorInfo& info) {
  return info.given ? tensor.mutable_data() : nullptr;
}

BackwardUpdateRequest describe_update(BoxedArguments& boxed,
                                      const rules::BackwardUpdateArguments& in) {
  BackwardUpdateRequest request;
  describe_gradient(boxed.tensor(rules::kBackwardUpdateGradOutput), in.grad_output, in.weights,
                    request);
  request.optimizer = find_optimizer(in.optimizer);
  request.factored = in.factored;
  request.vbe = in.vbe;
  request.weights = boxed.tensor(rules::kBackwardUpdateWeights).mutable_data();
  request.momentum1 =
      optional_mutable_data(boxed.tensor(rules::kBackwardUpdateMomentum1), in.momentum1);
  request.momentum2 =
      optional_mutable_data(boxed.tensor(rules::kBackwardUpdateMomentum2), in.momentum2);
  request.step = optional_mutable_data(boxed.tensor(rules::kBackwardUpdateStep), in.step);
  request.rounding_seed =
      optional_mutable_data(boxed.tensor(rules::kBackwardUpdateRoundingSeed), in.rounding_seed);
  request.learning_rate = boxed.tensor(rules::kBackwardUpdateLearningRate).data();
  request.gradient_scale =
      optional_data(boxed.tensor(rules::kBackwardUpdateGradientScale), in.gradient_scale);
  request.found_inf = optional_data(boxed.tensor(rules::kBackwardUpdateFoundInf), in.found_inf);
  request.features = boxed.tensor(rules::kBackwardUpdateFeatures).data();
  request.transposed = optional_data(boxed.tensor(rules::kBackwardUpdateTransposed), in.transposed);
  request.lookups = in.indices.numel;
  request.total_bags = in.total_bags;
  request.gradient_numel = in.grad_output.numel;
  request.eps = static_cast<float>(in.eps);
  request.beta1 = in.beta1;
  request.beta2 = in.beta2;
  const auto decay = static_cast<float>(in.weight_decay);
  request.l2_decay = in.weight_decay_mode == "l2" ? decay : 0.0f;
  request.decoupled_decay = in.weight_decay_mode == "decoupled" ? decay : 0.0f;
  // A bound that fp32 has not is one all the same; 0 would be none.
  request.clip = in.gradient_clip > 0 ? std::max(static_cast<float>(in.gradient_clip),
                                                 std::numeric_limits<float>::denorm_min())
                                      : 0.0f;
  request.small_tables = to_small_tables(in.small_tables);
  request.fused_long_runs = to_fused_long_runs(in.fused_long_runs);
  return request;
}

// Memory on a device that lasts for a call, as words; every part starts at a multiple of 16 bytes.
StableTensor empty_words(int64_t bytes, const TensorInfo& where) {
  return empty_tensor({(bytes + 3) / 4}, TensorDtype::k_int32, where.device_kind,
                      where.device_index);
}

constexpr int64_t round_up(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// Plans and launches an update. All temporaries are one allocation.
void launch_update(BackwardUpdateRequest& request, TransposeRequest& transpose,
                   const Layout& layout, const TensorInfo& where) {
  const int32_t device = where.device_index;
  void* stream = current_cuda_stream(device);
  request.arch = device_arch(device);
  request.multiprocessors = device_multiprocessors(device);
  transpose.arch = request.arch;
  StableTensor workspace;
  if (request.transposed == nullptr) request.transpose = &transpose;
  if (const int64_t bytes = small_table_bytes(request, layout); bytes > 0) {
    workspace = empty_words(bytes, where);
    request.partials = workspace.mutable_data();
  } else if (request.lookups > 0 && request.total_bags > 0) {
    int64_t transposed_bytes = 0;
    int64_t scratch_bytes = 0;
    if (request.transposed == nullptr) {
      const TransposedFormat format =
          transposed_format(request.lookups, layout.feature_count(), request.factored);
      transposed_bytes = round_up(format.numel * static_cast<int64_t>(sizeof(int32_t)));
      scratch_bytes = transpose_scratch_bytes(transpose, layout);
    }
    const int64_t counts_bytes = counters_bytes(request, layout);
    const int64_t sums_bytes = partials_bytes(request.lookups, layout);
    workspace = empty_words(transposed_bytes + counts_bytes + scratch_bytes + sums_bytes, where);
    auto* start = static_cast<unsigned char*>(workspace.mutable_data());
    if (request.transposed == nullptr) {
      transpose.transposed = start;
      transpose.scratch = start + transposed_bytes + counts_bytes;
      request.transposed = start;
    }
    request.counters = start + transposed_bytes;
    request.partials = start + transposed_bytes + counts_bytes + scratch_bytes;
  }
  run(plan_backward_update(request, layout), device, stream);
}

constexpr LookupPositions kTransposePositions{
    rules::kTransposeIndicesFeatures, rules::kTransposeIndicesIndices,
    rules::kTransposeIndicesOffsets, rules::kTransposeIndicesVbeBagOffsets,
    rules::kTransposeIndicesVbeOutputOffsets};
constexpr LookupPositions kUpdatePositions{
    rules::kBackwardUpdateFeatures, rules::kBackwardUpdateIndices, rules::kBackwardUpdateOffsets,
    rules::kBackwardUpdateVbeBagOffsets, rules::kBackwardUpdateVbeOutputOffsets};
constexpr LookupPositions kSampleWeightsPositions{
    rules::kPerSampleWeightsGradientFeatures, rules::kPerSampleWeightsGradientIndices,
    rules::kPerSampleWeightsGradientOffsets, rules::kPerSampleWeightsGradientVbeBagOffsets,
    rules::kPerSampleWeightsGradientVbeOutputOffsets};

}  // namespace

void transpose_indices(StableIValue* stack, uint64_t argument_count, uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kTransposeIndicesKinds,
                       rules::kTransposeIndicesArgumentCount);
  rules::TransposeIndicesArguments in = read_transpose(boxed);
  rules::accept_transpose_indices(in);
  const Layout layout(in.layout.values, static_cast<size_t>(in.layout.count));
  const TensorInfo& where = in.features;
  TransposeRequest request =
      describe_transpose(boxed, kTransposePositions, rules::kTransposeIndicesPerSampleWeights, in);
  const TransposedFormat format =
      transposed_format(request.lookups, layout.feature_count(), in.factored);
  StableTensor result =
      empty_tensor({format.numel}, TensorDtype::k_int32, where.device_kind, where.device_index);
  request.transposed = result.mutable_data();
  if (where.device_kind == DeviceKind::kCpu) {
    cpu::transpose_indices(request, layout);
  } else {
    void* stream = current_cuda_stream(where.device_index);
    request.arch = device_arch(where.device_index);
    const StableTensor scratch = empty_words(transpose_scratch_bytes(request, layout), where);
    request.scratch = scratch.mutable_data();
    run(plan_transpose(request, layout), where.device_index, stream);
  }
  return_tensor(&stack[0], std::move(result));
}

void backward_update(StableIValue* stack, uint64_t argument_count, uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kBackwardUpdateKinds,
                       rules::kBackwardUpdateArgumentCount);
  rules::BackwardUpdateArguments in = read_update(boxed);
  rules::accept_backward_update(in);
  const Layout layout(in.layout.values, static_cast<size_t>(in.layout.count));

  // In the numbers of the optimizer, too.
  const cpu::SubnormalsCount subnormals;
  BackwardUpdateRequest request = describe_update(boxed, in);
  TransposeRequest lookups =
      describe_transpose(boxed, kUpdatePositions, rules::kBackwardUpdatePerSampleWeights, in);
  if (in.weights.device_kind == DeviceKind::kCpu) {
    cpu::backward_update(request, lookups, layout);
  } else {
    launch_update(request, lookups, layout, in.weights);
  }
}

void per_sample_weights_gradient(StableIValue* stack, uint64_t argument_count,
                                 uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kPerSampleWeightsGradientKinds,
                       rules::kPerSampleWeightsGradientArgumentCount);
  rules::PerSampleWeightsGradientArguments in = read_sample_weights(boxed);
  rules::accept_per_sample_weights_gradient(in);
  const Layout layout(in.layout.values, static_cast<size_t>(in.layout.count));
  const TensorInfo& where = in.weights;
  StableTensor result = empty_tensor({in.indices.numel}, TensorDtype::k_float32, where.device_kind,
                                     where.device_index);

  SampleWeightsGradientRequest request;
  describe_gradient(boxed.tensor(rules::kPerSampleWeightsGradientGradOutput), in.grad_output,
                    in.weights, request);
  describe_lookups(boxed, kSampleWeightsPositions, in, request);
  request.weights = boxed.tensor(rules::kPerSampleWeightsGradientWeights).data();
  request.result = result.mutable_data();
  if (where.device_kind == DeviceKind::kCpu) {
    cpu::per_sample_weights_gradient(request, layout, in.grad_output.numel);
  } else {
    void* stream = current_cuda_stream(where.device_index);
    request.arch = device_arch(where.device_index);
    run(plan_per_sample_weights_gradient(request, layout), where.device_index, stream);
  }
  return_tensor(&stack[0], std::move(result));
}

}  // namespace tbe_aot
