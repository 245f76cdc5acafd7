// Pooled forward lookup, as `forward`, by blocks that go on with the work of others.
//
//   out[b, column_t : column_t + D_t] = scale_b * sum_i W_t[indices_i]
//
// i runs over the bag (t, b); scale_b = 1 for SUM and 1 / L_b for MEAN; index -1 (a pruned row)
// adds nothing but counts in L_b. Rows of fp16 or bf16 are widened to fp32 before they are added,
// in the order of the lookups; the result is rounded once. Those are the bits that `forward` gives
// in its short shape, which adds in that order too.
//
// For short bags: a block of theirs does little, so many have to start, and a device starts only so
// many in a time. Here a block that runs asks for the number of one that has not started while it
// works, and goes on with it: see common/next_block.cuh.
//
// In CUDA C++ because it needs a barrier that waits for the hardware's answer. A team of lanes
// holds a row, 16 bytes each, and has several rows of several bags in flight. Warps synchronise
// between loads that need each other, which costs next to nothing: ptxas else puts loads that could
// be under way together behind those that wait for memory.

#include "common/next_block.cuh"
#include "common/overlap.cuh"
#include "common/pooled_ptx.cuh"
#include "common/tensor_cores.cuh"
#include "common/warp.cuh"

constexpr int kBf16 = BF16;
constexpr int kBucket = BUCKET;
constexpr int kIndexWidth = INDEX_WIDTH;
constexpr int kBags = BAGS;  // Of a block.
constexpr int kUnroll = UNROLL;
constexpr int kWarps = NUM_WARPS;

constexpr int kThreads = kWarps * kLanes;
constexpr int kUnit = 8;                       // Elements of a vector.
constexpr int kTeamLanes = kBucket / kUnit;    // Lanes of a team.
constexpr int kTeams = kThreads / kTeamLanes;  // Of a block.
constexpr int kTeamBags = kBags / kTeams;      // Bags of a team, at once.
static_assert(kTeamLanes <= kLanes, "a team is in one warp");
static_assert(kTeamBags * kTeams == kBags, "every team has as many bags");

template <int width>
struct IndexOf {
  using type = int;
};
template <>
struct IndexOf<64> {
  using type = int64;
};
using Index = IndexOf<kIndexWidth>::type;
using Half = unsigned short;

struct Arguments {
  char* output;
  const Half* weights;
  const int64* features;
  const Index* indices;
  const Index* offsets;
  const int64* vbe_bag_offsets;
  const int64* vbe_output_offsets;
  int batch_size;
  int output_stride;
  int output_dtype;
  int mean;
  int vbe;
};

struct Bag {
  int64 start;
  int length;
};

__device__ __forceinline__ void add(float (&sums)[kUnit], const Vector& row) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    const uint32 word = row.words[i / 2];
    sums[i] += half_to_float<kBf16>(static_cast<Half>(i % 2 == 0 ? word : word >> 16));
  }
}

// Columns of a row from `element` of the output on, `columns` of them: whole vectors if `whole`.
__device__ __forceinline__ void store(const Arguments& call, int64 element,
                                      const float (&sums)[kUnit], int columns, bool whole) {
  if (call.output_dtype == 0) {
    auto* target = reinterpret_cast<uint32*>(call.output) + element;
    if (whole) {
#pragma unroll
      for (int i = 0; i < kUnit; i += 4) {
        Vector vector;
#pragma unroll
        for (int j = 0; j < 4; ++j) vector.words[j] = float_to_bits(sums[i + j]);
        store_streaming(reinterpret_cast<Vector*>(target + i), vector);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (i < columns) store_streaming(target + i, float_to_bits(sums[i]));
      }
    }
    return;
  }
  auto* target = reinterpret_cast<Half*>(call.output) + element;
  Vector vector;
#pragma unroll
  for (int i = 0; i < kUnit; i += 2) {
    vector.words[i / 2] = to_half_output(sums[i], sums[i + 1], call.output_dtype);
  }
  if (whole) {
    store_streaming(reinterpret_cast<Vector*>(target), vector);
  } else {
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const uint32 word = vector.words[i / 2];
      if (i < columns) {
        store_streaming(target + i, static_cast<Half>(i % 2 == 0 ? word : word >> 16));
      }
    }
  }
}

