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
#include "python/names.h"
#include "python/requests.h"

namespace py = pybind11;

namespace {

using tbe_aot::AxisInfo;
using tbe_aot::BuildInfo;
using tbe_aot::KernelInfo;
using tbe_aot::VariantInfo;
using tbe_aot::python::build;
using tbe_aot::python::find_arch;
using tbe_aot::python::find_kernel;

void check(int status) {
  if (status != 0) throw std::runtime_error(tbe_aot_last_error());
}

const void* pointer(uintptr_t address) { return reinterpret_cast<const void*>(address); }

void* stream_handle(uintptr_t address) { return reinterpret_cast<void*>(address); }

template <typename Name>
std::string list_names(int32_t count, Name name) {
  std::string text;
  for (int32_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::string(name(i));
  return text;
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

template <auto planner, typename Request>
PlanView make_plan(const Request& request, const std::vector<int64_t>& layout) {
  tbe_aot_plan* plan = nullptr;
  check(planner(&request, layout.data(), layout.size(), &plan));
  return PlanView(plan);
}

// `check`: planned first, where given.
PlanView plan_forward(tbe_aot::ForwardRequest request, const std::vector<int64_t>& layout,
                      const tbe_aot::CheckBoundsRequest* check) {
  request.check = check;
  return make_plan<tbe_aot_plan_forward>(request, layout);
}

PlanView plan_check_bounds(const tbe_aot::CheckBoundsRequest& request) {
  tbe_aot_plan* plan = nullptr;
  check(tbe_aot_plan_check_bounds(&request, &plan));
  return PlanView(plan);
}

// `transpose`: planned first, where given.
PlanView plan_backward_update(tbe_aot::BackwardUpdateRequest request,
                              const std::vector<int64_t>& layout,
                              const tbe_aot::TransposeRequest* transpose) {
  request.transpose = transpose;
  return make_plan<tbe_aot_plan_backward_update>(request, layout);
}

int64_t transpose_scratch_bytes(const tbe_aot::TransposeRequest& request,
                                const std::vector<int64_t>& layout) {
  int64_t bytes = 0;
  check(tbe_aot_transpose_scratch_bytes(&request, layout.data(), layout.size(), &bytes));
  return bytes;
}

int64_t partials_bytes(int64_t lookups, const std::vector<int64_t>& layout) {
  int64_t bytes = 0;
  check(tbe_aot_partials_bytes(lookups, layout.data(), layout.size(), &bytes));
  return bytes;
}

int64_t counters_bytes(const tbe_aot::BackwardUpdateRequest& request,
                       const std::vector<int64_t>& layout) {
  int64_t bytes = 0;
  check(tbe_aot_counters_bytes(&request, layout.data(), layout.size(), &bytes));
  return bytes;
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
  tbe_aot::python::bind_requests(module);
  module.def("plan_forward", &plan_forward, "request"_a, "layout"_a, "check"_a = nullptr);
  module.def("plan_check_bounds", &plan_check_bounds, "request"_a);
  module.def("transpose_scratch_bytes", &transpose_scratch_bytes, "request"_a, "layout"_a);
  module.def("plan_transpose", &make_plan<tbe_aot_plan_transpose, tbe_aot::TransposeRequest>,
             "request"_a, "layout"_a);
  module.def("partials_bytes", &partials_bytes, "lookups"_a, "layout"_a);
  module.def("counters_bytes", &counters_bytes, "request"_a, "layout"_a);
  module.def("plan_backward_update", &plan_backward_update, "request"_a, "layout"_a,
             "transpose"_a = nullptr);
  module.def(
      "plan_per_sample_weights_gradient",
      &make_plan<tbe_aot_plan_per_sample_weights_gradient, tbe_aot::SampleWeightsGradientRequest>,
      "request"_a, "layout"_a);
  module.def("launch", &launch, "plan"_a, "device"_a, "stream"_a = 0);
  module.def("device_arch", &device_arch, "device"_a);
  module.def("device_multiprocessors", &device_multiprocessors, "device"_a);
  module.def("preload", &preload, "device"_a, "kernel"_a, "axes"_a = AxisFilter(),
             "built_only"_a = false);
  module.def("is_capturing", &is_capturing, "device"_a, "stream"_a = 0);
  module.def("copy_to_host", &copy_to_host, "source"_a, "bytes"_a, "device"_a, "stream"_a = 0);
  module.def("loaded", &loaded);
}
