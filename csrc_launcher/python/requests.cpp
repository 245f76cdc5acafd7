#include "python/requests.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "core/optimizers.h"
#include "core/planner.h"
#include "python/names.h"

namespace py = pybind11;

namespace tbe_aot::python {
namespace {

Optimizer find_optimizer(const std::string& name) {
  try {
    return tbe_aot::find_optimizer(name);
  } catch (const Error& error) {
    throw py::value_error(error.what());
  }
}

// Whether a narrow path is taken, by the number of the value.
constexpr const char* kPathChoices[] = {"auto", "never", "always"};

// `argument`: its name.
template <typename Choice>
Choice find_path_choice(const char* argument, const std::string& name) {
  for (size_t i = 0; i < std::size(kPathChoices); ++i) {
    if (name == kPathChoices[i]) return static_cast<Choice>(i);
  }
  throw py::value_error(join("no ", argument, " '", name, "'; allowed are auto, never, always"));
}

// How a field looks in Python, and back. Most look as they are.
template <typename Field>
struct Convert {
  using Shown = Field;
  static Shown show(Field value) { return value; }
  static Field read(Shown value) { return value; }
};

// Addresses are integers.
template <typename Pointee>
struct Convert<Pointee*> {
  static_assert(std::is_void_v<Pointee>);
  using Shown = uintptr_t;
  static Shown show(Pointee* value) { return reinterpret_cast<uintptr_t>(value); }
  static Pointee* read(Shown value) { return reinterpret_cast<Pointee*>(value); }
};

template <>
struct Convert<Dtype> {
  using Shown = std::string;
  static Shown show(Dtype value) { return dtype_name(value); }
  static Dtype read(const Shown& value) { return find_dtype(value); }
};

template <>
struct Convert<Optimizer> {
  using Shown = std::string;
  static Shown show(Optimizer value) { return traits_of(value).name; }
  static Optimizer read(const Shown& value) { return find_optimizer(value); }
};

template <>
struct Convert<SmallTables> {
  using Shown = std::string;
  static Shown show(SmallTables value) { return kPathChoices[static_cast<size_t>(value)]; }
  static SmallTables read(const Shown& value) {
    return find_path_choice<SmallTables>("small_tables", value);
  }
};

template <>
struct Convert<FusedLongRuns> {
  using Shown = std::string;
  static Shown show(FusedLongRuns value) { return kPathChoices[static_cast<size_t>(value)]; }
  static FusedLongRuns read(const Shown& value) {
    return find_path_choice<FusedLongRuns>("fused_long_runs", value);
  }
};

template <>
struct Convert<FusedChecks> {
  using Shown = std::string;
  static Shown show(FusedChecks value) { return kPathChoices[static_cast<size_t>(value)]; }
  static FusedChecks read(const Shown& value) {
    return find_path_choice<FusedChecks>("fused_checks", value);
  }
};

// A class whose constructor takes the arch and any other field by its name. What is not given is as
// in C++.
template <typename Request>
class Binding {
 public:
  Binding(py::module_& module, const char* name) : class_(module, name) {
    class_
        .def(py::init([](const std::string& arch, const py::kwargs& fields) {
               Request request;
               request.arch = find_arch(arch);
               const py::object self = py::cast(&request, py::return_value_policy::reference);
               for (const auto& [key, value] : fields) {
                 if (!py::hasattr(self, key)) {
                   throw py::type_error("a request of this kind has no field '" +
                                        std::string(py::str(key)) + "'");
                 }
                 py::setattr(self, key, value);
               }
               return request;
             }),
             py::kw_only(), py::arg("arch"))
        .def_property(
            "arch", [](const Request& self) { return build().archs[self.arch].name; },
            [](Request& self, const std::string& name) { self.arch = find_arch(name); });
  }

  template <typename Field>
  Binding& field(const char* name, Field Request::* member) {
    using Shown = typename Convert<Field>::Shown;
    class_.def_property(
        name, [member](const Request& self) { return Convert<Field>::show(self.*member); },
        [member](Request& self, const Shown& value) {
          self.*member = Convert<Field>::read(value);
        });
    return *this;
  }

