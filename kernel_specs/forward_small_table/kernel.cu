// Pooled forward lookup of one feature whose table is small and whose bags are long.
//
//   out[b, c] = scale_b * sum_r count[b, r] * W[r, c],   count[b, r] = how often row r is in bag b
//
// scale_b = 1 for SUM and 1 / L_b for MEAN; index -1 (a pruned row) is counted in no row, but in
// L_b. If kChecked, an index outside [-1, rows) is counted as of row 0 and reported as
// check_indices does: invalid_count[0] += their number; report[2] = max(N - position) over them.
//
// Reading every row once and multiplying on tensor cores takes the place of gathering L rows
// per bag. Counts are exact: they are taken apart into digits that the weights' dtype holds
// exactly, nearly always one. Products are exact, sums are fp32, as in the general kernel.
//
// In CUDA C++ because counting needs atomics on shared memory, which Triton has not: its histogram
// votes on every bit of every index, an order of magnitude more instructions.
//
// A block owns kBags bags, each of its warps kColumns columns of their output. 0 times a row that
// is not finite makes NaN of bags that do not have it: what is not finite is added up again, row by
// row.

#include "common/bag_counts.cuh"
#include "common/overlap.cuh"
#include "common/tensor_cores.cuh"

constexpr int kBf16 = BF16;
constexpr int kRows = ROWS;
constexpr int kBucket = BUCKET;
constexpr int kIndexWidth = INDEX_WIDTH;
constexpr int kChecked = CHECKED;
constexpr int kBags = BAGS;
constexpr int kWarps = NUM_WARPS;

constexpr int kThreads = kWarps * kLanes;
constexpr int kColumns = kBucket / kWarps;  // Of a warp.
constexpr int kTiles = kColumns / 8;        // Of 8 columns.
constexpr int kLaneColumns = kTiles * 2;    // Of the output; neighbours, four at a time.
constexpr int kStepRows = 64;               // Rows that a warp holds together.
constexpr int kSteps = kStepRows / 16;
// Of a multiprocessor. Left to itself (0), ptxas saves so many registers of 256 rows, or with a
// check, that it spills.
constexpr int kLeastBlocks = kRows > kStepRows || (kChecked != 0 && kWarps == 4) ? 4 : 0;
// Two words of 16 lanes at once, in different banks.
constexpr int kPitch = kRows + 8;
static_assert(kBags == 16, "what a product of tensor cores has");
static_assert(kTiles == 2 || kTiles == 4, "a lane loads columns of a row in one or two words");
static_assert(kRows % kStepRows == 0, "rows are multiplied so many at a time");

using Index = IndexOf<kIndexWidth>::type;
using Half = unsigned short;
using Exact = ExactIntegers<kBf16>;
template <bool checked>
struct KindOf {
  using type = TrustedIndex<Index, kRows>;
};
template <>
struct KindOf<true> {
  using type = CheckedIndex<Index, kRows>;
};
using IndexKind = KindOf<kChecked != 0>::type;
using Bags = BagCounts<Index, IndexKind, kThreads, kBags, kRows, kPitch>;
using Sums = float[kTiles][4];

struct alignas(8) Pair {
  uint32 first;
  uint32 second;
};
struct alignas(16) Quad {
  float values[4];
};
struct alignas(8) HalfQuad {
  uint32 words[2];
};
struct alignas(kTiles * 2) Columns {
  uint32 words[kTiles / 2];
};

struct Table {
  const Half* first;
  uint32 pitch;
  uint32 rows;
  uint32 dim;
};

// Rows of the table in the columns of a warp: b of multiply_add().
struct Rows {
  uint32 pairs[kSteps][kTiles][2];
};

