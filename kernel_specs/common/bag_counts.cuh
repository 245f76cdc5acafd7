// How often each row of a small table occurs in each of a block's bags: counters in shared memory.
#pragma once

#include "common/cuda_types.cuh"

constexpr int kLanes = 32;
constexpr uint32 kWarp = 0xffffffffu;
// Lookups of a bag that one warp has in flight together. What is left of a longer bag is shared by
// the whole block, so that one long bag holds up neither a warp nor the launch.
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
// kPitch: words between the counters of two bags.
//
// Call open(), __syncthreads(), load(), add(), __syncthreads(), each by every thread: then `counts`
// and length() are valid. What the caller does between them runs while memory answers.
template <typename Index, int kThreads, int kBags, int kRows, int kPitch>
struct BagCounts {
  static constexpr int kWarps = kThreads / kLanes;
  static constexpr int kBagsOfWarp = kBags / kWarps;
  static constexpr int kSteps = kFirstLookups / kLanes;
  static_assert(kBagsOfWarp * kWarps == kBags, "every warp has as many bags");
  static_assert(kThreads > kBags, "a thread reads one offset at the most");

  // The first lookups of a warp's bags, one of each 32 in every lane.
  struct FirstLookups {
    Index indices[kBagsOfWarp][kSteps];
  };

  uint64 starts[kBags + 1];
  uint32 counts[kBags * kPitch];

  __device__ __forceinline__ uint64 length(int bag) const { return starts[bag + 1] - starts[bag]; }

  __device__ __forceinline__ uint64 longest() const {
    uint64 result = 0;
#pragma unroll
    for (int bag = 0; bag < kBags; ++bag) result = length(bag) > result ? length(bag) : result;
    return result;
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

  __device__ __forceinline__ void load(FirstLookups& first, const Index* indices) const {
    const int lane = threadIdx.x % kLanes;
    const int warp = threadIdx.x / kLanes;
#pragma unroll
    for (int i = 0; i < kBagsOfWarp; ++i) {
      const int bag = warp * kBagsOfWarp + i;
      const Index* of_lane = indices + starts[bag] + lane;
      const int left = static_cast<int>(length(bag) < kFirstLookups ? length(bag) : kFirstLookups);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const bool exists = step * kLanes < left - lane;
        first.indices[i][step] = exists ? of_lane[step * kLanes] : Index(-1);
      }
    }
  }

  __device__ __forceinline__ void add(const FirstLookups& first, const Index* indices) {
    const int warp = threadIdx.x / kLanes;
#pragma unroll
    for (int i = 0; i < kBagsOfWarp; ++i) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        add_one(warp * kBagsOfWarp + i, first.indices[i][step]);
      }
    }
    if (longest() <= kFirstLookups) return;
#pragma unroll 1
    for (int bag = 0; bag < kBags; ++bag) {
      const uint64 end = length(bag);
      const Index* of_bag = indices + starts[bag];
#pragma unroll 1
      for (uint64 lookup = kFirstLookups + threadIdx.x; lookup < end; lookup += kThreads) {
        add_one(bag, of_bag[lookup]);
      }
    }
  }

 private:
  // An index that is not below kRows is not counted: a pruned lookup (-1), as it should be, and one
  // that no table of this size has.
  __device__ __forceinline__ void add_one(int bag, Index index) {
    if (static_cast<uint64>(index) < kRows) {
      atomicAdd(&counts[bag * kPitch + static_cast<int>(index)], 1u);
    }
  }
};
