#include "ops/check_bounds.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/launcher.h"
#include "core/layout.h"
#include "core/planner.h"
#include "cpu/bags.h"
#include "cpu/check_bounds.h"
#include "operator_rules.h"
#include "ops/cuda_stream.h"
#include "ops/request.h"
#include "ops/stable_tensor.h"

namespace tbe_aot {
namespace {

constexpr char kOperator[] = "tbe_aot::check_bounds";

rules::CheckBoundsArguments read_arguments(BoxedArguments& boxed) {
  rules::CheckBoundsArguments in;
  in.indices = boxed.tensor(rules::kCheckBoundsIndices).info();
  in.offsets = boxed.tensor(rules::kCheckBoundsOffsets).info();
  in.features = boxed.tensor(rules::kCheckBoundsFeatures).info();
  in.layout = boxed.integer_list(rules::kCheckBoundsLayout);
  in.bounds_mode = boxed.string(rules::kCheckBoundsBoundsMode);
  in.invalid_count = boxed.tensor(rules::kCheckBoundsInvalidCount).info();
  in.vbe_bag_offsets = boxed.tensor(rules::kCheckBoundsVbeBagOffsets).info();
  return in;
}

// The elements of a 1-D tensor of indices or offsets as int64 on the host.
std::vector<int64_t> host_values(const StableTensor& tensor) {
  const StableTensor host = tensor.dense(TensorDtype::k_int64).to_cpu();
  const auto* data = static_cast<const int64_t*>(host.data());
  return {data, data + host.info().numel};
}

// Throws Error about the first bad offset, else about the first invalid index. The tensors may be
// on a device: they are read after the report told that something is wrong.
[[noreturn]] void refuse(const rules::CheckBoundsArguments& in, const int64_t* report,
                         const StableTensor& indices, const StableTensor& offsets,
                         const StableTensor& checked_offsets, const StableTensor& features,
                         const StableTensor& vbe_bag_offsets) {
  const std::vector<int64_t> given = host_values(offsets);
  const std::vector<int64_t> checked = host_values(checked_offsets);
  const std::vector<int64_t> metadata = host_values(features);
  const std::vector<int64_t> bag_offsets =
      in.vbe ? host_values(vbe_bag_offsets) : std::vector<int64_t>();
  const cpu::Bags bags(kOperator, in.feature_count, in.batch_size, in.total_bags,
                       in.vbe ? bag_offsets.data() : nullptr);
  if (report[kFirstBadOffset] != 0) {
    const int64_t entry = in.offsets.numel - report[kFirstBadOffset];
    const int64_t before = entry > 0 ? given[static_cast<size_t>(entry - 1)] : 0;
    const std::string expected =
        entry == in.total_bags
            ? join(in.indices.numel, ", the number of indices")
            : join("from ", std::max<int64_t>(before, 0), " to ", in.indices.numel);
    if (in.total_bags == 0) {
      fail(kOperator, ": offsets[0] is ", given[0], ", expected ", expected);
    }
    const int64_t bag = std::min(entry, in.total_bags - 1);
    const int64_t feature = bags.feature_of(bag);
    fail(kOperator, ": offsets[", entry, "] is ", given[static_cast<size_t>(entry)], ", expected ",
         expected, " (feature ", feature, ", bag ", bag - bags.of_feature(feature).first, ")");
  }
  const int64_t position = in.indices.numel - report[kFirstInvalidIndex];
  const int64_t index = host_values(indices)[static_cast<size_t>(position)];
  const int64_t bag =
      std::upper_bound(checked.begin(), checked.end(), position) - checked.begin() - 1;
  const int64_t feature = bags.feature_of(bag);
  const int64_t* row = cpu::features_by_position(kOperator, metadata.data(),
                                                 in.feature_count)[static_cast<size_t>(feature)];
  fail(kOperator, ": index ", index, " at position ", position, " (feature ", feature, ", bag ",
       bag - bags.of_feature(feature).first, ") is out of bounds, expected -1 to ", row[kRows] - 1);
}

}  // namespace

void check_bounds(StableIValue* stack, uint64_t argument_count, uint64_t /*result_count*/) {
  BoxedArguments boxed(stack, argument_count, rules::kCheckBoundsKinds,
                       rules::kCheckBoundsArgumentCount);
  rules::CheckBoundsArguments in = read_arguments(boxed);
  rules::accept_check_bounds(in);
  StableTensor& indices = boxed.tensor(rules::kCheckBoundsIndices);
  StableTensor& offsets = boxed.tensor(rules::kCheckBoundsOffsets);
  const StableTensor& features = boxed.tensor(rules::kCheckBoundsFeatures);
  const StableTensor& invalid_count = boxed.tensor(rules::kCheckBoundsInvalidCount);
  const StableTensor& vbe_bag_offsets = boxed.tensor(rules::kCheckBoundsVbeBagOffsets);
  const TensorDtype dtype = in.indices.dtype;
  if (in.bounds_mode == "none") {
    return_tensor(&stack[0], indices.clone());
    return_tensor(&stack[1], in.offsets.dtype == dtype ? offsets.clone() : offsets.dense(dtype));
    return;
  }

  const bool fatal = in.bounds_mode == "fatal";
  const DeviceKind kind = in.features.device_kind;
  const int32_t device = in.features.device_index;
  void* stream = kind == DeviceKind::kCuda ? current_cuda_stream(device) : nullptr;
  if (fatal && kind == DeviceKind::kCuda && is_capturing(device, stream)) {
    fail(kOperator,
         ": bounds_mode 'fatal' waits for the device, which a CUDA graph capture forbids; ",
         "use 'warning' or 'ignore' while capturing");
  }
  const TensorDtype wide = checked_dtype(in.indices, in.offsets);
  StableTensor checked_indices = empty_tensor({in.indices.numel}, wide, kind, device);
  StableTensor checked_offsets = empty_tensor({in.offsets.numel}, wide, kind, device);
  const StableTensor report = empty_tensor({kReportSize}, TensorDtype::k_int64, kind, device);

  CheckBoundsRequest request;
  request.index_width = wide == TensorDtype::k_int32 ? 32 : 64;
  request.indices = dense_data(indices, in.indices, wide);
  request.offsets = dense_data(offsets, in.offsets, wide);
  request.features = features.data();
  request.vbe_bag_offsets = in.vbe ? vbe_bag_offsets.data() : nullptr;
  request.indices_out = checked_indices.mutable_data();
  request.offsets_out = checked_offsets.mutable_data();
  request.report = report.mutable_data();
  request.invalid_count =
      in.invalid_count.given && in.bounds_mode != "ignore" ? invalid_count.mutable_data() : nullptr;
  request.feature_count = in.feature_count;
  request.lookups = in.indices.numel;
  request.offsets_numel = in.offsets.numel;
  request.batch_size = in.batch_size;

  int64_t verdict[kReportSize];
  if (kind == DeviceKind::kCpu) {
    cpu::check_bounds(kOperator, request);
    std::copy_n(static_cast<const int64_t*>(report.data()), kReportSize, verdict);
  } else {
    request.arch = device_arch(device);
    run(plan_check_bounds(request), device, stream);
    if (fatal) copy_to_host(verdict, report.data(), sizeof(verdict), device, stream);
  }
  if (fatal && (verdict[kFirstBadOffset] != 0 || verdict[kFirstInvalidIndex] != 0)) {
    refuse(in, verdict, indices, offsets, checked_offsets, features, vbe_bag_offsets);
  }
  return_tensor(&stack[0], checked_indices.dense(dtype));
  return_tensor(&stack[1], checked_offsets.dense(dtype));
}

}  // namespace tbe_aot
