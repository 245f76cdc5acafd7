// `tbe_aot._launcher`: the launcher core, shown to Python through its C interface. What a build
// holds, what is loaded, how a call is planned and why. The operators do not go through here.
// Signatures and docstrings are in python/tbe_aot/_launcher.pyi.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/c_api.h"
#include "core/sha256.h"

namespace py = pybind11;

namespace {

using tbe_aot::AxisInfo;
using tbe_aot::BuildInfo;
using tbe_aot::KernelInfo;
using tbe_aot::VariantInfo;

void check(int status) {
  if (status != 0) throw std::runtime_error(tbe_aot_last_error());
}

const BuildInfo& build() { return *tbe_aot_build_info(); }

const void* pointer(uintptr_t address) { return reinterpret_cast<const void*>(address); }

void* mutable_pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

void* stream_handle(uintptr_t address) { return reinterpret_cast<void*>(address); }

template <typename Name>
std::string list_names(int32_t count, Name name) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::string(name(i));
  return text;
}

int32_t find_arch(const std::string& name) {
  for (int32_t i = 0; i < build().arch_count; ++i) {
    if (name == build().archs[i].name) return i;
  }
  throw py::value_error(
      "no arch '" + name + "' in this build; it holds " +
      list_names(build().arch_count, [](int32_t i) { return build().archs[i].name; }));
}

int32_t find_kernel(const std::string& name) {
  for (int32_t i = 0; i < build().kernel_count; ++i) {
    if (name == build().kernels[i].name) return i;
  }
  throw py::value_error(
      "no kernel '" + name + "' in this build; it holds " +
      list_names(build().kernel_count, [](int32_t i) { return build().kernels[i].name; }));
}

tbe_aot::Dtype find_dtype(const std::string& name) {
  if (name == "fp32") return tbe_aot::Dtype::kFloat32;
  if (name == "fp16") return tbe_aot::Dtype::kFloat16;
  if (name == "bf16") return tbe_aot::Dtype::kBFloat16;
  throw py::value_error("no dtype '" + name + "'; allowed are fp32, fp16, bf16");
}

tbe_aot::Optimizer find_optimizer(const std::string& name) {
  if (name == "sgd") return tbe_aot::Optimizer::kSgd;
  if (name == "rowwise_adagrad") return tbe_aot::Optimizer::kRowwiseAdagrad;
  if (name == "adagrad") return tbe_aot::Optimizer::kAdagrad;
  if (name == "adam") return tbe_aot::Optimizer::kAdam;
  throw py::value_error("no optimizer '" + name +
                        "'; allowed are sgd, rowwise_adagrad, adagrad, adam");
}

// --- What the build holds
// --------------------------------------------------------------------------

struct Arch {
  std::string name;
  int32_t major;
  int32_t minor;
  std::string pack_file;
  std::string index_sha256;
};

struct Blob {
  std::string sha256;
  uint64_t offset;
  uint64_t size;
};

struct PackView {
  std::string arch;
  std::string path;
  uint64_t file_size;
  std::vector<Blob> blobs;
};

struct Param {
  std::string name;
  std::string type;
  uint32_t offset;
  uint32_t size;
};

struct Kernel {
  std::string name;
  std::vector<std::pair<std::string, std::vector<std::string>>> axes;
  std::vector<Param> params;
  uint32_t args_size;
  int32_t variant_count;
};

struct Variant {
  std::string name;
  std::string kernel;
  std::string arch;
  std::string entry;
  std::optional<int32_t> blob;
  int32_t num_warps;
  int32_t shared_bytes;
  std::map<std::string, int32_t> constants;
};

std::vector<Arch> archs() {
  std::vector<Arch> result;
  for (int32_t i = 0; i < build().arch_count; ++i) {
    const tbe_aot::ArchInfo& arch = build().archs[i];
    result.push_back(
        {arch.name, arch.major, arch.minor, arch.pack_file, tbe_aot::to_hex(arch.index_sha256)});
  }
  return result;
}

const tbe_aot::Pack* open_pack(int32_t arch) {
  const tbe_aot::Pack* pack = nullptr;
  check(tbe_aot_pack(arch, &pack));
  return pack;
}

