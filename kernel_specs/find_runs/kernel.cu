// The runs of the sorted lookups: stretches of equal keys, each the lookups of one row.
//
// Run r is the sorted lookups run_starts[r] .. run_starts[r + 1]; its row is run_rows[r], in the
// table of the feature in row run_slots[r] of `features` (the last one whose first_global_row is
// not after it). Rows s, s + 1, ... of `features` own the runs from run_begins[s] on; run_begins[T]
// is the number of runs that own a row: pruned lookups, whose key is total_rows, come last and form
// one more run, of slot T.
//
// A run of CHUNK lookups or more is long, and cut into chunks of CHUNK, the last taking the rest
// too: lookup j starts a chunk if it is a multiple of CHUNK after the start of its run and the run
// goes on for CHUNK lookups. Starts lie at least CHUNK apart, so that entry j / CHUNK of the chunk
// arrays is free for it: no counter, and the chunks of a run side by side. Pruned lookups have no
// chunks.
//
// A block owns a tile of TILE sorted lookups. How many runs start before it, and where the latest
// does, comes by looking back over what the blocks before it have published ("decoupled look-back":
// Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016). Blocks
// start in the order of their numbers, so those have started and none of them waits for a later
// one.

#include "common/keys.cuh"
#include "common/overlap.cuh"
#include "common/ptx.cuh"
#include "common/warp.cuh"

constexpr int kKeyWidth = KEY_WIDTH;
constexpr int kTile = TILE;    // Lookups of a block.
constexpr int kChunk = CHUNK;  // Lookups of a chunk.
constexpr int kWarps = NUM_WARPS;

using Key = KeyOf<kKeyWidth>::type;

constexpr int kThreads = kWarps * kLanes;
constexpr int kItems = kTile / kThreads;    // Lookups of a thread, kLanes apart.
constexpr int kWarpTile = kItems * kLanes;  // Lookups of a warp, side by side.
constexpr int kChunks = kTile / kChunk;
static_assert(kItems * kThreads == kTile, "every thread has as many lookups");
static_assert(kChunks * kChunk == kTile && kChunks <= kThreads, "a thread stores a chunk");

// A word of `status`: what a tile knows, how many runs, and the place of the latest start. Places
// are counted from 1; 0 says that no run starts there.
constexpr uint64 kTileOnly = 1ull << 62;    // Of this tile.
constexpr uint64 kTilesSoFar = 2ull << 62;  // Of this tile and of all before it.
constexpr uint32 kHalf = (1u << 31) - 1;

struct Starts {
  uint32 count;
  uint32 latest;
};

struct Shared {
  Starts of_warp[kWarps];
  Starts before;  // In all tiles before this one.
  int chunk_starts[kChunks];
  int chunk_runs[kChunks];
};

__device__ __forceinline__ Starts joined(Starts first, Starts second) {
  return {first.count + second.count, second.latest != 0 ? second.latest : first.latest};
}

__device__ __forceinline__ uint64 word_of(Starts starts) {
  return static_cast<uint64>(starts.count) << 31 | starts.latest;
}

// What is before this tile, for every thread of one warp.
__device__ __forceinline__ Starts look_back(const uint64* status, int tile, int lane) {
  Starts found{};  // By this lane.
  int nearest = tile - 1;
  while (nearest >= 0) {
    const int other = nearest - lane;
    const uint64 word = other >= 0 ? load_relaxed(status + other) : kTilesSoFar;
    const uint32 known = __ballot_sync(kWarp, word != 0);
    const uint32 complete = __ballot_sync(kWarp, word >= kTilesSoFar);
    const int last = complete != 0 ? __ffs(static_cast<int>(complete)) - 1 : kLanes - 1;
    const uint32 needed = kWarp >> (kLanes - 1 - last);
    // Tiles count only if all between them and this one are known.
    if ((known & needed) != needed) continue;
    if (lane <= last) {
      found.count += static_cast<uint32>(word >> 31) & kHalf;
      const uint32 latest = static_cast<uint32>(word) & kHalf;
      found.latest = latest > found.latest ? latest : found.latest;
    }
    nearest = complete != 0 ? -1 : nearest - kLanes;
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    found.count += __shfl_xor_sync(kWarp, found.count, distance);
    const uint32 latest = __shfl_xor_sync(kWarp, found.latest, distance);
    found.latest = latest > found.latest ? latest : found.latest;
  }
  return found;
}

