// Instructions of cluster launch control, of compute capability 10.0 and later: a block that runs
// cancels one of its grid that has not started, to do that one's work itself.
//
// PTX ISA, "clusterlaunchcontrol" and "mbarrier"; the order of things is that of NVIDIA's CUDA
// Programming Guide, "Work Stealing with Cluster Launch Control", and of `for_each_canceled_block`
// in its libcu++. Not run on a GPU so far.
#pragma once

#include "common/cuda_types.cuh"

// What the hardware answers, opaque until read_answer().
struct alignas(16) CancellationAnswer {
  uint32 words[4];
};

__device__ __forceinline__ uint32 shared_address(const void* pointer) {
  return static_cast<uint32>(__cvta_generic_to_shared(pointer));
}

// A barrier in shared memory for one thread, which waits for bytes. By one thread, before others
// know of the barrier.
__device__ __forceinline__ void init_answer_barrier(uint64* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

// Ask to cancel a block; the answer comes some time later. By a whole warp, one lane of which asks.
// Nobody may read an earlier answer any more, and none may have been a refusal. The fence orders
// those reads, which other threads have made before a barrier, with the write of the answer.
__device__ __forceinline__ void ask_to_cancel(CancellationAnswer* answer, uint64* barrier) {
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "@elected fence.proxy.async.shared::cta;\n"
      "@elected mbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [%1], %2;\n"
      "@elected clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
      " [%0], [%1];\n"
      "}" ::"r"(shared_address(answer)),
      "r"(shared_address(barrier)), "n"(sizeof(CancellationAnswer))
      : "memory");
}

// Wait for the answer to a question; `parity` is 0 for the first one, 1 for the second and so on.
__device__ __forceinline__ void wait_for_answer(uint64* barrier, uint32 parity) {
  uint32 arrived;
  do {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 complete, [%1], %2;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(arrived)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (arrived == 0);
}

// Whether a block was cancelled, and if so its number; else x and y are 0.
__device__ __forceinline__ bool read_answer(const CancellationAnswer* answer, uint32& x,
                                            uint32& y) {
  uint32 cancelled;
  asm volatile(
      "{\n"
      ".reg .pred cancelled;\n"
      ".reg .b128 answer;\n"
      "ld.shared.b128 answer, [%3];\n"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 cancelled, answer;\n"
      "selp.u32 %0, 1, 0, cancelled;\n"
      "mov.u32 %1, 0;\n"
      "mov.u32 %2, 0;\n"
      "@cancelled clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %1, answer;\n"
      "@cancelled clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %2, answer;\n"
      "}"
      : "=r"(cancelled), "=&r"(x), "=&r"(y)
      : "r"(shared_address(answer))
      : "memory");
  return cancelled != 0;
}
