// Work stealing: a block that runs goes on with the work of blocks that have not started.
//
//   next.open();
//   do {
//     next.ask();
//     ...  // The work of block `number`, while the answer is on its way.
//   } while (next.take(number));
//
// The answer is no when no block is left, or when the device wants the place for something else,
// such as a kernel of higher priority: blocks that are left then start as ever. So every block's
// work is done once, by itself or by another.
#pragma once

#include "common/cluster_launch_ptx.cuh"
#include "common/warp.cuh"

struct BlockNumber {
  uint32 x;
  uint32 y;
};

// In shared memory. All threads of the block call all of these.
struct NextBlock {
  CancellationAnswer answer;
  uint64 barrier;

  __device__ __forceinline__ void open() {
    if (threadIdx.x == 0) init_answer_barrier(&barrier);
  }

  __device__ __forceinline__ void ask() {
    // The barrier is there, or everyone has read the answer before.
    __syncthreads();
    if (threadIdx.x / kLanes == 0) ask_to_cancel(&answer, &barrier);
  }

  // Whether there is a block to go on with. `asked` is how often the block has done so before.
  __device__ __forceinline__ bool take(BlockNumber& number, uint32 asked) {
    wait_for_answer(&barrier, asked % 2);
    return read_answer(&answer, number.x, number.y);
  }
};
