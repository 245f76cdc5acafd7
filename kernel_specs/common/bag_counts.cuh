// How often each row of a small table occurs in each of a block's bags: counters in shared memory.
#pragma once

#include "common/cuda_types.cuh"

constexpr int kLanes = 32;
constexpr uint32 kWarp = 0xffffffffu;
// Lookups of a bag that its warp has in flight together.
constexpr int kFirstLookups = 256;

template <int width>
struct IndexOf {
  using type = int;
};
template <>
struct IndexOf<64> {
  using type = long long;
};

// kBags bags of one feature, whose table has at most kRows rows, counted by kThreads threads.
// kPitch: words between the counters of two bags, at least one more than kRows: the word after a
// bag's counters counts what has no row, so that counting needs no branch.
//
// Call open(), __syncthreads(), load(), add(), __syncthreads(), each by every thread: then `counts`
// are complete. What the caller does between them runs while memory answers.
template <typename Index, int kThreads, int kBags, int kRows, int kPitch>
struct BagCounts {
  static constexpr int kWarps = kThreads / kLanes;
  static constexpr int kBagsOfWarp = kBags / kWarps;
  static constexpr int kSteps = kFirstLookups / kLanes;
  static_assert(kBagsOfWarp * kWarps == kBags, "every warp has as many bags");
  static_assert(kThreads > kBags, "a thread reads one offset at the most");
  static_assert(kPitch > kRows, "there is a word for what has no row");

  // Lookups of a warp's bags, one of each 32 in every lane. An index of a small table is in the low
  // word; in that of -1 all bits are set.
  struct Lookups {
    uint32 indices[kBagsOfWarp][kSteps];
  };

  uint64 starts[kBags + 1];
  uint32 counts[kBags * kPitch];

  __device__ __forceinline__ uint64 length(int bag) const { return starts[bag + 1] - starts[bag]; }

  // Whether a bag has more lookups; by whole warps.
  __device__ __forceinline__ bool any_longer(uint64 than) const {
    bool longer = false;
#pragma unroll
    for (int first = 0; first < kBags; first += kLanes) {
      const int bag = first + threadIdx.x % kLanes;
      if (bag < kBags) longer |= length(bag) > than;
    }
    return __ballot_sync(kWarp, longer) != 0;
  }

  // Bags from bag_count on are empty.
  __device__ __forceinline__ void open(const Index* offsets, int first_bag, int bag_count) {
    const int thread = threadIdx.x;
    Index start = 0;
    if (thread <= kBags) {
      const int bag = first_bag + thread;
      start = offsets[bag < bag_count ? bag : bag_count];
    }
#pragma unroll
    for (int i = 0; i < kBags * kPitch; i += kThreads) {
      if (i + thread < kBags * kPitch) counts[i + thread] = 0;
    }
    if (thread <= kBags) starts[thread] = static_cast<uint64>(start);
  }

  // The first lookups of each bag.
  __device__ __forceinline__ void load(Lookups& lookups, const Index* indices) const {
#pragma unroll
    for (int i = 0; i < kBagsOfWarp; ++i) {
      const int bag = first_bag_of_warp() + i;
      load_bag(lookups.indices[i], indices + starts[bag], length(bag));
    }
  }

  // Counts them, and what is left of longer bags.
  __device__ __forceinline__ void add(const Lookups& lookups, const Index* indices) {
#pragma unroll
    for (int i = 0; i < kBagsOfWarp; ++i) add_bag(first_bag_of_warp() + i, lookups.indices[i]);
    if (!any_longer(kFirstLookups)) return;
#pragma unroll 1
    for (int i = 0; i < kBagsOfWarp; ++i) {
      const int bag = first_bag_of_warp() + i;
      const uint64 end = length(bag);
#pragma unroll 1
      for (uint64 first = kFirstLookups; first < end; first += kFirstLookups) {
        uint32 rest[kSteps];
        load_bag(rest, indices + starts[bag] + first, end - first);
        add_bag(bag, rest);
      }
    }
  }

 private:
  static __device__ __forceinline__ int first_bag_of_warp() {
    return threadIdx.x / kLanes * kBagsOfWarp;
  }

  // -1 where the bag has ended.
  static __device__ __forceinline__ void load_bag(uint32 (&loaded)[kSteps], const Index* first,
                                                  uint64 left) {
    const int lane = threadIdx.x % kLanes;
    const int of_lane = static_cast<int>(left < kFirstLookups ? left : kFirstLookups) - lane;
    const auto* low_words = reinterpret_cast<const uint32*>(first + lane);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool exists = step * kLanes < of_lane;
      loaded[step] = exists ? low_words[step * kLanes * (sizeof(Index) / sizeof(uint32))] : ~0u;
    }
  }

  // A pruned lookup (-1) has no row, nor has an index that no table of this size has.
  __device__ __forceinline__ void add_bag(int bag, const uint32 (&loaded)[kSteps]) {
    uint32* of_bag = counts + bag * kPitch;
#pragma unroll
    for (const uint32 index : loaded) atomicAdd(of_bag + (index < kRows ? index : kRows), 1u);
  }
};
