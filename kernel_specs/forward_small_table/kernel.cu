// Pooled forward lookup of one feature whose table is small and whose bags are long.
//
//   out[b, c] = scale_b * sum_r count[b, r] * W[r, c],   count[b, r] = how often row r is in bag b
//
// scale_b = 1 for SUM and 1 / L_b for MEAN; index -1 (a pruned row) is counted in no row, but in
// L_b. Reading 64 rows once and multiplying on tensor cores takes the place of gathering L rows per
// bag. Counts are exact: they are taken apart into digits that the weights' dtype holds exactly,
// nearly always one. Products are exact, sums are fp32, as in the general kernel.
//
// In CUDA C++ because counting needs atomics on shared memory, which Triton has not: its histogram
// votes on every bit of every index, an order of magnitude more instructions.
//
// A block owns kBags bags, each of its warps kColumns columns of their output. 0 times a row that
// is not finite would be NaN in bags that do not have it: a warp that reads such a row adds up
// without tensor cores.

#include "common/bag_counts.cuh"
#include "common/overlap.cuh"
#include "common/tensor_cores.cuh"

constexpr int kBf16 = BF16;
constexpr int kRows = ROWS;
constexpr int kBucket = BUCKET;
constexpr int kIndexWidth = INDEX_WIDTH;
constexpr int kBags = BAGS;
constexpr int kWarps = NUM_WARPS;

constexpr int kThreads = kWarps * kLanes;
constexpr int kColumns = kBucket / kWarps;  // Of a warp.
constexpr int kTiles = kColumns / 8;        // Of 8 columns.
constexpr int kStepRows = 64;               // Rows that a lane holds together.
constexpr int kSteps = kStepRows / 16;
// Two words of 16 lanes at once, in different banks.
constexpr int kPitch = kRows + 8;
static_assert(kBags == 16, "what a product of tensor cores has");
static_assert(kTiles == 2, "lane 4 * g + q has 4 neighbouring columns of the output");
static_assert(kRows % kStepRows == 0, "rows are multiplied 64 at a time");

using Index = IndexOf<kIndexWidth>::type;
using Half = unsigned short;
using Exact = ExactIntegers<kBf16>;

struct alignas(8) Pair {
  uint32 first;
  uint32 second;
};
struct alignas(16) Quad {
  float values[4];
};

// Rows of the table that start at `row`, in the columns of this lane: b of multiply_add().
struct Rows {
  uint32 pairs[kSteps][kTiles][2];
};

struct Table {
  const Half* first;
  uint32 pitch;
  int rows;
  int padded_dim;
};

// Two neighbouring columns of a row; 0 outside the table.
__device__ __forceinline__ uint32 load_columns(const Table& table, int row, int column) {
  const bool inside = row < table.rows && column < table.padded_dim;
  const uint64 element = static_cast<uint64>(row) * table.pitch + column;
  return inside ? *reinterpret_cast<const uint32*>(table.first + element) : 0;
}

// Column g of tile j is 2 * g + j: the columns that a lane loads, and those that it stores, are
// neighbours.
__device__ __forceinline__ void load_rows(Rows& rows, const Table& table, int first_row,
                                          int first_column) {
  const int lane = threadIdx.x % kLanes;
  const int column = first_column + lane / 4 * 2;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + step * 16 + half * 8 + lane % 4 * 2;
      const uint32 upper = load_columns(table, row, column);
      const uint32 lower = load_columns(table, row + 1, column);
      rows.pairs[step][0][half] = (upper & 0xffffu) | lower << 16;
      rows.pairs[step][1][half] = upper >> 16 | (lower & 0xffff0000u);
    }
  }
}

__device__ __forceinline__ bool all_finite(const Rows& rows) {
  bool not_finite = false;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      not_finite |= any_not_finite<kBf16>(rows.pairs[step][tile][0]);
      not_finite |= any_not_finite<kBf16>(rows.pairs[step][tile][1]);
    }
  }
  return __ballot_sync(kWarp, not_finite) == 0;
}

// sums += counts * rows, of one digit of the counts.
__device__ __forceinline__ void add_products(float (&sums)[kTiles][4], const uint32* counts,
                                             const Rows& rows, int shift) {
  const int lane = threadIdx.x % kLanes;
  const uint32* mine = counts + lane / 4 * kPitch + lane % 4 * 2;
  constexpr uint32 kDigit = (1u << Exact::kBits) - 1;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32 digits[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const uint32* at = mine + part % 2 * 8 * kPitch + step * 16 + part / 2 * 8;
      const Pair pair = *reinterpret_cast<const Pair*>(at);
      digits[part] = Exact::pair(pair.first >> shift & kDigit, pair.second >> shift & kDigit);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      multiply_add<kBf16>(sums[tile], digits, rows.pairs[step][tile][0], rows.pairs[step][tile][1]);
    }
  }
}