std::vector<PackView> packs() {
  std::vector<PackView> result;
  for (int32_t arch = 0; arch < build().arch_count; ++arch) {
    const tbe_aot::Pack* pack = open_pack(arch);
    PackView view{
        build().archs[arch].name, tbe_aot_pack_path(pack), tbe_aot_pack_file_size(pack), {}};
    for (int32_t i = 0; i < tbe_aot_pack_blob_count(pack); ++i) {
      const tbe_aot::PackBlob* blob = tbe_aot_pack_blob(pack, i);
      view.blobs.push_back({tbe_aot::to_hex(blob->sha256), blob->offset, blob->size});
    }
    result.push_back(std::move(view));
  }
  return result;
}

std::map<std::string, int32_t> verify() {
  std::map<std::string, int32_t> checked;
  for (int32_t arch = 0; arch < build().arch_count; ++arch) {
    const tbe_aot::Pack* pack = open_pack(arch);
    const int32_t count = tbe_aot_pack_blob_count(pack);
    for (int32_t i = 0; i < count; ++i) check(tbe_aot_pack_verify(pack, i));
    checked[build().archs[arch].name] = count;
  }
  return checked;
}

std::vector<Kernel> kernels() {
  std::vector<Kernel> result;
  for (int32_t k = 0; k < build().kernel_count; ++k) {
    const KernelInfo& info = build().kernels[k];
    Kernel kernel{info.name, {}, {}, info.args_size, info.variant_count};
    for (int32_t i = 0; i < info.axis_count; ++i) {
      const AxisInfo& axis = info.axes[i];
      kernel.axes.emplace_back(axis.name,
                               std::vector<std::string>(axis.labels, axis.labels + axis.size));
    }
    for (int32_t i = 0; i < info.param_count; ++i) {
      const tbe_aot::ParamInfo& param = info.params[i];
      kernel.params.push_back({param.name, param.type, param.offset, param.size});
    }
    result.push_back(std::move(kernel));
  }
  return result;
}

py::dict axes_dict(const Kernel& kernel) {
  py::dict axes;
  for (const auto& [name, labels] : kernel.axes) axes[py::str(name)] = labels;
  return axes;
}

Variant make_variant(int32_t arch, int32_t kernel, int32_t variant) {
  const KernelInfo& info = build().kernels[kernel];
  const VariantInfo& entry = info.variants[arch][variant];
  Variant result{entry.name, info.name,       build().archs[arch].name, entry.entry,
                 {},         entry.num_warps, entry.shared_bytes,       {}};
  if (entry.blob >= 0) result.blob = entry.blob;
  for (int32_t i = 0; i < info.constant_count; ++i) {
    result.constants[info.constant_names[i]] = entry.constants[i];
  }
  return result;
}

std::vector<Variant> variants(const std::string& kernel_name, const std::string& arch_name) {
  const int32_t kernel = find_kernel(kernel_name);
  const int32_t arch = find_arch(arch_name);
  std::vector<Variant> result;
  if (build().kernels[kernel].variants[arch] == nullptr) return result;
  for (int32_t i = 0; i < build().kernels[kernel].variant_count; ++i) {
    result.push_back(make_variant(arch, kernel, i));
  }
  return result;
}

std::vector<int32_t> buckets() {
  size_t count = 0;
  const int32_t* values = tbe_aot_buckets(&count);
  return {values, values + count};
}

// --- Plans
// -----------------------------------------------------------------------------------------

struct LaunchView {
  std::string kernel;
  Variant variant;
  std::array<uint32_t, 3> grid;
  std::array<uint32_t, 3> block;
  int32_t shared_bytes;
  std::string args;
};

struct ClearView {
  uintptr_t address;
  size_t bytes;
};

class PlanView {
 public:
  explicit PlanView(tbe_aot_plan* plan) : plan_(plan, &tbe_aot_plan_free) {}

  const tbe_aot_plan* handle() const { return plan_.get(); }
  const tbe_aot::Plan& plan() const { return *tbe_aot_plan_get(plan_.get()); }

  std::string arch() const { return build().archs[plan().arch].name; }

  std::optional<ClearView> clear() const {
    if (plan().clear.bytes == 0) return std::nullopt;
    return ClearView{reinterpret_cast<uintptr_t>(plan().clear.address), plan().clear.bytes};
  }

