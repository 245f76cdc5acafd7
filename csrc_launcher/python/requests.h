// The planner's requests as Python classes.
#pragma once

#include <pybind11/pybind11.h>

namespace tbe_aot::python {

void bind_requests(pybind11::module_& module);

}  // namespace tbe_aot::python