// Column g of tile j is kTiles * g + j: the columns that a lane loads, and those that it stores,
// are neighbours. 0 outside the table; columns up to the next multiple of 16 bytes are read and put
// aside.
__device__ __forceinline__ void load_rows(Rows& rows, const Table& table, uint32 first_row,
                                          uint32 first_column) {
  const uint32 lane = threadIdx.x % kLanes;
  const uint32 column = first_column + lane / 4 * kTiles;
  const uint32 row = first_row + lane % 4 * 2;
  const uint32 end = column < table.dim ? table.rows : 0;
  uint32 kept[kTiles];
#pragma unroll
  for (uint32 tile = 0; tile < kTiles; ++tile) kept[tile] = column + tile < table.dim ? ~0u : 0;
  uint32 element = row * table.pitch + column;
#pragma unroll
  for (uint32 i = 0; i < kSteps * 2; ++i) {
    Columns upper = {};
    Columns lower = {};
    if (row + i * 8 < end) upper = *reinterpret_cast<const Columns*>(table.first + element);
    if (row + i * 8 + 1 < end) {
      lower = *reinterpret_cast<const Columns*>(table.first + (element + table.pitch));
    }
    element += 8 * table.pitch;
#pragma unroll
    for (uint32 tile = 0; tile < kTiles; ++tile) {
      const uint32 above = upper.words[tile / 2];
      const uint32 below = lower.words[tile / 2];
      const uint32 pair =
          tile % 2 == 0 ? (above & 0xffffu) | below << 16 : above >> 16 | (below & 0xffff0000u);
      rows.pairs[i / 2][tile][i % 2] = pair & kept[tile];
    }
  }
}

// sums += counts * rows. If `one_digit`, the counts have no other than the lowest.
template <bool one_digit>
__device__ __forceinline__ void add_products(Sums& sums, const uint32* counts, const Rows& rows,
                                             int digit) {
  const int lane = threadIdx.x % kLanes;
  const uint32* mine = counts + lane / 4 * kPitch + lane % 4 * 2;
  const auto of = [digit](uint32 count) {
    return one_digit ? count : count >> digit * Exact::kBits & ((1u << Exact::kBits) - 1);
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32 digits[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const uint32* at = mine + part % 2 * 8 * kPitch + step * 16 + part / 2 * 8;
      const Pair pair = *reinterpret_cast<const Pair*>(at);
      digits[part] = Exact::pair(of(pair.first), of(pair.second));
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      multiply_add<kBf16>(sums[tile], digits, rows.pairs[step][tile][0], rows.pairs[step][tile][1]);
    }
  }
}

__device__ __forceinline__ bool is_finite(const Sums& sums) {
  float rest = 0;  // NaN if one is not.
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (const float sum : sums[tile]) rest += sum * 0;
  }
  return rest == 0;
}

// Sum i of a lane: of bag lane / 4 and then of the bag 8 further on, column after column.
__device__ __forceinline__ float& lane_sum(Sums& sums, int i) {
  const int column = i % kLaneColumns;
  return sums[column % kTiles][i / kLaneColumns * 2 + column / kTiles];
}

__device__ __forceinline__ void add_row_by_row(Sums& sums, const uint32* counts, const Table& table,
                                               int first_column) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < kLaneColumns * 2; ++i) {
    const uint32 column = first_column + lane % 4 * kLaneColumns + i % kLaneColumns;
    const uint32* of_bag = counts + (lane / 4 + i / kLaneColumns * 8) * kPitch;
    float sum = 0;
#pragma unroll 1
    for (uint32 row = 0; row < table.rows && column < table.dim; ++row) {
      if (of_bag[row] != 0) {
        const Half bits = table.first[row * table.pitch + column];
        sum += static_cast<float>(of_bag[row]) * half_to_float<kBf16>(bits);
      }
    }
    lane_sum(sums, i) = sum;
  }
}

