// Stands in for kernel_specs/common/cluster_launch_ptx.cuh on the host.
//
// The answer comes while threads wait for it, and what was there is gone from when it is asked for.
// What would be undefined on a GPU is an error here, but for the fence between the accesses of
// threads and of the hardware, which the host has not: an answer that is read before it has come or
// after the next question, a second question while one is open or after a refusal, a barrier that
// is not there yet.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "common/cuda_types.cuh"
#include "simt.h"

struct alignas(16) CancellationAnswer {
  uint32 words[4];
};

extern "C" {
// Every so many questions of a launch one is refused, as if the device wanted the place; 0: none.
inline int simt_refuse_every = 0;
// Of all launches: blocks that others took over, and refusals though some were left.
inline std::atomic<int> simt_blocks_taken{0};
inline std::atomic<int> simt_refusals{0};
}

namespace simt {

enum AnswerKind : uint32 { kNotThere = 0xdead, kRefusal = 0xbeef, kCancelled = 0xcafe };

// What a barrier's word says.
constexpr uint64 kReady = 0xc1c1ull << 32;
constexpr uint64 kReadyMask = ~0ull << 32;
constexpr uint64 kParity = 1;
constexpr uint64 kAsked = 2;
constexpr uint64 kRefused = 4;

// Of a block's open question.
struct Question {
  CancellationAnswer* where;
  CancellationAnswer answer;
  int polls_left;
};
inline thread_local Question question;
inline std::atomic<int> questions{0};

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "block (%d, %d), thread %d: %s\n", blockIdx.x, blockIdx.y, threadIdx.x,
               what);
  std::abort();
}

}  // namespace simt

inline void init_answer_barrier(uint64* barrier) { *barrier = simt::kReady; }

inline void ask_to_cancel(CancellationAnswer* answer, uint64* barrier) {
  __syncwarp();  // All lanes are here.
  if (threadIdx.x % simt::kWarpSize == 5) {
    simt::require((*barrier & simt::kReadyMask) == simt::kReady, "the barrier is not there");
    simt::require((*barrier & simt::kAsked) == 0, "asked twice");
    simt::require((*barrier & simt::kRefused) == 0, "asked after a refusal");
    simt::Index number;
    const bool refuse = simt_refuse_every > 0 && simt::questions++ % simt_refuse_every == 0;
    const bool cancelled = !refuse && simt::current_grid->take(number);
    simt_refusals += refuse;
    simt_blocks_taken += cancelled;
    *barrier |= simt::kAsked | (cancelled ? 0 : simt::kRefused);
    answer->words[0] = simt::kNotThere;
    const uint32 kind = cancelled ? simt::kCancelled : simt::kRefusal;
    simt::question = {
        answer, {{kind, static_cast<uint32>(number.x), static_cast<uint32>(number.y), 0}}, 5};
  }
}

inline void wait_for_answer(uint64* barrier, uint32 parity) {
  simt::require((*barrier & simt::kReadyMask) == simt::kReady, "the barrier is not there");
  while ((*barrier & simt::kParity) == parity) {
    if ((*barrier & simt::kAsked) != 0 && --simt::question.polls_left == 0) {
      *simt::question.where = simt::question.answer;
      *barrier = (*barrier ^ simt::kParity) & ~simt::kAsked;
    } else {
      simt::current_block->yield();
    }
  }
}

inline bool read_answer(const CancellationAnswer* answer, uint32& x, uint32& y) {
  const uint32 kind = answer->words[0];
  simt::require(kind == simt::kCancelled || kind == simt::kRefusal, "no answer is there");
  x = answer->words[1];
  y = answer->words[2];
  return kind == simt::kCancelled;
}