  std::vector<LaunchView> launches() const {
    std::vector<LaunchView> result;
    for (size_t i = 0; i < plan().launches.size(); ++i) {
      const tbe_aot::Launch& launch = plan().launches[i];
      Variant variant = make_variant(plan().arch, launch.kernel, launch.variant);
      const auto threads = static_cast<uint32_t>(32 * variant.num_warps);
      const int32_t shared_bytes = variant.shared_bytes;
      result.push_back({variant.kernel,
                        std::move(variant),
                        {launch.grid[0], launch.grid[1], launch.grid[2]},
                        {threads, 1, 1},
                        shared_bytes,
                        std::string(reinterpret_cast<const char*>(launch.args), launch.args_size)});
    }
    return result;
  }

  std::vector<std::string> reasons() const {
    std::vector<std::string> result;
    for (size_t i = 0; i < tbe_aot_plan_reason_count(handle()); ++i) {
      result.emplace_back(tbe_aot_plan_reason(handle(), i));
    }
    return result;
  }

 private:
  std::unique_ptr<tbe_aot_plan, void (*)(tbe_aot_plan*)> plan_;
};

tbe_aot::SmallTables find_small_tables(const std::string& name) {
  if (name == "auto") return tbe_aot::SmallTables::kAuto;
  if (name == "never") return tbe_aot::SmallTables::kNever;
  if (name == "always") return tbe_aot::SmallTables::kAlways;
  throw py::value_error("small_tables is '" + name + "', expected auto, never or always");
}

PlanView plan_forward(const std::string& arch, const std::vector<int64_t>& layout,
                      const std::string& weight_dtype, const std::string& output_dtype,
                      int32_t index_width, bool mean, uintptr_t output, uintptr_t weights,
                      uintptr_t features, uintptr_t indices, uintptr_t offsets,
                      uintptr_t per_sample_weights, uintptr_t vbe_bag_offsets,
                      uintptr_t vbe_output_offsets, int64_t lookups, int64_t batch_size,
                      int64_t total_bags, const std::string& small_tables) {
  tbe_aot::ForwardRequest request;
  request.small_tables = find_small_tables(small_tables);
  request.arch = find_arch(arch);
  request.weight_dtype = find_dtype(weight_dtype);
  request.output_dtype = find_dtype(output_dtype);
  request.index_width = index_width;
  request.mean = mean;
  request.output = pointer(output);
  request.weights = pointer(weights);
  request.features = pointer(features);
  request.indices = pointer(indices);
  request.offsets = pointer(offsets);
  request.per_sample_weights = pointer(per_sample_weights);
  request.vbe_bag_offsets = pointer(vbe_bag_offsets);
  request.vbe_output_offsets = pointer(vbe_output_offsets);
  request.lookups = lookups;
  request.batch_size = batch_size;
  request.total_bags = total_bags;
  tbe_aot_plan* plan = nullptr;
  check(tbe_aot_plan_forward(&request, layout.data(), layout.size(), &plan));
  return PlanView(plan);
}

PlanView plan_check_bounds(const std::string& arch, int32_t index_width, uintptr_t indices,
                           uintptr_t offsets, uintptr_t features, uintptr_t vbe_bag_offsets,
                           uintptr_t indices_out, uintptr_t offsets_out, uintptr_t report,
                           uintptr_t invalid_count, int64_t feature_count, int64_t lookups,
                           int64_t offsets_numel, int64_t batch_size) {
  tbe_aot::CheckBoundsRequest request;
  request.arch = find_arch(arch);
  request.index_width = index_width;
  request.indices = pointer(indices);
  request.offsets = pointer(offsets);
  request.features = pointer(features);
  request.vbe_bag_offsets = pointer(vbe_bag_offsets);
  request.indices_out = mutable_pointer(indices_out);
  request.offsets_out = mutable_pointer(offsets_out);
  request.report = mutable_pointer(report);
  request.invalid_count = mutable_pointer(invalid_count);
  request.feature_count = feature_count;
  request.lookups = lookups;
  request.offsets_numel = offsets_numel;
  request.batch_size = batch_size;
  tbe_aot_plan* plan = nullptr;
  check(tbe_aot_plan_check_bounds(&request, &plan));
  return PlanView(plan);
}

