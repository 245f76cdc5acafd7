// From a dtype known at run time to a type.
#pragma once

#include <cstdint>

#include "core/planner.h"
#include "cpu/element.h"

namespace tbe_aot::cpu {

// Bytes of an element.
constexpr int64_t element_size(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

// Calls `body` with a value of the element type.
template <typename Body>
void with_element(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body(float{});
    case Dtype::kFloat16:
      return body(Half{});
    case Dtype::kBFloat16:
      return body(BFloat16{});
  }
}

}  // namespace tbe_aot::cpu
