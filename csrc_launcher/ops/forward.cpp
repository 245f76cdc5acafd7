#include "ops/forward.h"

#include <utility>

#include "core/launcher.h"
#include "core/layout.h"
#include "core/planner.h"
#include "cpu/check_bounds.h"
#include "cpu/forward.h"
#include "operator_rules.h"
#include "ops/cuda_stream.h"
#include "ops/request.h"
#include "ops/stable_tensor.h"

namespace tbe_aot {
namespace {

constexpr char kForward[] = "tbe_aot::forward";
constexpr char kForwardChecked[] = "tbe_aot::forward_checked";

// The arguments of forward_checked begin with those of forward.
static_assert(rules::kForwardCheckedWorkStealing == rules::kForwardWorkStealing &&
              rules::kForwardCheckedWorkStealing == rules::kForwardArgumentCount - 1);

// Those that both operators have.
template <typename Arguments>
Arguments read_arguments(BoxedArguments& boxed) {
  Arguments in;
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

template <typename Arguments>
StableTensor empty_output(const Arguments& in) {
  const TensorDtype dtype = to_tensor_dtype(in.output_dtype);
  const TensorInfo& where = in.weights;
  return in.vbe ? empty_tensor({in.vbe_output_numel}, dtype, where.device_kind, where.device_index)
                : empty_tensor({in.batch_size, in.output_width}, dtype, where.device_kind,
                               where.device_index);
}

// All of the request but the arch, the indices and the offsets.
template <typename Arguments>
ForwardRequest make_request(BoxedArguments& boxed, const Arguments& in, TensorDtype index_dtype,
                            StableTensor& output) {
  ForwardRequest request;
  request.weight_dtype = to_planner(in.weights.dtype);
  request.output_dtype = to_planner(to_tensor_dtype(in.output_dtype));
  request.index_width = index_dtype == TensorDtype::k_int32 ? 32 : 64;
  request.mean = in.pooling == "mean";
  request.output = output.mutable_data();
  request.weights = boxed.tensor(rules::kForwardWeights).data();
  request.features = boxed.tensor(rules::kForwardFeatures).data();
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
  return request;
}

}  // namespace

void forward(StableIValue* stack, uint64_t argument_count, uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kForwardKinds, rules::kForwardArgumentCount);
  auto in = read_arguments<rules::ForwardArguments>(boxed);
  rules::accept_forward(in);
  const Layout layout(in.layout.values, static_cast<size_t>(in.layout.count));

  StableTensor output = empty_output(in);
  if (in.total_bags == 0) {
    return_tensor(&stack[0], std::move(output));
    return;
  }

  const TensorInfo& where = in.weights;
  const TensorDtype index_dtype = lookup_dtype(in.indices, in.offsets);
  ForwardRequest request = make_request(boxed, in, index_dtype, output);
  request.indices = dense_data(boxed.tensor(rules::kForwardIndices), in.indices, index_dtype);
  request.offsets = dense_data(boxed.tensor(rules::kForwardOffsets), in.offsets, index_dtype);
  if (where.device_kind == DeviceKind::kCpu) {
    cpu::forward(kForward, request, layout, in.vbe_output_numel);
  } else {
    void* stream = current_cuda_stream(where.device_index);
    request.arch = device_arch(where.device_index);
    run(plan_forward(request, layout), where.device_index, stream);
  }
  return_tensor(&stack[0], std::move(output));
}

void forward_checked(StableIValue* stack, uint64_t argument_count, uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kForwardCheckedKinds,
                       rules::kForwardCheckedArgumentCount);
  auto in = read_arguments<rules::ForwardCheckedArguments>(boxed);
  in.bounds_mode = boxed.string(rules::kForwardCheckedBoundsMode);
  in.invalid_count = boxed.tensor(rules::kForwardCheckedInvalidCount).info();
  in.fused_checks = boxed.string(rules::kForwardCheckedFusedChecks);
  rules::accept_forward_checked(in);
  const Layout layout(in.layout.values, static_cast<size_t>(in.layout.count));

  const DeviceKind kind = in.weights.device_kind;
  const int32_t device = in.weights.device_index;
  const TensorDtype wide = checked_dtype(in.indices, in.offsets);
  StableTensor output = empty_output(in);
  StableTensor checked_offsets = empty_tensor({in.offsets.numel}, wide, kind, device);
  StableTensor checked_indices;
  const StableTensor report = empty_tensor({kReportSize}, TensorDtype::k_int64, kind, device);

  ForwardRequest request = make_request(boxed, in, wide, output);
  CheckBoundsRequest check;
  check.index_width = request.index_width;
  check.indices = dense_data(boxed.tensor(rules::kForwardIndices), in.indices, wide);
  check.offsets = dense_data(boxed.tensor(rules::kForwardOffsets), in.offsets, wide);
  check.features = request.features;
  check.vbe_bag_offsets = request.vbe_bag_offsets;
  check.offsets_out = checked_offsets.mutable_data();
  check.report = report.mutable_data();
  if (in.invalid_count.given && in.bounds_mode == "warning") {
    check.invalid_count = boxed.tensor(rules::kForwardCheckedInvalidCount).mutable_data();
  }
  check.feature_count = in.feature_count;
  check.lookups = in.indices.numel;
  check.offsets_numel = in.offsets.numel;
  check.batch_size = in.batch_size;
  request.check = &check;
  request.fused_checks = to_fused_checks(in.fused_checks);

  const bool on_cpu = kind == DeviceKind::kCpu;
  if (!on_cpu) request.arch = check.arch = device_arch(device);
  if (on_cpu || !fuses_checks(request, layout)) {
    checked_indices = empty_tensor({in.indices.numel}, wide, kind, device);
    check.indices_out = checked_indices.mutable_data();
  }
  if (on_cpu) {
    // Counted in the report, and by the caller only where the lookup was right, too.
    void* counter = std::exchange(check.invalid_count, nullptr);
    cpu::check_bounds(kForwardChecked, check);
    request.indices = check.indices_out;
    request.offsets = check.offsets_out;
    if (in.total_bags > 0) {
      cpu::forward(kForwardChecked, request, layout, in.vbe_output_numel);
    }
    if (counter != nullptr) cpu::add_invalid_indices(check, counter);
  } else {
    run(plan_forward(request, layout), device, current_cuda_stream(device));
  }
  return_tensor(&stack[0], std::move(output));
  return_tensor(&stack[1], checked_offsets.dense(in.indices.dtype));
}

}  // namespace tbe_aot
