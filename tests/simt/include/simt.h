// Enough of CUDA's execution model to run a kernel in CUDA C++ on the host, slowly and faithfully.
//
// A block is an operating system thread; its threads are coroutines in it, which give way only
// where CUDA would let them wait for each other. Blocks run side by side and start in their order,
// as on a GPU. A block whose threads wait for each other forever is an error, and so is leaving a
// barrier out: the threads of a warp run one after the other, the last one first (or the first one,
// if simt_first_thread_first is set), so that nothing works by luck.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static thread_local

namespace simt {

constexpr int kWarpSize = 32;
constexpr size_t kStackBytes = 64 << 10;

struct Index {
  int x = 0;
  int y = 0;
};

// Threads that wait until all of them have come.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  template <typename Yield>
  void wait(Yield yield) {
    const int round = round_;
    if (++arrived_ == threads_) {
      arrived_ = 0;
      ++round_;
      return;
    }
    while (round_ == round) yield();
  }
  int round() const { return round_; }

 private:
  int threads_;
  int arrived_ = 0;
  int round_ = 0;
};

struct Warp {
  Barrier barrier{kWarpSize};
  std::array<uint64_t, kWarpSize> values{};
};

class Block {
 public:
  Block(Index number, int threads, void (*body)(void*), void* argument);
  void run();
  void wait_for_block();
  // Lets the other threads go on.
  void yield();
  // Every thread of the warp hands in a value and sees those of all.
  std::array<uint64_t, kWarpSize> exchange(uint64_t value);

 private:
  static void enter();
  int barrier_rounds() const;

  Index number_;
  void (*body_)(void*);
  void* argument_;
  Barrier barrier_;
  std::vector<Warp> warps_;
  std::vector<ucontext_t> contexts_;
  std::vector<std::unique_ptr<char[]>> stacks_;
  std::vector<bool> finished_;
  ucontext_t scheduler_;
  int running_ = 0;
};

// The blocks of a launch, in the order in which they start.
class Grid {
 public:
  Grid(int columns, int rows) : columns_(columns), count_(columns * rows) {}
  // A block that has not started, which then never does by itself; false if none is left.
  bool take(Index& number) {
    const int taken = next_++;
    if (taken >= count_) return false;
    number = {taken % columns_, taken / columns_};
    return true;
  }

 private:
  int columns_;
  int count_;
  std::atomic<int> next_{0};
};

inline thread_local Block* current_block = nullptr;
inline Grid* current_grid = nullptr;

}  // namespace simt

extern "C" {
inline int simt_first_thread_first = 0;
}

inline thread_local simt::Index threadIdx;
inline thread_local simt::Index blockIdx;

