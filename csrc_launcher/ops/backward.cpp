#include "ops/backward.h"

#include <utility>

#include "core/layout.h"
#include "cpu/backward.h"
#include "cpu/dispatch.h"
#include "cpu/subnormals.h"
#include "operator_rules.h"
#include "ops/request.h"
#include "ops/stable_tensor.h"

namespace tbe_aot {
namespace {

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

// Where the arguments that both operators have are in a call.
struct Positions {
  size_t grad_output, features, indices, offsets, vbe_bag_offsets, vbe_output_offsets;
};

// Fills in what both operators ask for; tensors that are not dense are replaced by copies.
template <typename Arguments>
void describe(BoxedArguments& boxed, const Positions& at, const Arguments& in,
              cpu::GradientRequest& request) {
  const TensorDtype index_dtype = lookup_dtype(in.indices, in.offsets);
  request.gradient_dtype = to_planner(in.grad_output.dtype);
  request.weight_dtype = to_planner(in.weights.dtype);
  request.mean = in.pooling == "mean";
  request.gradient = dense_data(boxed.tensor(at.grad_output), in.grad_output, in.grad_output.dtype);
  request.gradient_numel = in.grad_output.numel;
  cpu::LookupArguments& lookups = request.lookups;
  lookups.index_width = index_dtype == TensorDtype::k_int32 ? 32 : 64;
  lookups.element_size = cpu::element_size(request.weight_dtype);
  lookups.features = boxed.tensor(at.features).data();
  lookups.indices = dense_data(boxed.tensor(at.indices), in.indices, index_dtype);
  lookups.offsets = dense_data(boxed.tensor(at.offsets), in.offsets, index_dtype);
  if (in.vbe) {
    lookups.vbe_bag_offsets = boxed.tensor(at.vbe_bag_offsets).data();
    lookups.vbe_output_offsets = boxed.tensor(at.vbe_output_offsets).data();
  }
  lookups.lookups = in.indices.numel;
  lookups.batch_size = in.batch_size;
  lookups.total_bags = in.total_bags;
}

// The address of a tensor of fp32; null when it was not given.
float* floats(const StableTensor& tensor, const TensorInfo& info) {
  return info.given ? static_cast<float*>(tensor.mutable_data()) : nullptr;
}

}  // namespace

void backward_update(StableIValue* stack, uint64_t argument_count, uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kBackwardUpdateKinds,
                       rules::kBackwardUpdateArgumentCount);
  rules::BackwardUpdateArguments in = read_update(boxed);
  rules::accept_backward_update(in);
  const Layout layout(in.layout.values, static_cast<size_t>(in.layout.count));

  // In the numbers of the optimizer, too.
  const cpu::SubnormalsCount subnormals;
  cpu::UpdateRequest request;
  describe(boxed,
           {rules::kBackwardUpdateGradOutput, rules::kBackwardUpdateFeatures,
            rules::kBackwardUpdateIndices, rules::kBackwardUpdateOffsets,
            rules::kBackwardUpdateVbeBagOffsets, rules::kBackwardUpdateVbeOutputOffsets},
           in, request);
  request.weights = boxed.tensor(rules::kBackwardUpdateWeights).mutable_data();
  if (in.weighted) {
    request.per_sample_weights =
        static_cast<const float*>(dense_data(boxed.tensor(rules::kBackwardUpdatePerSampleWeights),
                                             in.per_sample_weights, TensorDtype::k_float32));
  }
  request.gradient_clip = static_cast<float>(in.gradient_clip);
  request.gradient_scale =
      floats(boxed.tensor(rules::kBackwardUpdateGradientScale), in.gradient_scale);
  request.found_inf = floats(boxed.tensor(rules::kBackwardUpdateFoundInf), in.found_inf);
  request.optimizer = in.optimizer;
  if (in.step.given) {
    request.step = static_cast<int64_t*>(boxed.tensor(rules::kBackwardUpdateStep).mutable_data());
  }
  cpu::OptimizerArguments& arguments = request.arguments;
  arguments.learning_rate =
      *floats(boxed.tensor(rules::kBackwardUpdateLearningRate), in.learning_rate);
  arguments.eps = static_cast<float>(in.eps);
  arguments.beta1 = in.beta1;
  arguments.beta2 = in.beta2;
  const auto decay = static_cast<float>(in.weight_decay);
  arguments.l2_decay = in.weight_decay_mode == "l2" ? decay : 0.0f;
  arguments.decoupled_decay = in.weight_decay_mode == "decoupled" ? decay : 0.0f;
  arguments.momentum1 = floats(boxed.tensor(rules::kBackwardUpdateMomentum1), in.momentum1);
  arguments.momentum2 = floats(boxed.tensor(rules::kBackwardUpdateMomentum2), in.momentum2);
  cpu::backward_update(request, layout);
}

void per_sample_weights_gradient(StableIValue* stack, uint64_t argument_count,
                                 uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kPerSampleWeightsGradientKinds,
                       rules::kPerSampleWeightsGradientArgumentCount);
  rules::PerSampleWeightsGradientArguments in = read_sample_weights(boxed);
  rules::accept_per_sample_weights_gradient(in);
  const Layout layout(in.layout.values, static_cast<size_t>(in.layout.count));
  StableTensor result = empty_tensor({in.indices.numel}, TensorDtype::k_float32,
                                     in.weights.device_kind, in.weights.device_index);

  cpu::SampleWeightsRequest request;
  describe(boxed,
           {rules::kPerSampleWeightsGradientGradOutput, rules::kPerSampleWeightsGradientFeatures,
            rules::kPerSampleWeightsGradientIndices, rules::kPerSampleWeightsGradientOffsets,
            rules::kPerSampleWeightsGradientVbeBagOffsets,
            rules::kPerSampleWeightsGradientVbeOutputOffsets},
           in, request);
  request.weights = boxed.tensor(rules::kPerSampleWeightsGradientWeights).data();
  request.result = static_cast<float*>(result.mutable_data());
  cpu::per_sample_weights_gradient(request, layout);
  return_tensor(&stack[0], std::move(result));
}

}  // namespace tbe_aot