// The same for rows that are not finite, each added only where it occurs.
__device__ __forceinline__ void add_one_by_one(float (&sums)[kTiles][4], const uint32* counts,
                                               const Table& table, int first_column) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int column = first_column + lane % 4 * 4 + i % 4;
    const uint32* of_bag = counts + (lane / 4 + i / 4 * 8) * kPitch;
    float sum = 0;
#pragma unroll 1
    for (int row = 0; row < table.rows; ++row) {
      const uint32 count = of_bag[row];
      if (count != 0 && column < table.padded_dim) {
        const Half bits = table.first[static_cast<uint64>(row) * table.pitch + column];
        sum += static_cast<float>(count) * half_to_float<kBf16>(bits);
      }
    }
    // Tiles and columns change places, as in load_rows().
    sums[i % 2][i / 4 * 2 + i % 4 / 2] = sum;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    forward_small_table(float* output, const Half* weights, const long long* features,
                        const Index* indices, const Index* offsets, Half* saved_counts,
                        int batch_size, int mean, int overlap, void*, void*) {
  using Bags = BagCounts<Index, kThreads, kBags, kRows, kPitch>;
  __shared__ Bags bags;
  begin(overlap);
  const int thread = threadIdx.x;
  const int lane = thread % kLanes;
  const int first_bag = blockIdx.x * kBags;
  const int first_column = thread / kLanes * kColumns;

  bags.open(offsets, first_bag, batch_size);
  // Columns of `features`: see csrc_launcher/core/layout.h.
  const int dim = static_cast<int>(features[3]);
  Table table;
  table.first = weights + features[1];
  table.pitch = static_cast<uint32>(features[2]);
  table.rows = static_cast<int>(features[4]);
  table.padded_dim = (dim + 7) / 8 * 8;
  __syncthreads();
  Bags::FirstLookups lookups;
  bags.load(lookups, indices);
  Rows rows;
  load_rows(rows, table, 0, first_column);
  bags.add(lookups, indices);
  __syncthreads();

  const uint64 longest = bags.longest();
  int digits = 1;
  while (longest >> digits * Exact::kBits != 0) ++digits;

  float sums[kTiles][4] = {};
  bool finite = true;
  // The highest digit first (Horner's scheme).
  for (int digit = digits - 1; digit >= 0; --digit) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (float& sum : sums[tile]) sum *= static_cast<float>(1 << Exact::kBits);
    }
#pragma unroll 1
    for (int row = 0; row < kRows; row += kStepRows) {
      if (kRows > kStepRows && (row > 0 || digit < digits - 1)) {
        load_rows(rows, table, row, first_column);
      }
      finite = finite && all_finite(rows);
      add_products(sums, bags.counts + row, rows, digit * Exact::kBits);
    }
  }
  if (!finite) add_one_by_one(sums, bags.counts, table, first_column);

  const int column = first_column + lane % 4 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int bag = lane / 4 + half * 8;
    if (first_bag + bag < batch_size) {
      Quad pooled;
#pragma unroll
      for (int i = 0; i < 4; ++i) pooled.values[i] = sums[i % 2][half * 2 + i / 2];
      const uint64 length = bags.length(bag);
      if (mean != 0 && length > 1) {
#pragma unroll
        for (float& value : pooled.values) value /= static_cast<float>(length);
      }
      float* target = output + static_cast<uint64>(first_bag + bag) * dim + column;
      if (dim % 4 == 0) {
        if (column < dim) *reinterpret_cast<Quad*>(target) = pooled;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (column + i < dim) target[i] = pooled.values[i];
        }
      }
    }
  }

  if (saved_counts != nullptr) {
    const int bag_count = batch_size - first_bag < kBags ? batch_size - first_bag : kBags;
    for (int i = thread; i < bag_count * kRows / 4; i += kThreads) {
      const uint32* at = bags.counts + i * 4 / kRows * kPitch + i * 4 % kRows;
      const Pair packed = {at[0] | at[1] << 16, at[2] | at[3] << 16};
      reinterpret_cast<Pair*>(saved_counts)[static_cast<uint64>(first_bag) * kRows / 4 + i] =
          packed;
    }
  }
  end(overlap);
}
