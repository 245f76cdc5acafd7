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

// How indices are counted that may be trusted: what has no row goes to the word after the rows, so
// that counting needs no branch.
template <typename Index, int kRows>
struct TrustedIndex {
  // Of a lookup in flight, the first of its index. An index of a small table is in the low word; in
  // that of -1 all bits are set.
  using Word = uint32;
  static constexpr Word kNone = ~0u;
  static constexpr int kFirst = 0;  // The word of place 0, from that of row 0 on.

  static __device__ __forceinline__ uint32 place(Word index, uint32 /*rows*/) {
    return index < kRows ? index : kRows;
  }
};

// How others are: a pruned one (-1) goes to the word before the rows, one outside [-1, rows) to the
// word after them. Takes the registers of 64 bits for each lookup that has them.
template <typename Index, int kRows>
struct CheckedIndex {
  using Word = Index;
  static constexpr Word kNone = -1;
  static constexpr int kFirst = -1;

  static __device__ __forceinline__ uint32 place(int index, uint32 rows) {
    const uint32 place = static_cast<uint32>(index) + 1;
    return place < rows + 1 ? place : rows + 1;
  }
  static __device__ __forceinline__ uint32 place(long long index, uint32 rows) {
    const int low = static_cast<int>(index);
    const int high = static_cast<int>(static_cast<uint64>(index) >> 32);
    return high == low >> 31 ? place(low, rows) : rows + 1;
  }
};

// kBags bags of one feature, whose table has at most kRows rows, counted by kThreads threads.
// IndexKind: TrustedIndex or CheckedIndex; for the latter an index outside [-1, rows) counts as one
// of row 0, or of none if there are no rows.
//
// kPitch: words between the counters of two bags, at least two more than kRows.
//
// Call open(), __syncthreads(), load(), add(), __syncthreads(), each by every thread, and then, of
// CheckedIndex, count_invalid_as_row_0(): then the counters are complete. What the caller does
// between them runs while memory answers.
template <typename Index, typename IndexKind, int kThreads, int kBags, int kRows, int kPitch>
struct BagCounts {
  static constexpr int kWarps = kThreads / kLanes;
  static constexpr int kBagsOfWarp = kBags / kWarps;
  static constexpr int kSteps = kFirstLookups / kLanes;
  // Words before the rows of the first bag, at a multiple of 16 bytes.
  static constexpr int kLead = IndexKind::kFirst < 0 ? 4 : 0;
  static_assert(kBagsOfWarp * kWarps == kBags, "every warp has as many bags");
  static_assert(kThreads > kBags, "a thread reads one offset at the most");
  static_assert(kPitch >= kRows + 2, "there are words for what has no row");

  // Lookups of a warp's bags, one of each 32 in every lane.
  struct Lookups {
    typename IndexKind::Word indices[kBagsOfWarp][kSteps];
  };

  uint64 starts[kBags + 1];
  uint32 words[kLead + kBags * kPitch];

  // Those of bag 0, a word per row; the next bag's are kPitch further on.
  __device__ __forceinline__ uint32* counts() { return words + kLead; }
  __device__ __forceinline__ const uint32* counts() const { return words + kLead; }

  __device__ __forceinline__ uint64 length(int bag) const { return starts[bag + 1] - starts[bag]; }

  // Whether a bag has more lookups; by whole warps.
  __device__ __forceinline__ bool any_longer(uint64 than) const {
    return any_bag([&](int bag) { return length(bag) > than; });
  }

