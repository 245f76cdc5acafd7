// Stands in for kernel_specs/common/ptx.cuh on the host.
#pragma once

#include <sched.h>

#include "common/cuda_types.cuh"

inline uint32 load_relaxed(const uint32* address) {
  // What is waited for comes from a block in another thread.
  sched_yield();
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}

inline void store_relaxed(uint32* address, uint32 value) {
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
}

// Launches never overlap here.
inline void wait_for_previous_launch() {}
inline void let_next_launch_start() {}