tbe_aot::TransposeRequest make_transpose_request(const std::string& arch, int32_t index_width,
                                                 bool mean, uintptr_t features, uintptr_t indices,
                                                 uintptr_t offsets, uintptr_t per_sample_weights,
                                                 uintptr_t vbe_bag_offsets,
                                                 uintptr_t vbe_output_offsets, uintptr_t transposed,
                                                 uintptr_t scratch, int64_t lookups,
                                                 int64_t batch_size, int64_t total_bags) {
  tbe_aot::TransposeRequest request;
  request.arch = find_arch(arch);
  request.index_width = index_width;
  request.mean = mean;
  request.features = pointer(features);
  request.indices = pointer(indices);
  request.offsets = pointer(offsets);
  request.per_sample_weights = pointer(per_sample_weights);
  request.vbe_bag_offsets = pointer(vbe_bag_offsets);
  request.vbe_output_offsets = pointer(vbe_output_offsets);
  request.transposed = mutable_pointer(transposed);
  request.scratch = mutable_pointer(scratch);
  request.lookups = lookups;
  request.batch_size = batch_size;
  request.total_bags = total_bags;
  return request;
}

int64_t transpose_scratch_bytes(const tbe_aot::TransposeRequest& request,
                                const std::vector<int64_t>& layout) {
  int64_t bytes = 0;
  check(tbe_aot_transpose_scratch_bytes(&request, layout.data(), layout.size(), &bytes));
  return bytes;
}

PlanView plan_transpose(const tbe_aot::TransposeRequest& request,
                        const std::vector<int64_t>& layout) {
  tbe_aot_plan* plan = nullptr;
  check(tbe_aot_plan_transpose(&request, layout.data(), layout.size(), &plan));
  return PlanView(plan);
}

int64_t partials_bytes(int64_t lookups, const std::vector<int64_t>& layout) {
  int64_t bytes = 0;
  check(tbe_aot_partials_bytes(lookups, layout.data(), layout.size(), &bytes));
  return bytes;
}

PlanView plan_backward_update(const std::string& arch, const std::vector<int64_t>& layout,
                              int32_t multiprocessors, const std::string& weight_dtype,
                              const std::string& gradient_dtype, const std::string& optimizer,
                              bool factored, bool vbe, uintptr_t weights, uintptr_t gradient,
                              uintptr_t momentum1, uintptr_t momentum2, uintptr_t step,
                              uintptr_t learning_rate, uintptr_t gradient_scale,
                              uintptr_t found_inf, uintptr_t features, uintptr_t transposed,
                              uintptr_t partials, int64_t lookups, int64_t total_bags,
                              int64_t gradient_numel, float eps, double beta1, double beta2,
                              float l2_decay, float decoupled_decay, float clip,
                              const tbe_aot::TransposeRequest* transpose) {
  tbe_aot::BackwardUpdateRequest request;
  request.arch = find_arch(arch);
  request.multiprocessors = multiprocessors;
  request.weight_dtype = find_dtype(weight_dtype);
  request.gradient_dtype = find_dtype(gradient_dtype);
  request.optimizer = find_optimizer(optimizer);
  request.factored = factored;
  request.vbe = vbe;
  request.weights = mutable_pointer(weights);
  request.gradient = pointer(gradient);
  request.momentum1 = mutable_pointer(momentum1);
  request.momentum2 = mutable_pointer(momentum2);
  request.step = mutable_pointer(step);
  request.learning_rate = pointer(learning_rate);
  request.gradient_scale = pointer(gradient_scale);
  request.found_inf = pointer(found_inf);
  request.features = pointer(features);
  request.transposed = pointer(transposed);
  request.partials = mutable_pointer(partials);
  request.lookups = lookups;
  request.total_bags = total_bags;
  request.gradient_numel = gradient_numel;
  request.eps = eps;
  request.beta1 = beta1;
  request.beta2 = beta2;
  request.l2_decay = l2_decay;
  request.decoupled_decay = decoupled_decay;
  request.clip = clip;
  request.transpose = transpose;
  tbe_aot_plan* plan = nullptr;
  check(tbe_aot_plan_backward_update(&request, layout.data(), layout.size(), &plan));
  return PlanView(plan);
}

