// Stands in for kernel_specs/common/ptx.cuh on the host.
#pragma once

#include <sched.h>

template <typename Word>
Word load_relaxed(const Word* address) {
  // What is waited for comes from a block in another thread.
  sched_yield();
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}

template <typename Word>
void store_relaxed(Word* address, Word value) {
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
}

// Launches never overlap here.
inline void wait_for_previous_launch() {}
inline void let_next_launch_start() {}
