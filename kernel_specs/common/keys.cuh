// What lookups are sorted by: the number of a row among those of all tables.
#pragma once

#include "common/cuda_types.cuh"

template <int width>
struct KeyOf {
  using type = uint32;
};
template <>
struct KeyOf<64> {
  using type = uint64;
};
