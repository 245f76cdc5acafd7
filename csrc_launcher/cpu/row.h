// Adding rows to sums: the loop that the CPU's lookup and its backward spend their time in.
#pragma once

#include <cstdint>

#include "cpu/element.h"

namespace tbe_aot::cpu {

// sums[c] += row[c]
void add_row(const float* row, int64_t columns, double* sums);
void add_row(const Half* row, int64_t columns, float* sums);
void add_row(const BFloat16* row, int64_t columns, float* sums);

// sums[c] += weight * row[c]
void add_row(const float* row, int64_t columns, double* sums, double weight);
void add_row(const float* row, int64_t columns, float* sums, float weight);
void add_row(const Half* row, int64_t columns, float* sums, float weight);
void add_row(const BFloat16* row, int64_t columns, float* sums, float weight);

}  // namespace tbe_aot::cpu