PlanView plan_per_sample_weights_gradient(
    const std::string& arch, const std::vector<int64_t>& layout, const std::string& weight_dtype,
    const std::string& gradient_dtype, int32_t index_width, bool mean, uintptr_t result,
    uintptr_t gradient, uintptr_t weights, uintptr_t features, uintptr_t indices, uintptr_t offsets,
    uintptr_t vbe_bag_offsets, uintptr_t vbe_output_offsets, int64_t lookups, int64_t batch_size,
    int64_t total_bags) {
  tbe_aot::SampleWeightsGradientRequest request;
  request.arch = find_arch(arch);
  request.weight_dtype = find_dtype(weight_dtype);
  request.gradient_dtype = find_dtype(gradient_dtype);
  request.index_width = index_width;
  request.mean = mean;
  request.result = mutable_pointer(result);
  request.gradient = pointer(gradient);
  request.weights = pointer(weights);
  request.features = pointer(features);
  request.indices = pointer(indices);
  request.offsets = pointer(offsets);
  request.vbe_bag_offsets = pointer(vbe_bag_offsets);
  request.vbe_output_offsets = pointer(vbe_output_offsets);
  request.lookups = lookups;
  request.batch_size = batch_size;
  request.total_bags = total_bags;
  tbe_aot_plan* plan = nullptr;
  check(tbe_aot_plan_per_sample_weights_gradient(&request, layout.data(), layout.size(), &plan));
  return PlanView(plan);
}

// --- Devices
// ---------------------------------------------------------------------------------------

using AxisFilter = std::map<std::string, std::vector<std::string>>;

// The variants that serve at least one cell whose labels the filter allows.
std::vector<int32_t> select_variants(const KernelInfo& kernel, const AxisFilter& filter) {
  std::vector<std::vector<bool>> allowed;
  for (int32_t i = 0; i < kernel.axis_count; ++i) {
    allowed.emplace_back(kernel.axes[i].size, true);
  }
  for (const auto& [name, labels] : filter) {
    int32_t axis = 0;
    while (axis < kernel.axis_count && name != kernel.axes[axis].name) ++axis;
    if (axis == kernel.axis_count) {
      throw py::value_error(
          "the kernel '" + std::string(kernel.name) + "' has no axis '" + name + "'; it has " +
          list_names(kernel.axis_count, [&](int32_t i) { return kernel.axes[i].name; }));
    }
    const AxisInfo& info = kernel.axes[axis];
    allowed[axis].assign(info.size, false);
    for (const std::string& label : labels) {
      int32_t value = 0;
      while (value < info.size && label != info.labels[value]) ++value;
      if (value == info.size) {
        throw py::value_error("the axis '" + name + "' has no value '" + label + "'; it has " +
                              list_names(info.size, [&](int32_t i) { return info.labels[i]; }));
      }
      allowed[axis][value] = true;
    }
  }
  std::vector<bool> chosen(kernel.variant_count, false);
  for (int32_t cell = 0; cell < kernel.cell_count; ++cell) {
    bool matches = kernel.cells[cell] >= 0;
    int32_t rest = cell;
    for (int32_t axis = kernel.axis_count - 1; axis >= 0; --axis) {
      matches = matches && allowed[axis][rest % kernel.axes[axis].size];
      rest /= kernel.axes[axis].size;
    }
    if (matches) chosen[kernel.cells[cell]] = true;
  }
  std::vector<int32_t> result;
  for (int32_t i = 0; i < kernel.variant_count; ++i) {
    if (chosen[i]) result.push_back(i);
  }
  return result;
}

int32_t arch_of_device(int32_t device) {
  int32_t arch = 0;
  check(tbe_aot_device_arch(device, &arch));
  return arch;
}

int32_t device_multiprocessors(int32_t device) {
  int32_t count = 0;
  check(tbe_aot_device_multiprocessors(device, &count));
  return count;
}

std::string device_arch(int32_t device) { return build().archs[arch_of_device(device)].name; }

std::vector<std::string> preload(int32_t device, const std::string& kernel_name,
                                 const AxisFilter& axes, bool built_only) {
  const int32_t kernel = find_kernel(kernel_name);
  const std::vector<int32_t> chosen = select_variants(build().kernels[kernel], axes);
  const int32_t arch = arch_of_device(device);
  const VariantInfo* table = build().kernels[kernel].variants[arch];
  std::vector<std::string> loaded;
  const py::gil_scoped_release released;
  for (const int32_t variant : chosen) {
    if (built_only && (table == nullptr || table[variant].blob < 0)) continue;
    check(tbe_aot_preload(device, kernel, variant));
    loaded.emplace_back(table[variant].name);
  }
  return loaded;
}

void launch(const PlanView& plan, int32_t device, uintptr_t stream) {
  const py::gil_scoped_release released;
  check(tbe_aot_run(plan.handle(), device, stream_handle(stream)));
}