__device__ __forceinline__ int64 first_row(const int64* features, int slot, int slots,
                                           int64 total_rows) {
  return slot < slots ? features[static_cast<int64>(slot) * 8 + 7] : total_rows;
}

// The slot of a key that belongs to none before `slot`; slot T for pruned lookups.
__device__ __forceinline__ int find_slot(const int64* features, int64 key, int slot, int slots,
                                         int64 total_rows) {
  int slot_after = slots + 1;
  while (slot + 1 < slot_after) {
    const int middle = (slot + slot_after) / 2;
    if (first_row(features, middle, slots, total_rows) <= key) {
      slot = middle;
    } else {
      slot_after = middle;
    }
  }
  return slot;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    find_runs(const Key* keys, const uint32* values, const uint32* lookup_positions,
              const float* lookup_factors, uint32* positions, float* factors, int* run_starts,
              int64* run_rows, int* run_slots, int* run_begins, int* chunk_starts, int* chunk_runs,
              uint64* status, const int64* features, int lookups, int feature_count,
              int64 total_rows, int factored, int overlap, void*, void*) {
  __shared__ Shared shared;
  begin(overlap);
  const int thread = threadIdx.x;
  const int lane = thread % kLanes;
  const int warp = thread / kLanes;
  const int tile = blockIdx.x;
  const int tile_first = tile * kTile;
  const int first = tile_first + warp * kWarpTile;  // This warp's first lookup.
  const int stop = lookups - first < kWarpTile ? lookups : first + kWarpTile;

  Key own[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int lookup = first + i * kLanes + lane;
    own[i] = lookup < stop ? keys[lookup] : Key(0);
  }
  // No key is all ones, so the first lookup starts a run.
  const Key key_before = first > 0 && first < stop ? keys[first - 1] : ~Key(0);
  if (thread < kChunks) shared.chunk_starts[thread] = shared.chunk_runs[thread] = -1;

  uint32 starts[kItems];  // A bit per lane, the same in every lane.
  Starts of_warp{};
  Key last_of_row = key_before;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const Key neighbour = __shfl_up_sync(kWarp, own[i], 1);
    const Key before = lane == 0 ? last_of_row : neighbour;
    last_of_row = __shfl_sync(kWarp, own[i], kLanes - 1);
    const int row = first + i * kLanes;
    starts[i] = __ballot_sync(kWarp, row + lane < stop && own[i] != before);
    of_warp.count += __popc(starts[i]);
    if (starts[i] != 0) of_warp.latest = row + highest_bit(starts[i]) + 1;
  }
  if (lane == 0) shared.of_warp[warp] = of_warp;
  __syncthreads();
  Starts before{};  // In this tile.
  Starts of_tile{};
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    if (other == warp) before = of_tile;
    of_tile = joined(of_tile, shared.of_warp[other]);
  }
  if (thread == 0) {
    store_relaxed(status + tile, (tile == 0 ? kTilesSoFar : kTileOnly) | word_of(of_tile));
  }

  // Keys ascend: all of a warp belong to the slots from that of its first key to that of its last.
  int first_slot = 0;
  int last_slot = 0;
  bool opens_slots = false;
  if (first < stop) {
    first_slot = find_slot(features, own[0], 0, feature_count, total_rows);
    first_slot = __shfl_sync(kWarp, first_slot, 0);
    last_slot = find_slot(features, keys[stop - 1], first_slot, feature_count, total_rows);
    opens_slots = first == 0 || first_row(features, last_slot, feature_count, total_rows) >
                                    static_cast<int64>(key_before);
  }

  if (warp == 0) {
    const Starts found = look_back(status, tile, lane);
    if (lane == 0) {
      shared.before = found;
      if (tile > 0) store_relaxed(status + tile, kTilesSoFar | word_of(joined(found, of_tile)));
    }
  }
  if (factored != 0) {
    // `values` and `positions` are one memory: all is read before anything is written.
    uint32 number[kItems];
    uint32 position[kItems];
    float factor[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int lookup = first + i * kLanes + lane;
      number[i] = lookup < stop ? values[lookup] : 0;
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      position[i] = lookup_positions[number[i]];
      factor[i] = lookup_factors[number[i]];
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int lookup = first + i * kLanes + lane;
      if (lookup < stop) {
        positions[lookup] = position[i];
        factors[lookup] = factor[i];
      }
    }
  }
  __syncthreads();
  before = joined(shared.before, before);

  last_of_row = key_before;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int row = first + i * kLanes;
    const int lookup = row + lane;
    const Key key = own[i];
    const uint32 starts_so_far = starts[i] & (lanes_before(lane) | 1u << lane);
    const bool is_start = (starts[i] >> lane & 1) != 0;
    const int run = static_cast<int>(before.count) + __popc(starts_so_far) - 1;
    int slot = last_slot;
    if (is_start) {
      if (first_slot != last_slot) {
        slot = find_slot(features, key, first_slot, feature_count, total_rows);
      }
      run_starts[run] = lookup;
      run_rows[run] = key;
      run_slots[run] = slot;
    }
    if (lookup == lookups - 1) run_starts[run + 1] = lookups;

    if (opens_slots) {
      // A start is the first run of all slots whose first row lies after the key before it.
      const Key neighbour = __shfl_up_sync(kWarp, key, 1);
      const Key before_key = lane == 0 ? last_of_row : neighbour;
      const int64 opened_after = lookup == 0 ? -1 : static_cast<int64>(before_key);
      const bool opens =
          is_start && first_row(features, slot, feature_count, total_rows) > opened_after;
      for (uint32 left = __ballot_sync(kWarp, opens); left != 0; left &= left - 1) {
        const int leader = __ffs(static_cast<int>(left)) - 1;
        const int64 after = __shfl_sync(kWarp, opened_after, leader);
        const int opened_run = __shfl_sync(kWarp, run, leader);
        for (int opened = __shfl_sync(kWarp, slot, leader) - lane;
             opened >= 0 && first_row(features, opened, feature_count, total_rows) > after;
             opened -= kLanes) {
          run_begins[opened] = opened_run;
        }
      }
      last_of_row = __shfl_sync(kWarp, key, kLanes - 1);
    }

    // A run that ends before this row of lanes does has no chunk.
    const bool ends = starts[i] >> lane >> 1 != 0;
    const int run_start =
        starts_so_far != 0 ? row + highest_bit(starts_so_far) : static_cast<int>(before.latest) - 1;
    if (lookup < stop && !ends && (lookup - run_start) % kChunk == 0 &&
        lookups - lookup >= kChunk && key < static_cast<Key>(total_rows) &&
        keys[lookup + kChunk - 1] == key) {
      shared.chunk_starts[(lookup - tile_first) / kChunk] = lookup;
      shared.chunk_runs[(lookup - tile_first) / kChunk] = run;
    }
    before.count += __popc(starts[i]);
    if (starts[i] != 0) before.latest = row + highest_bit(starts[i]) + 1;
  }
  if (first < stop && stop == lookups) {
    // Nothing belongs to the slots after that of the last key.
    for (int slot = last_slot + 1 + lane; slot <= feature_count; slot += kLanes) {
      run_begins[slot] = static_cast<int>(before.count);
    }
  }
  __syncthreads();
  const int chunk = tile * kChunks + thread;
  if (thread < kChunks && chunk * kChunk < lookups) {
    chunk_starts[chunk] = shared.chunk_starts[thread];
    chunk_runs[chunk] = shared.chunk_runs[thread];
  }
  end(overlap);
}
