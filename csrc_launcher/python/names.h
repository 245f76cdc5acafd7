// What a build holds, by name. Unknown names are a ValueError in Python.
#pragma once

#include <cstdint>
#include <string>

#include "core/kernel_table.h"
#include "core/planner.h"

namespace tbe_aot::python {

const BuildInfo& build();

int32_t find_arch(const std::string& name);
int32_t find_kernel(const std::string& name);

// fp32, fp16 or bf16.
Dtype find_dtype(const std::string& name);
const char* dtype_name(Dtype dtype);

}  // namespace tbe_aot::python
