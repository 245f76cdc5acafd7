#include "ops/forward.h"

#include <utility>

#include "core/launcher.h"
#include "core/layout.h"
#include "core/planner.h"
#include "cpu/forward.h"
#include "operator_rules.h"
#include "ops/cuda_stream.h"
#include "ops/request.h"
#include "ops/stable_tensor.h"

namespace tbe_aot {
namespace {

rules::ForwardArguments read_arguments(BoxedArguments& boxed) {
  rules::ForwardArguments in;
  in.weights = boxed.tensor(rules::kForwardWeights).info();
  in.features = boxed.tensor(rules::kForwardFeatures).info();
  in.layout = boxed.integer_list(rules::kForwardLayout);
  in.indices = boxed.tensor(rules::kForwardIndices).info();
  in.offsets = boxed.tensor(rules::kForwardOffsets).info();
  in.per_sample_weights = boxed.tensor(rules::kForwardPerSampleWeights).info();
  in.pooling = boxed.string(rules::kForwardPooling);
  in.output_dtype = boxed.string(rules::kForwardOutputDtype);
  in.vbe_bag_offsets = boxed.tensor(rules::kForwardVbeBagOffsets).info();
  in.vbe_output_offsets = boxed.tensor(rules::kForwardVbeOutputOffsets).info();
  in.vbe_max_batch = boxed.integer(rules::kForwardVbeMaxBatch);
  in.vbe_output_numel = boxed.integer(rules::kForwardVbeOutputNumel);
  in.small_tables = boxed.string(rules::kForwardSmallTables);
  in.work_stealing = boxed.string(rules::kForwardWorkStealing);
  if (aoti_torch_grad_mode_is_enabled()) {
    in.weights.requires_grad = boxed.tensor(rules::kForwardWeights).requires_grad();
    in.per_sample_weights.requires_grad =
        boxed.tensor(rules::kForwardPerSampleWeights).requires_grad();
  }
  return in;
}

}  // namespace

void forward(StableIValue* stack, uint64_t argument_count, uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kForwardKinds, rules::kForwardArgumentCount);
  rules::ForwardArguments in = read_arguments(boxed);
  rules::accept_forward(in);
  const Layout layout(in.layout.values, static_cast<size_t>(in.layout.count));

  const TensorInfo& where = in.weights;
  const TensorDtype index_dtype = lookup_dtype(in.indices, in.offsets);
  const TensorDtype output_dtype = to_tensor_dtype(in.output_dtype);
  StableTensor output = in.vbe ? empty_tensor({in.vbe_output_numel}, output_dtype,
                                              where.device_kind, where.device_index)
                               : empty_tensor({in.batch_size, in.output_width}, output_dtype,
                                              where.device_kind, where.device_index);

  if (in.total_bags == 0) {
    return_tensor(&stack[0], std::move(output));
    return;
  }

  ForwardRequest request;
  request.weight_dtype = to_planner(in.weights.dtype);
  request.output_dtype = to_planner(output_dtype);
  request.index_width = index_dtype == TensorDtype::k_int32 ? 32 : 64;
  request.mean = in.pooling == "mean";
  request.output = output.mutable_data();
  request.weights = boxed.tensor(rules::kForwardWeights).data();
  request.features = boxed.tensor(rules::kForwardFeatures).data();
  request.indices = dense_data(boxed.tensor(rules::kForwardIndices), in.indices, index_dtype);
  request.offsets = dense_data(boxed.tensor(rules::kForwardOffsets), in.offsets, index_dtype);
  if (in.weighted) {
    request.per_sample_weights = dense_data(boxed.tensor(rules::kForwardPerSampleWeights),
                                            in.per_sample_weights, TensorDtype::k_float32);
  }
  if (in.vbe) {
    request.vbe_bag_offsets = boxed.tensor(rules::kForwardVbeBagOffsets).data();
    request.vbe_output_offsets = boxed.tensor(rules::kForwardVbeOutputOffsets).data();
  }
  request.lookups = in.indices.numel;
  request.batch_size = in.batch_size;
  request.total_bags = in.total_bags;
  request.small_tables = to_small_tables(in.small_tables);
  request.work_stealing = in.work_stealing == "always";

  if (where.device_kind == DeviceKind::kCpu) {
    cpu::forward(request, layout, in.vbe_output_numel);
  } else {
    void* stream = current_cuda_stream(where.device_index);
    request.arch = device_arch(where.device_index);
    run(plan_forward(request, layout), where.device_index, stream);
  }
  return_tensor(&stack[0], std::move(output));
}

}  // namespace tbe_aot