 private:
  py::class_<Request> class_;
};

}  // namespace

void bind_requests(py::module_& module) {
  using Forward = ForwardRequest;
  Binding<Forward>(module, "ForwardRequest")
      .field("weight_dtype", &Forward::weight_dtype)
      .field("output_dtype", &Forward::output_dtype)
      .field("index_width", &Forward::index_width)
      .field("mean", &Forward::mean)
      .field("output", &Forward::output)
      .field("weights", &Forward::weights)
      .field("features", &Forward::features)
      .field("indices", &Forward::indices)
      .field("offsets", &Forward::offsets)
      .field("per_sample_weights", &Forward::per_sample_weights)
      .field("vbe_bag_offsets", &Forward::vbe_bag_offsets)
      .field("vbe_output_offsets", &Forward::vbe_output_offsets)
      .field("lookups", &Forward::lookups)
      .field("batch_size", &Forward::batch_size)
      .field("total_bags", &Forward::total_bags)
      .field("small_tables", &Forward::small_tables)
      .field("work_stealing", &Forward::work_stealing)
      .field("fused_checks", &Forward::fused_checks);

  using Check = CheckBoundsRequest;
  Binding<Check>(module, "CheckBoundsRequest")
      .field("index_width", &Check::index_width)
      .field("indices", &Check::indices)
      .field("offsets", &Check::offsets)
      .field("features", &Check::features)
      .field("vbe_bag_offsets", &Check::vbe_bag_offsets)
      .field("indices_out", &Check::indices_out)
      .field("offsets_out", &Check::offsets_out)
      .field("report", &Check::report)
      .field("invalid_count", &Check::invalid_count)
      .field("feature_count", &Check::feature_count)
      .field("lookups", &Check::lookups)
      .field("offsets_numel", &Check::offsets_numel)
      .field("batch_size", &Check::batch_size);

  using Transpose = TransposeRequest;
  Binding<Transpose>(module, "TransposeRequest")
      .field("index_width", &Transpose::index_width)
      .field("mean", &Transpose::mean)
      .field("features", &Transpose::features)
      .field("indices", &Transpose::indices)
      .field("offsets", &Transpose::offsets)
      .field("per_sample_weights", &Transpose::per_sample_weights)
      .field("vbe_bag_offsets", &Transpose::vbe_bag_offsets)
      .field("vbe_output_offsets", &Transpose::vbe_output_offsets)
      .field("transposed", &Transpose::transposed)
      .field("scratch", &Transpose::scratch)
      .field("lookups", &Transpose::lookups)
      .field("batch_size", &Transpose::batch_size)
      .field("total_bags", &Transpose::total_bags);

  using Update = BackwardUpdateRequest;
  Binding<Update>(module, "BackwardUpdateRequest")
      .field("multiprocessors", &Update::multiprocessors)
      .field("weight_dtype", &Update::weight_dtype)
      .field("gradient_dtype", &Update::gradient_dtype)
      .field("optimizer", &Update::optimizer)
      .field("factored", &Update::factored)
      .field("vbe", &Update::vbe)
      .field("weights", &Update::weights)
      .field("gradient", &Update::gradient)
      .field("momentum1", &Update::momentum1)
      .field("momentum2", &Update::momentum2)
      .field("step", &Update::step)
      .field("learning_rate", &Update::learning_rate)
      .field("gradient_scale", &Update::gradient_scale)
      .field("found_inf", &Update::found_inf)
      .field("rounding_seed", &Update::rounding_seed)
      .field("features", &Update::features)
      .field("transposed", &Update::transposed)
      .field("partials", &Update::partials)
      .field("counters", &Update::counters)
      .field("lookups", &Update::lookups)
      .field("total_bags", &Update::total_bags)
      .field("gradient_numel", &Update::gradient_numel)
      .field("eps", &Update::eps)
      .field("beta1", &Update::beta1)
      .field("beta2", &Update::beta2)
      .field("l2_decay", &Update::l2_decay)
      .field("decoupled_decay", &Update::decoupled_decay)
      .field("clip", &Update::clip)
      .field("small_tables", &Update::small_tables)
      .field("fused_long_runs", &Update::fused_long_runs);

  using Gradient = SampleWeightsGradientRequest;
  Binding<Gradient>(module, "SampleWeightsGradientRequest")
      .field("weight_dtype", &Gradient::weight_dtype)
      .field("gradient_dtype", &Gradient::gradient_dtype)
      .field("index_width", &Gradient::index_width)
      .field("mean", &Gradient::mean)
      .field("result", &Gradient::result)
      .field("gradient", &Gradient::gradient)
      .field("weights", &Gradient::weights)
      .field("features", &Gradient::features)
      .field("indices", &Gradient::indices)
      .field("offsets", &Gradient::offsets)
      .field("vbe_bag_offsets", &Gradient::vbe_bag_offsets)
      .field("vbe_output_offsets", &Gradient::vbe_output_offsets)
      .field("lookups", &Gradient::lookups)
      .field("batch_size", &Gradient::batch_size)
      .field("total_bags", &Gradient::total_bags);
}

}  // namespace tbe_aot::python
