// What the launcher needs to know of an optimizer; the build generates a table of these.
#pragma once

#include <cstdint>

namespace tbe_aot {

// Where an optimizer has a state: nowhere, a number per row, or one per weight.
enum class StatePlace : uint8_t { kNone, kRow, kWeight };

struct OptimizerTraits {
  const char* name;
  StatePlace momentum1;
  StatePlace momentum2;
  bool counts_updates;
};

}  // namespace tbe_aot
