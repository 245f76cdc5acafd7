// From a dtype known at run time to a type.
#pragma once

#include "core/planner.h"
#include "cpu/element.h"

namespace tbe_aot::cpu {

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
