// The lookups in the order of the rows that they hit, on the CPU: who used this row?
#pragma once

#include <cstdint>

#include "core/layout.h"
#include "core/transposed_format.h"
#include "cpu/linear_lookups.h"

namespace tbe_aot::cpu {

// The sections of transposed lookups; core/transposed_format.h says what they hold.
struct Transposed {
  // `words` are those of the tensor.
  Transposed(const int32_t* words, int64_t lookups, int64_t feature_count, bool factored);

  const int64_t* run_rows;
  const uint32_t* positions;
  const int32_t* run_starts;
  const int32_t* run_slots;
  const int32_t* run_begins;
  const float* factors;  // Null unless factored.
  int64_t lookups;
  int64_t feature_count;

  int64_t run_count() const { return run_begins[feature_count]; }
};

// Writes the sections: transposed_format().numel words.
void transpose(const LinearLookups& lookups, const int64_t* features, const Layout& layout,
               bool factored, int32_t* words);

// Throws Error unless every row and position lies within bounds, and no row has two runs: whoever
// reads what is `given` need not look again.
void check_transposed(const char* op, const Transposed& given, const int64_t* features,
                      int64_t gradient_numel);

}  // namespace tbe_aot::cpu
