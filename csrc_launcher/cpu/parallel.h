// Torch's thread pool, through the stable C interface.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "cpu/subnormals.h"

namespace tbe_aot::cpu {

// Calls `body(begin, end)` on disjoint ranges that cover [begin, end), of at least `grain` elements
// where there are as many. `body` must not throw: it runs behind a C interface. Subnormal numbers
// count in it.
template <typename Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  auto trampoline = [](int64_t first, int64_t last, void* context) {
    const SubnormalsCount subnormals;
    (*static_cast<const Body*>(context))(first, last);
  };
  void* context = const_cast<void*>(static_cast<const void*>(&body));
  if (torch_parallel_for(begin, end, grain, trampoline, context) != 0) {
    fail("torch's thread pool refused a loop of ", end - begin, " steps");
  }
}

// How many threads parallel_for() uses, at most.
inline size_t thread_count() {
  uint32_t count = 0;
  if (torch_get_num_threads(&count) != 0) fail("torch does not tell how many threads it uses");
  return count;
}

// Which of them is running: below thread_count(); for the body of parallel_for().
inline size_t thread_index() {
  uint32_t index = 0;
  torch_get_thread_idx(&index);
  return index;
}

}  // namespace tbe_aot::cpu
