// One pass of a stable radix sort by the least significant digit first: keys and values move to
// where the digit of this pass puts them.
//
//   target(i) = #{j : digit_j < digit_i} + #{j < i : digit_j = digit_i}
//
// The first number comes from `histogram`, counted by whoever wrote the keys. The second is the
// rank inside the tile plus the counts of all tiles before it, which a block finds by looking back
// over the counts that those have published ("decoupled look-back": Merrill and Garland,
// "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016; for sorting: Adinets and
// Merrill, "Onesweep", 2022). One launch, each key read once and written once.
//
// In CUDA C++ because a rank needs votes within a warp and counters in shared memory, which Triton
// has not.
//
// Look-back waits for tiles before its own. Blocks start in the order of their numbers, so those
// have started and none of them waits for a later one.

#include "common/keys.cuh"
#include "common/overlap.cuh"
#include "common/ptx.cuh"
#include "common/warp.cuh"

constexpr int kKeyWidth = KEY_WIDTH;
constexpr int kDigitBits = DIGIT_BITS;
constexpr int kTile = TILE;      // Keys of a block.
constexpr int kWindow = WINDOW;  // Tiles that are looked at together.
constexpr int kWarps = NUM_WARPS;

using Key = KeyOf<kKeyWidth>::type;

constexpr int kThreads = kWarps * kLanes;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kItems = kTile / kThreads;  // Keys of a thread.
static_assert(kThreads == kDigits, "a thread owns the digit of its number");
static_assert(kItems * kThreads == kTile, "every thread has as many keys");

// A word of `status`: what a tile knows of a digit, and the count.
constexpr uint32 kTileOnly = 1u << 30;    // The count of this tile.
constexpr uint32 kTilesSoFar = 2u << 30;  // The count of this tile and of all before it.
constexpr uint32 kCount = kTileOnly - 1;

struct Shared {
  uint32 warp_digits[kWarps][kDigits];  // Keys of each digit; later where they start in the tile.
  uint32 next_digits[kDigits];
  uint32 targets[kDigits];  // Where a digit's first key goes, less where it is in the tile.
  uint32 warp_sums[kWarps];
  Key staged[kTile];  // Keys, later values, in the order of the tile's digits.
};

__device__ __forceinline__ int digit_of(Key key, int shift) {
  return static_cast<int>(key >> shift) & (kDigits - 1);
}

// The lanes of the warp that hold the same digit.
__device__ __forceinline__ uint32 find_peers(int digit) {
  uint32 peers = kWarp;
#pragma unroll
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool set = (digit >> bit & 1) != 0;
    const uint32 votes = __ballot_sync(kWarp, set);
    peers &= set ? votes : ~votes;
  }
  return peers;
}

// The sum of the values of all threads before this one.
__device__ __forceinline__ uint32 sum_before(uint32 value, uint32* warp_sums) {
  const int lane = threadIdx.x % kLanes;
  const int warp = threadIdx.x / kLanes;
  uint32 sum = value;
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const uint32 other = __shfl_up_sync(kWarp, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kLanes - 1) warp_sums[warp] = sum;
  __syncthreads();
  uint32 before = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) before += other < warp ? warp_sums[other] : 0;
  __syncthreads();
  return before + sum - value;
}

// The count of this thread's digit in all tiles before this one.
__device__ __forceinline__ uint32 look_back(const uint32* status, int tile) {
  uint32 count = 0;
  bool complete = tile == 0;
  int last = tile - 1;
  while (!complete) {
    uint32 words[kWindow];
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      const uint64 at = static_cast<uint64>(last - i) * kDigits + threadIdx.x;
      words[i] = last - i >= 0 ? load_relaxed(status + at) : kTilesSoFar;
    }
    int used = 0;
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
      // A tile counts only if all between it and this one are known.
      if (used == i && !complete && words[i] >= kTileOnly) {
        count += words[i] & kCount;
        complete = words[i] >= kTilesSoFar;
        ++used;
      }
    }
    last -= used;
  }
  return count;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    sort_pass(const Key* keys_in, const uint32* values_in, Key* keys_out, uint32* values_out,
              const uint32* histogram, uint32* next_histogram, uint32* status, int lookups,
              int shift, int count_up, int overlap, void*, void*) {
  __shared__ Shared shared;
  begin(overlap);
  const int thread = threadIdx.x;
  const int lane = thread % kLanes;
  const int warp = thread / kLanes;
  const int tile = blockIdx.x;
  const int first = tile * kTile;
  const int size = lookups - first < kTile ? lookups - first : kTile;
  const int warp_first = warp * kLanes * kItems;
  uint32* warp_counts = shared.warp_digits[warp];

  for (int other = 0; other < kWarps; ++other) shared.warp_digits[other][thread] = 0;
  shared.next_digits[thread] = 0;
  // Behind the last key come keys with the last digit. They follow every other key, no tile looks
  // back at them, and nobody stores them.
  Key keys[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = warp_first + i * kLanes + lane;
    keys[i] = at < size ? keys_in[first + at] : ~Key(0);
  }
  __syncthreads();

  uint32 ranks[kItems];  // Among the keys of the same digit in the warp.
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int digit = digit_of(keys[i], shift);
    const uint32 peers = find_peers(digit);
    const int leader = __ffs(peers) - 1;
    uint32 before = 0;
    if (lane == leader) {
      before = warp_counts[digit];
      warp_counts[digit] = before + __popc(peers);
    }
    ranks[i] = __shfl_sync(kWarp, before, leader) + __popc(peers & lanes_before(lane));
    if (warp_first + i * kLanes + lane < size) {
      atomicAdd(&shared.next_digits[digit_of(keys[i] >> shift, kDigitBits)], 1u);
    }
    __syncwarp();
  }
  __syncthreads();

  // From here on a thread also owns the digit of its number.
  uint32 count = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    const uint32 warp_count = shared.warp_digits[other][thread];
    shared.warp_digits[other][thread] = count;
    count += warp_count;
  }
  uint32* published = status + static_cast<uint64>(tile) * kDigits + thread;
  store_relaxed(published, (tile == 0 ? kTilesSoFar : kTileOnly) | count);
  if (shared.next_digits[thread] != 0) {
    atomicAdd(&next_histogram[thread], shared.next_digits[thread]);
  }
  const uint32 start = sum_before(count, shared.warp_sums);
  const uint32 all_before = sum_before(histogram[thread], shared.warp_sums);
#pragma unroll
  for (int other = 0; other < kWarps; ++other) shared.warp_digits[other][thread] += start;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    ranks[i] += warp_counts[digit_of(keys[i], shift)];
    shared.staged[ranks[i]] = keys[i];
  }
  const uint32 tiles_before = look_back(status, tile);
  if (tile > 0) store_relaxed(published, kTilesSoFar | (tiles_before + count));
  shared.targets[thread] = all_before + tiles_before - start;
  __syncthreads();

  // In the order of digits: neighbours go to neighbouring places.
  uint32 targets[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = i * kThreads + thread;
    if (at < size) {
      const Key key = shared.staged[at];
      targets[i] = shared.targets[digit_of(key, shift)] + at;
      keys_out[targets[i]] = key;
    }
  }
  __syncthreads();
  auto* staged_values = reinterpret_cast<uint32*>(shared.staged);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = warp_first + i * kLanes + lane;
    if (at < size) {
      staged_values[ranks[i]] =
          count_up != 0 ? static_cast<uint32>(first + at) : values_in[first + at];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = i * kThreads + thread;
    if (at < size) values_out[targets[i]] = staged_values[at];
  }
  end(overlap);
}