// The bags of one block.
__device__ __forceinline__ void pool(const Arguments& call, BlockNumber block) {
  // Columns of `features`: see csrc_launcher/core/layout.h.
  const int64* entry = call.features + static_cast<int64>(block.y) * 8;
  const int64 feature = entry[0];
  const Half* table = call.weights + entry[1];
  // 32 bits: multiplying a 64-bit index by it saves an instruction per row.
  const auto pitch = static_cast<uint32>(entry[2]);
  const auto dim = static_cast<int>(entry[3]);
  const int64 output_column = entry[5];
  int64 first_bag = feature * call.batch_size;
  int64 bag_count = call.batch_size;
  if (call.vbe != 0) {
    first_bag = call.vbe_bag_offsets[feature];
    bag_count = call.vbe_bag_offsets[feature + 1] - first_bag;
  }

  // Neighbouring teams have neighbouring bags.
  const int64 first = static_cast<int64>(block.x) * kBags + threadIdx.x / kTeamLanes;
  const int column = threadIdx.x % kTeamLanes * kUnit;
  const Index* offsets = call.offsets + first_bag;
  Bag bags[kTeamBags];
#pragma unroll
  for (int i = 0; i < kTeamBags; ++i) {
    const int64 bag = first + i * kTeams;
    int64 start = 0;
    int64 end = 0;
    if (bag < bag_count) {
      start = offsets[bag];
      end = offsets[bag + 1];
    }
    bags[i] = {start, static_cast<int>(end - start)};
  }
  __syncwarp();
  uint32 longest = 0;
#pragma unroll
  for (const Bag& bag : bags) {
    const auto length = static_cast<uint32>(bag.length);
    longest = length > longest ? length : longest;
  }
  longest = __reduce_max_sync(kWarp, longest);

  float sums[kTeamBags][kUnit] = {};
#pragma unroll 1
  for (int step = 0; static_cast<uint32>(step) < longest; step += kUnroll) {
    int64 indices[kUnroll][kTeamBags];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
#pragma unroll
      for (int i = 0; i < kTeamBags; ++i) {
        const bool exists = step + j < bags[i].length;
        indices[j][i] = exists ? call.indices[bags[i].start + step + j] : -1;
      }
    }
    __syncwarp();
    Vector rows[kUnroll][kTeamBags];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
#pragma unroll
      for (int i = 0; i < kTeamBags; ++i) {
        rows[j][i] = {};
        // The padding of a row is read with it and never stored.
        if (indices[j][i] >= 0 && column < dim) {
          const Half* row = table + indices[j][i] * pitch + column;
          rows[j][i] = *reinterpret_cast<const Vector*>(row);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
#pragma unroll
      for (int i = 0; i < kTeamBags; ++i) add(sums[i], rows[j][i]);
    }
  }

#pragma unroll
  for (int i = 0; i < kTeamBags; ++i) {
    const int64 bag = first + i * kTeams;
    if (bag >= bag_count || column >= dim) continue;
    if (call.mean != 0) {
      const auto length = static_cast<float>(bags[i].length > 1 ? bags[i].length : 1);
#pragma unroll
      for (float& sum : sums[i]) sum = divide(sum, length);
    }
    const int64 row = call.vbe != 0 ? call.vbe_output_offsets[first_bag + bag]
                                    : bag * call.output_stride + output_column;
    // Rows of the output start where the dims of all tables make them.
    const bool whole = row % kUnit == 0 && column + kUnit <= dim;
    store(call, row + column, sums[i], dim - column, whole);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    forward_work_stealing(char* output, const Half* weights, const int64* features,
                          const Index* indices, const Index* offsets, const int64* vbe_bag_offsets,
                          const int64* vbe_output_offsets, int batch_size, int output_stride,
                          int output_dtype, int mean, int vbe, int overlap, void*, void*) {
  __shared__ NextBlock next;
  begin(overlap);
  next.open();
  const Arguments call = {output,
                          weights,
                          features,
                          indices,
                          offsets,
                          vbe_bag_offsets,
                          vbe_output_offsets,
                          batch_size,
                          output_stride,
                          output_dtype,
                          mean,
                          vbe};
  BlockNumber block = {static_cast<uint32>(blockIdx.x), static_cast<uint32>(blockIdx.y)};
  uint32 asked = 0;
  do {
    next.ask();
    pool(call, block);
  } while (next.take(block, asked++));
  end(overlap);
}