bool is_capturing(int32_t device, uintptr_t stream) {
  bool capturing = false;
  check(tbe_aot_is_capturing(device, stream_handle(stream), &capturing));
  return capturing;
}

py::bytes copy_to_host(uintptr_t source, size_t bytes, int32_t device, uintptr_t stream) {
  std::string destination(bytes, '\0');
  {
    const py::gil_scoped_release released;
    check(tbe_aot_copy_to_host(destination.data(), pointer(source), bytes, device,
                               stream_handle(stream)));
  }
  return destination;
}

struct Loaded {
  int32_t device;
  Variant variant;
};

std::vector<Loaded> loaded() {
  std::vector<Loaded> result;
  check(tbe_aot_loaded(
      [](void* user, const tbe_aot::LoadedVariant* entry) {
        static_cast<std::vector<Loaded>*>(user)->push_back(
            {entry->device, make_variant(entry->arch, entry->kernel, entry->variant)});
      },
      &result));
  return result;
}

}  // namespace

PYBIND11_MODULE(_launcher, module) {
  module.doc() =
      "The launcher core: what this build holds, what is loaded, and how calls are planned.";
  module.attr("profile") = build().profile;
  module.attr("build_id") = build().build_id;

  py::class_<Arch>(module, "Arch")
      .def_readonly("name", &Arch::name)
      .def_readonly("major", &Arch::major)
      .def_readonly("minor", &Arch::minor)
      .def_readonly("pack_file", &Arch::pack_file)
      .def_readonly("index_sha256", &Arch::index_sha256);
  py::class_<Blob>(module, "Blob")
      .def_readonly("sha256", &Blob::sha256)
      .def_readonly("offset", &Blob::offset)
      .def_readonly("size", &Blob::size);
  py::class_<PackView>(module, "Pack")
      .def_readonly("arch", &PackView::arch)
      .def_readonly("path", &PackView::path)
      .def_readonly("file_size", &PackView::file_size)
      .def_readonly("blobs", &PackView::blobs);
  py::class_<Param>(module, "Param")
      .def_readonly("name", &Param::name)
      .def_readonly("type", &Param::type)
      .def_readonly("offset", &Param::offset)
      .def_readonly("size", &Param::size);
  py::class_<Kernel>(module, "Kernel")
      .def_readonly("name", &Kernel::name)
      .def_property_readonly("axes", &axes_dict)
      .def_readonly("params", &Kernel::params)
      .def_readonly("args_size", &Kernel::args_size)
      .def_readonly("variant_count", &Kernel::variant_count);
  py::class_<Variant>(module, "Variant")
      .def_readonly("name", &Variant::name)
      .def_readonly("kernel", &Variant::kernel)
      .def_readonly("arch", &Variant::arch)
      .def_readonly("entry", &Variant::entry)
      .def_readonly("blob", &Variant::blob)
      .def_readonly("num_warps", &Variant::num_warps)
      .def_readonly("shared_bytes", &Variant::shared_bytes)
      .def_readonly("constants", &Variant::constants);
  py::class_<LaunchView>(module, "Launch")
      .def_readonly("kernel", &LaunchView::kernel)
      .def_readonly("variant", &LaunchView::variant)
      .def_property_readonly("grid",
                             [](const LaunchView& self) {
                               return py::make_tuple(self.grid[0], self.grid[1], self.grid[2]);
                             })
      .def_property_readonly("block",
                             [](const LaunchView& self) {
                               return py::make_tuple(self.block[0], self.block[1], self.block[2]);
                             })
      .def_readonly("shared_bytes", &LaunchView::shared_bytes)
      .def_property_readonly("args", [](const LaunchView& self) { return py::bytes(self.args); });
  py::class_<ClearView>(module, "Clear")
      .def_readonly("address", &ClearView::address)
      .def_readonly("bytes", &ClearView::bytes);
  py::class_<PlanView>(module, "Plan")
      .def_property_readonly("arch", &PlanView::arch)
      .def_property_readonly("clear", &PlanView::clear)
      .def_property_readonly("launches", &PlanView::launches)
      .def_property_readonly("reasons", &PlanView::reasons);
  py::class_<Loaded>(module, "Loaded")
      .def_readonly("device", &Loaded::device)
      .def_readonly("variant", &Loaded::variant);

  using py::literals::operator""_a;
  module.def("archs", &archs);
  module.def("packs", &packs);
  module.def("verify", &verify);
  module.def("kernels", &kernels);
  module.def("variants", &variants, "kernel"_a, "arch"_a);
  module.def("buckets", &buckets);
  module.def("plan_forward", &plan_forward, py::kw_only(), "arch"_a, "layout"_a, "weight_dtype"_a,
             "output_dtype"_a = "fp32", "index_width"_a = 64, "mean"_a = false, "output"_a = 0,
             "weights"_a = 0, "features"_a = 0, "indices"_a = 0, "offsets"_a = 0,
             "per_sample_weights"_a = 0, "vbe_bag_offsets"_a = 0, "vbe_output_offsets"_a = 0,
             "lookups"_a, "batch_size"_a, "total_bags"_a, "small_tables"_a = "auto");
  module.def("plan_check_bounds", &plan_check_bounds, py::kw_only(), "arch"_a, "index_width"_a = 64,
             "indices"_a = 0, "offsets"_a = 0, "features"_a = 0, "vbe_bag_offsets"_a = 0,
             "indices_out"_a = 0, "offsets_out"_a = 0, "report"_a = 0, "invalid_count"_a = 0,
             "feature_count"_a, "lookups"_a, "offsets_numel"_a, "batch_size"_a);
  py::class_<tbe_aot::TransposeRequest>(module, "TransposeRequest")
      .def(py::init(&make_transpose_request), py::kw_only(), "arch"_a, "index_width"_a = 64,
           "mean"_a = false, "features"_a = 0, "indices"_a = 0, "offsets"_a = 0,
           "per_sample_weights"_a = 0, "vbe_bag_offsets"_a = 0, "vbe_output_offsets"_a = 0,
           "transposed"_a = 0, "scratch"_a = 0, "lookups"_a, "batch_size"_a, "total_bags"_a);
  module.def("transpose_scratch_bytes", &transpose_scratch_bytes, "request"_a, "layout"_a);
  module.def("plan_transpose", &plan_transpose, "request"_a, "layout"_a);
  module.def("partials_bytes", &partials_bytes, "lookups"_a, "layout"_a);
  module.def("plan_backward_update", &plan_backward_update, py::kw_only(), "arch"_a, "layout"_a,
             "multiprocessors"_a, "weight_dtype"_a, "gradient_dtype"_a = "fp32", "optimizer"_a,
             "factored"_a = false, "vbe"_a = false, "weights"_a = 0, "gradient"_a = 0,
             "momentum1"_a = 0, "momentum2"_a = 0, "step"_a = 0, "learning_rate"_a = 0,
             "gradient_scale"_a = 0, "found_inf"_a = 0, "features"_a = 0, "transposed"_a = 0,
             "partials"_a = 0, "lookups"_a, "total_bags"_a, "gradient_numel"_a, "eps"_a = 0.0f,
             "beta1"_a = 0.0, "beta2"_a = 0.0, "l2_decay"_a = 0.0f, "decoupled_decay"_a = 0.0f,
             "clip"_a = 0.0f, "transpose"_a = nullptr);
  module.def("plan_per_sample_weights_gradient", &plan_per_sample_weights_gradient, py::kw_only(),
             "arch"_a, "layout"_a, "weight_dtype"_a, "gradient_dtype"_a = "fp32",
             "index_width"_a = 64, "mean"_a = false, "result"_a = 0, "gradient"_a = 0,
             "weights"_a = 0, "features"_a = 0, "indices"_a = 0, "offsets"_a = 0,
             "vbe_bag_offsets"_a = 0, "vbe_output_offsets"_a = 0, "lookups"_a, "batch_size"_a,
             "total_bags"_a);
  module.def("launch", &launch, "plan"_a, "device"_a, "stream"_a = 0);
  module.def("device_arch", &device_arch, "device"_a);
  module.def("device_multiprocessors", &device_multiprocessors, "device"_a);
  module.def("preload", &preload, "device"_a, "kernel"_a, "axes"_a = AxisFilter(),
             "built_only"_a = false);
  module.def("is_capturing", &is_capturing, "device"_a, "stream"_a = 0);
  module.def("copy_to_host", &copy_to_host, "source"_a, "bytes"_a, "device"_a, "stream"_a = 0);
  module.def("loaded", &loaded);
}