namespace simt {

inline Block::Block(Index number, int threads, void (*body)(void*), void* argument)
    : number_(number),
      body_(body),
      argument_(argument),
      barrier_(threads),
      warps_(static_cast<size_t>(threads / kWarpSize)),
      contexts_(static_cast<size_t>(threads)),
      finished_(static_cast<size_t>(threads), false) {
  for (ucontext_t& context : contexts_) {
    stacks_.push_back(std::make_unique<char[]>(kStackBytes));
    getcontext(&context);
    context.uc_stack.ss_sp = stacks_.back().get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = &scheduler_;
    makecontext(&context, &Block::enter, 0);
  }
}

inline void Block::enter() {
  Block& block = *current_block;
  block.body_(block.argument_);
  block.finished_[static_cast<size_t>(block.running_)] = true;
}

inline void Block::yield() { swapcontext(&contexts_[static_cast<size_t>(running_)], &scheduler_); }

inline int Block::barrier_rounds() const {
  int rounds = barrier_.round();
  for (const Warp& warp : warps_) rounds += warp.barrier.round();
  return rounds;
}

inline void Block::run() {
  current_block = this;
  blockIdx = number_;
  size_t left = contexts_.size();
  while (left > 0) {
    const size_t left_before = left;
    const int rounds_before = barrier_rounds();
    for (size_t turn = contexts_.size(); turn-- > 0;) {
      const size_t i = simt_first_thread_first != 0 ? contexts_.size() - 1 - turn : turn;
      if (finished_[i]) continue;
      running_ = static_cast<int>(i);
      threadIdx.x = running_;
      swapcontext(&scheduler_, &contexts_[i]);
      if (finished_[i]) --left;
    }
    if (left == left_before && barrier_rounds() == rounds_before) {
      std::fprintf(stderr, "block (%d, %d): %zu threads wait for others that never come\n",
                   number_.x, number_.y, left);
      std::abort();
    }
  }
}

inline void Block::wait_for_block() {
  barrier_.wait([this] { yield(); });
}

inline std::array<uint64_t, kWarpSize> Block::exchange(uint64_t value) {
  Warp& warp = warps_[static_cast<size_t>(running_ / kWarpSize)];
  warp.values[static_cast<size_t>(running_ % kWarpSize)] = value;
  warp.barrier.wait([this] { yield(); });
  const std::array<uint64_t, kWarpSize> seen = warp.values;
  warp.barrier.wait([this] { yield(); });
  return seen;
}

// Runs `body` for every thread of every block, `side_by_side` blocks at a time.
inline void launch(Index grid_size, int threads, int side_by_side, void (*body)(void*),
                   void* argument) {
  Grid grid(grid_size.x, grid_size.y);
  current_grid = &grid;
  auto work = [&] {
    for (Index number; grid.take(number);) Block(number, threads, body, argument).run();
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < side_by_side; ++i) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
}

template <typename... Arguments, size_t... positions>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<positions...>) {
  kernel(*static_cast<Arguments*>(arguments[positions])...);
}

template <typename... Arguments>
void call(void (*kernel)(Arguments...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<Arguments...>{});
}

}  // namespace simt

inline void __syncthreads() { simt::current_block->wait_for_block(); }
inline void __syncwarp() { simt::current_block->exchange(0); }

inline unsigned __ballot_sync(unsigned, bool vote) {
  const auto votes = simt::current_block->exchange(vote);
  unsigned result = 0;
  for (int lane = 0; lane < simt::kWarpSize; ++lane) {
    result |= static_cast<unsigned>(votes[static_cast<size_t>(lane)]) << lane;
  }
  return result;
}

template <typename Value>
Value __shfl_sync(unsigned, Value value, int lane) {
  return static_cast<Value>(simt::current_block->exchange(value)[static_cast<size_t>(lane)]);
}

template <typename Value>
Value __shfl_up_sync(unsigned, Value value, int distance) {
  const auto values = simt::current_block->exchange(value);
  const int lane = threadIdx.x % simt::kWarpSize;
  return static_cast<Value>(values[static_cast<size_t>(lane < distance ? lane : lane - distance)]);
}

template <typename Value>
Value __shfl_xor_sync(unsigned, Value value, int mask) {
  const auto values = simt::current_block->exchange(value);
  return static_cast<Value>(values[static_cast<size_t>(threadIdx.x % simt::kWarpSize ^ mask)]);
}

inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const auto values = simt::current_block->exchange(value);
  return static_cast<unsigned>(*std::max_element(values.begin(), values.end()));
}

inline int __clz(int value) {
  return value == 0 ? 32 : __builtin_clz(static_cast<unsigned>(value));
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __ffs(unsigned value) { return __builtin_ffs(static_cast<int>(value)); }
inline unsigned atomicAdd(unsigned* address, unsigned value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
inline long long atomicMax(long long* address, long long value) {
  long long old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (old < value && !__atomic_compare_exchange_n(address, &old, value, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
  return old;
}
inline unsigned atomicOr(unsigned* address, unsigned value) {
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}

#define SIMT_KERNEL(kernel)                                                                     \
  extern "C" void simt_launch(int columns, int rows, int threads, int side_by_side, void** a) { \
    simt::launch(                                                                               \
        {columns, rows}, threads, side_by_side,                                                 \
        [](void* arguments) { simt::call(&kernel, static_cast<void**>(arguments)); }, a);       \
  }