// Four columns of a row of the output, `columns` of which there are: all of them if `whole`.
__device__ __forceinline__ void store(char* output, int output_dtype, uint64 element,
                                      const Quad& pooled, uint32 columns, bool whole) {
  if (output_dtype == 0) {
    auto* target = reinterpret_cast<float*>(output) + element;
    if (whole) {
      *reinterpret_cast<Quad*>(target) = pooled;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < columns) target[i] = pooled.values[i];
      }
    }
    return;
  }
  auto* target = reinterpret_cast<Half*>(output) + element;
  const float* values = pooled.values;
  const HalfQuad rounded = {{to_half_output(values[0], values[1], output_dtype),
                             to_half_output(values[2], values[3], output_dtype)}};
  if (whole) {
    *reinterpret_cast<HalfQuad*>(target) = rounded;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < columns) target[i] = static_cast<Half>(rounded.words[i / 2] >> i % 2 * 16);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kLeastBlocks)
    forward_small_table(char* output, const Half* weights, const long long* features,
                        const Index* indices, const Index* offsets, int batch_size, int mean,
                        int output_dtype, int overlap, long long* invalid_count, long long* report,
                        long long indices_numel, void*, void*) {
  __shared__ Bags bags;
  begin(overlap);
  const int thread = threadIdx.x;
  const int lane = thread % kLanes;
  const int first_bag = blockIdx.x * kBags;
  const int first_column = thread / kLanes * kColumns;

  bags.open(offsets, first_bag, batch_size);
  // Columns of `features`: see csrc_launcher/core/layout.h.
  Table table;
  table.first = weights + features[1];
  table.pitch = static_cast<uint32>(features[2]);
  table.dim = static_cast<uint32>(features[3]);
  table.rows = static_cast<uint32>(features[4]);
  __syncthreads();
  Bags::Lookups lookups;
  bags.load(lookups, indices);
  Rows rows;
  load_rows(rows, table, 0, first_column);
  bags.add(lookups, indices, table.rows);
  __syncthreads();
  if constexpr (kChecked != 0) {
    bags.count_invalid_as_row_0(table.rows, [&](int bag, uint32 invalid) {
      const uint64 first = bags.first_invalid(bag, indices, table.rows);
      if (lane == 0) {
        atomicAdd(reinterpret_cast<uint64*>(invalid_count), static_cast<uint64>(invalid));
        atomicMax(report + 2, indices_numel - static_cast<long long>(first));
      }
    });
  }

  Sums sums = {};
  if (!bags.any_longer((1 << Exact::kBits) - 1)) {
    add_products<true>(sums, bags.counts(), rows, 0);
#pragma unroll 1
    for (int row = kStepRows; row < kRows; row += kStepRows) {
      load_rows(rows, table, row, first_column);
      add_products<true>(sums, bags.counts() + row, rows, 0);
    }
  } else {
    // The highest digit first (Horner's scheme).
#pragma unroll 1
    for (int digit = 32 / Exact::kBits; digit >= 0; --digit) {
#pragma unroll
      for (int i = 0; i < kLaneColumns * 2; ++i) {
        lane_sum(sums, i) *= static_cast<float>(1 << Exact::kBits);
      }
#pragma unroll 1
      for (int row = 0; row < kRows; row += kStepRows) {
        load_rows(rows, table, row, first_column);
        add_products<false>(sums, bags.counts() + row, rows, digit);
      }
    }
  }
  if (__ballot_sync(kWarp, !is_finite(sums)) != 0) {
    add_row_by_row(sums, bags.counts(), table, first_column);
  }

#pragma unroll
  for (int i = 0; i < kLaneColumns * 2; i += 4) {
    const int bag = lane / 4 + i / kLaneColumns * 8;
    const uint32 column = first_column + lane % 4 * kLaneColumns + i % kLaneColumns;
    if (first_bag + bag < batch_size && column < table.dim) {
      Quad pooled;
#pragma unroll
      for (int j = 0; j < 4; ++j) pooled.values[j] = lane_sum(sums, i + j);
      const uint64 length = bags.length(bag);
      if (mean != 0 && length > 1) {
#pragma unroll
        for (float& value : pooled.values) value /= static_cast<float>(length);
      }
      const uint64 element = static_cast<uint64>(first_bag + bag) * table.dim + column;
      store(output, output_dtype, element, pooled, table.dim - column, table.dim % 4 == 0);
    }
  }

  end(overlap);
}