  // Bags from bag_count on are empty.
  __device__ __forceinline__ void open(const Index* offsets, int first_bag, int bag_count) {
    constexpr int kWords = kLead + kBags * kPitch;
    const int thread = threadIdx.x;
    Index start = 0;
    if (thread <= kBags) {
      const int bag = first_bag + thread;
      start = offsets[bag < bag_count ? bag : bag_count];
    }
#pragma unroll
    for (int i = 0; i < kWords; i += kThreads) {
      if (i + thread < kWords) words[i + thread] = 0;
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
  __device__ __forceinline__ void add(const Lookups& lookups, const Index* indices, uint32 rows) {
#pragma unroll
    for (int i = 0; i < kBagsOfWarp; ++i) {
      add_bag(first_bag_of_warp() + i, lookups.indices[i], rows);
    }
    if (!any_longer(kFirstLookups)) return;
#pragma unroll 1
    for (int i = 0; i < kBagsOfWarp; ++i) {
      const int bag = first_bag_of_warp() + i;
      const uint64 end = length(bag);
#pragma unroll 1
      for (uint64 first = kFirstLookups; first < end; first += kFirstLookups) {
        typename IndexKind::Word rest[kSteps];
        load_bag(rest, indices + starts[bag] + first, end - first);
        add_bag(bag, rest, rows);
      }
    }
  }

  // Calls visit(bag, number) for each bag with indices that are out of bounds, by a warp each, and
  // counts them as of row 0.
  template <typename Visit>
  __device__ __forceinline__ void count_invalid_as_row_0(uint32 rows, const Visit& visit) {
    // All threads see the same.
    if (!any_bag([&](int bag) { return counts()[bag * kPitch + rows] != 0; })) return;
    __syncthreads();  // Everyone has looked.
#pragma unroll 1
    for (int i = 0; i < kBagsOfWarp; ++i) {
      const int bag = first_bag_of_warp() + i;
      uint32* of_bag = counts() + bag * kPitch;
      const uint32 invalid = of_bag[rows];
      if (__ballot_sync(kWarp, invalid != 0) == 0) continue;
      if (threadIdx.x % kLanes == 0) {
        of_bag[rows] = 0;
        if (rows > 0) of_bag[0] += invalid;
      }
      visit(bag, invalid);
    }
    __syncthreads();
  }

  // The first lookup of a bag whose index is out of bounds, which there must be; by a warp.
  __device__ __forceinline__ uint64 first_invalid(int bag, const Index* indices,
                                                  uint32 rows) const {
    for (uint64 first = starts[bag];; first += kFirstLookups) {
      typename IndexKind::Word loaded[kSteps];
      load_bag(loaded, indices + first, starts[bag + 1] - first);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const bool valid = IndexKind::place(loaded[step], rows) <= rows;
        const uint32 invalid = __ballot_sync(kWarp, !valid);
        if (invalid != 0) return first + step * kLanes + __ffs(static_cast<int>(invalid)) - 1;
      }
    }
  }

 private:
  static __device__ __forceinline__ int first_bag_of_warp() {
    return threadIdx.x / kLanes * kBagsOfWarp;
  }

  template <typename Condition>
  static __device__ __forceinline__ bool any_bag(const Condition& condition) {
    bool any = false;
#pragma unroll
    for (int first = 0; first < kBags; first += kLanes) {
      const int bag = first + threadIdx.x % kLanes;
      if (bag < kBags) any |= condition(bag);
    }
    return __ballot_sync(kWarp, any) != 0;
  }

  // None where the bag has ended.
  static __device__ __forceinline__ void load_bag(typename IndexKind::Word (&loaded)[kSteps],
                                                  const Index* first, uint64 left) {
    const int lane = threadIdx.x % kLanes;
    const int of_lane = static_cast<int>(left < kFirstLookups ? left : kFirstLookups) - lane;
    const auto* words = reinterpret_cast<const typename IndexKind::Word*>(first + lane);
    constexpr auto kWordsOfIndex = sizeof(Index) / sizeof(*words);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool exists = step * kLanes < of_lane;
      loaded[step] = exists ? words[step * kLanes * kWordsOfIndex] : IndexKind::kNone;
    }
  }

  __device__ __forceinline__ void add_bag(int bag, const typename IndexKind::Word (&loaded)[kSteps],
                                          uint32 rows) {
    uint32* of_bag = counts() + bag * kPitch + IndexKind::kFirst;
#pragma unroll
    for (const auto index : loaded) atomicAdd(of_bag + IndexKind::place(index, rows), 1u);
  }
};
