// Sums of the gradients of a small table's rows, for chunks of the batch.
//
//   partials[r, chunk, c] = sum over bags b of the chunk of count[b, r] * g[b, c]
//   used[r, chunk]        = 0 if no bag of the chunk has row r
//   g = clamp(gradient / scale, clip) * factor_b,   factor_b = 1 for SUM and 1 / L_b for MEAN
//
// count[b, r] is how often row r is in bag b, counted as in forward_small_table, what is out of
// bounds as of row 0: keeping its counts would save a microsecond here and cost half of one there.
// The products run on tensor cores. An fp32 gradient is the exact sum of three bf16 numbers, which
// have its range of exponents: nothing needs scaling, and a small gradient beside a large one loses
// nothing. A half one is widened as it is read. Tensor cores truncate while they add, so they add
// up 16 bags at a time, and fp32 additions, which round, do the rest (Ootomo and Yokota,
// "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical
// peak performance", 2022).
//
// In CUDA C++ because counting needs atomics on shared memory, which Triton has not.
//
// A block owns a chunk of the batch, kBags bags at a time; each of its warps some rows and 16
// columns of the sums. 0 times a gradient that is not finite would be NaN in rows that the bag does
// not have: 16 bags with such a gradient are added up without tensor cores.

#include "common/bag_counts.cuh"
#include "common/overlap.cuh"
#include "common/tensor_cores.cuh"

constexpr int kGradientDtype = GRADIENT_DTYPE;  // 0 fp32, 1 fp16, 2 bf16.
constexpr int kBucket = BUCKET;
constexpr int kIndexWidth = INDEX_WIDTH;
constexpr int kRows = ROWS;
constexpr int kBags = BAGS;
constexpr int kWarps = NUM_WARPS;

constexpr int kThreads = kWarps * kLanes;
constexpr int kColumns = 16;  // Of a warp.
constexpr int kTiles = kColumns / 8;
constexpr int kColumnGroups = kBucket / kColumns;
constexpr int kRowGroups = kWarps / kColumnGroups;
constexpr int kWarpRows = kRows / kRowGroups;
constexpr int kRowTiles = kWarpRows / 16;
constexpr int kStepBags = 16;  // Bags that tensor cores add up.
constexpr int kSteps = kBags / kStepBags;
constexpr int kParts = 3;  // bf16 numbers of a gradient.
// Words of counters between bags: lanes 4 * g + q read row g of bag 2q in different banks.
constexpr int kPitch = kRows + 4;
static_assert(kRowGroups * kColumnGroups == kWarps, "every warp has as many columns");
static_assert(kRowTiles * 16 * kRowGroups == kRows, "every warp has as many rows");
static_assert(kThreads % kRows == 0, "a thread looks at counters of one row");

using Index = IndexOf<kIndexWidth>::type;
template <int dtype>
struct NumberOf {
  using type = unsigned short;
};
template <>
struct NumberOf<0> {
  using type = float;
};
using Gradient = NumberOf<kGradientDtype>::type;
using Exact = ExactIntegers<true>;
using Sums = float[kRowTiles][kTiles][4];
using Bags = BagCounts<Index, CheckedIndex<Index, kRows>, kThreads, kBags, kRows, kPitch>;

struct alignas(8) Pair {
  float values[2];
};
struct alignas(2 * sizeof(Gradient)) Two {
  Gradient values[2];
};
struct alignas(16) Quad {
  float values[4];
};

struct Shared {
  Bags bags;
  float factors[kBags];
  uint32 used[kRows];  // The counters of a row, or-ed, of every bag so far.
  uint32 any;          // The counters of all rows, or-ed, of these bags.
};

__device__ __forceinline__ float widened(float value) { return value; }

__device__ __forceinline__ float widened(unsigned short bits) {
  return half_to_float<kGradientDtype == 2>(bits);
}

// Gradients of 16 bags in the columns of this lane: bags 2q, 2q + 1, 2q + 8, 2q + 9 and columns 2g,
// 2g + 1, for lane 4 * g + q.
struct Gradients {
  float values[4][2];
};

struct Source {
  const Gradient* first;
  int dim;
  bool in_pairs;  // Pairs of columns start at multiples of their size.
  float limit;

  __device__ __forceinline__ float at(uint64 element) const { return widened(first[element]); }
};

__device__ __forceinline__ int bag_of(int i) { return threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2; }

__device__ __forceinline__ Gradients load_gradients(const Source& source, int first_bag,
                                                    int bag_count, int column) {
  Gradients result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int bag = first_bag + bag_of(i);
    const uint64 element = static_cast<uint64>(bag) * source.dim + column;
    const bool exists = bag < bag_count;
    Pair pair = {};
    if (source.in_pairs) {
      if (exists && column < source.dim) {
        const Two two = reinterpret_cast<const Two*>(source.first)[element / 2];
        pair.values[0] = widened(two.values[0]);
        pair.values[1] = widened(two.values[1]);
      }
    } else {
      if (exists && column < source.dim) pair.values[0] = source.at(element);
      if (exists && column + 1 < source.dim) pair.values[1] = source.at(element + 1);
    }
    result.values[i][0] = pair.values[0];
    result.values[i][1] = pair.values[1];
  }
  return result;
}

__device__ __forceinline__ float absolute(float value) { return value < 0 ? -value : value; }

// NaN stays NaN.
__device__ __forceinline__ float clamp(float value, float limit) {
  return value > limit ? limit : value < -limit ? -limit : value;
}

// Clamps and scales; whether every gradient of the warp has bf16 parts, which the largest exponents
// have not. If not, all of them become 0.
__device__ __forceinline__ bool finish(Gradients& gradients, float limit, const float* factors) {
  bool large = false;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float factor = factors[bag_of(i)];
#pragma unroll
    for (float& value : gradients.values[i]) {
      value = clamp(value, limit) * factor;
      large |= (float_to_bits(value) & 0x7f000000u) == 0x7f000000u;
    }
  }
  const bool all_small = __ballot_sync(kWarp, large) == 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (float& value : gradients.values[i]) value = all_small ? value : 0;
  }
  return all_small;
}

// The next bf16 part of two gradients, the rest of which is left in their places.
__device__ __forceinline__ uint32 split(float& first, float& second) {
  const uint32 part = to_bf16(first, second);
  first -= bits_to_float(part << 16);
  second -= bits_to_float(part & 0xffff0000u);
  return part;
}

// sum += value, keeping what rounding the sum adds to it (Kahan, "Further remarks on reducing
// truncation errors", 1965): a long chunk loses no more than a short one.
__device__ __forceinline__ void add_compensated(float& sum, float& lost, float value) {
  const float rest = value - lost;
  const float next = sum + rest;
  const float more = next - sum - rest;
  lost = more - more == 0 ? more : 0;  // Where the sum is not finite, nothing is lost.
  sum = next;
}

// Counters of bags 2q, 2q + 1, 2q + 8, 2q + 9, for rows g and g + 8: one digit of them, or all of
// them if they have no other.
template <bool one_digit>
__device__ __forceinline__ void load_digits(uint32 (&digits)[4], const uint32* counts, int digit) {
  const auto of = [digit](uint32 count) {
    return one_digit ? count : count >> digit * Exact::kBits & ((1u << Exact::kBits) - 1);
  };
  const uint32* mine = counts + threadIdx.x % 4 * 2 * kPitch + threadIdx.x % kLanes / 4;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const uint32* at = mine + part / 2 * 8 * kPitch + part % 2 * 8;
    digits[part] = Exact::pair(of(at[0]), of(at[kPitch]));
  }
}

// sums += counts * gradients of 16 bags. `one_digit`: the counts have no other.
template <bool one_digit>
__device__ __forceinline__ void add_step(Sums& sums, const uint32* counts,
                                         const uint32 (&parts)[kParts][kTiles][2], int digits) {
  Sums products = {};
  // The highest digit first (Horner's scheme).
#pragma unroll 1
  for (int digit = digits - 1; digit >= 0; --digit) {
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      uint32 of_rows[4];
      load_digits<one_digit>(of_rows, counts + row_tile * 16, digit);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float (&product)[4] = products[row_tile][tile];
        if (!one_digit) {
#pragma unroll
          for (float& value : product) value *= static_cast<float>(1 << Exact::kBits);
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          multiply_add<true>(product, of_rows, parts[part][tile][0], parts[part][tile][1]);
        }
      }
    }
    if (one_digit) break;
  }
#pragma unroll
  for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      sums[row_tile][i / 4][i % 4] += products[row_tile][i / 4][i % 4];
    }
  }
}

// The same for gradients without bf16 parts, each added only to rows that the bag has.
__device__ __forceinline__ void add_one_by_one(Sums& sums, const uint32* counts,
                                               const Source& source, const float* factors,
                                               int first_bag, int bag_count, int first_column) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < kRowTiles * kTiles * 4; ++i) {
    const int column = first_column + lane % 4 * 4 + i % 4;
    const int row = i / 8 * 16 + i / 4 % 2 * 8 + lane / 4;
    float sum = 0;
#pragma unroll 1
    for (int bag = 0; bag < kStepBags && first_bag + bag < bag_count; ++bag) {
      const uint32 count = counts[bag * kPitch + row];
      if (count != 0 && column < source.dim) {
        const uint64 at = static_cast<uint64>(first_bag + bag) * source.dim + column;
        sum += static_cast<float>(count) * (clamp(source.at(at), source.limit) * factors[bag]);
      }
    }
    // Tiles and columns change places: see the end of the kernel.
    sums[i / 8][i % 2][i / 4 % 2 * 2 + i % 4 / 2] += sum;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    sum_small_table(float* partials, int* used, const Gradient* gradient, const long long* features,
                    const Index* indices, const Index* offsets, const float* gradient_scale,
                    int batch_size, int chunk_bags, int mean, float clip, int scaled, int overlap,
                    void*, void*) {
  __shared__ Shared shared;
  begin(overlap);
  const int thread = threadIdx.x;
  const int lane = thread % kLanes;
  const int warp = thread / kLanes;
  const int first_column = warp % kColumnGroups * kColumns;
  const int first_row = warp / kColumnGroups * kWarpRows;
  const int chunk = blockIdx.x;
  const int chunk_first = chunk * chunk_bags;
  const int chunk_end =
      batch_size - chunk_first < chunk_bags ? batch_size : chunk_first + chunk_bags;

  Source source;
  source.first = gradient;
  source.dim = static_cast<int>(features[3]);  // Columns: see csrc_launcher/core/layout.h.
  const uint32 rows = static_cast<uint32>(features[4]);
  source.in_pairs = source.dim % 2 == 0 && reinterpret_cast<uint64>(gradient) % sizeof(Two) == 0;
  // Clamped as they are, unscaled with the factor: sums of what is still scaled may be too large.
  const float scale = scaled != 0 ? *gradient_scale : 1.0f;
  const float unscale = 1.0f / scale;
  source.limit = clip * absolute(scale);
  if (thread < kRows) shared.used[thread] = 0;

  Sums sums = {};
  Sums lost = {};
#pragma unroll 1
  for (int first_bag = chunk_first; first_bag < chunk_end; first_bag += kBags) {
    if (first_bag > chunk_first) __syncthreads();  // Everyone has read the counters before.
    shared.bags.open(offsets, first_bag, chunk_end);
    if (thread == 0) shared.any = 0;
    __syncthreads();
    Bags::Lookups lookups;
    shared.bags.load(lookups, indices);
    shared.bags.add(lookups, indices, rows);
    const int column = first_column + lane / 4 * 2;
    Gradients next = load_gradients(source, first_bag, chunk_end, column);
    if (thread < kBags) {
      const uint64 length = shared.bags.length(thread);
      const float share = mean != 0 && length > 1 ? 1.0f / static_cast<float>(length) : 1.0f;
      shared.factors[thread] = share * unscale;
    }
    __syncthreads();
    shared.bags.count_invalid_as_row_0(rows, [](int, uint32) {});
    uint32 bits = 0;
#pragma unroll
    for (int bag = thread / kRows; bag < kBags; bag += kThreads / kRows) {
      bits |= shared.bags.counts()[bag * kPitch + thread % kRows];
    }
    if (bits != 0) {
      atomicOr(&shared.used[thread % kRows], bits);
      atomicOr(&shared.any, bits);
    }
    __syncthreads();

    int digits = 1;
    while (digits * Exact::kBits < 32 && shared.any >> digits * Exact::kBits != 0) ++digits;
    Sums of_bags = {};
    uint32 left_out = 0;  // Steps without bf16 parts.
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      Gradients gradients = next;
      if (step + 1 < kSteps) {
        next = load_gradients(source, first_bag + (step + 1) * kStepBags, chunk_end, column);
      }
      const uint32* counts = shared.bags.counts() + step * kStepBags * kPitch + first_row;
      if (!finish(gradients, source.limit, shared.factors + step * kStepBags)) {
        left_out |= 1u << step;
      }
      // The smallest part first.
      uint32 parts[kParts][kTiles][2];
#pragma unroll
      for (int part = kParts - 1; part >= 0; --part) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          parts[part][tile][0] = split(gradients.values[0][tile], gradients.values[1][tile]);
          parts[part][tile][1] = split(gradients.values[2][tile], gradients.values[3][tile]);
        }
      }
      if (digits == 1) {
        add_step<true>(of_bags, counts, parts, 1);
      } else {
        add_step<false>(of_bags, counts, parts, digits);
      }
    }
#pragma unroll 1
    for (int step = 0; left_out >> step != 0; ++step) {
      if ((left_out >> step & 1) != 0) {
        add_one_by_one(of_bags, shared.bags.counts() + step * kStepBags * kPitch + first_row,
                       source, shared.factors + step * kStepBags, first_bag + step * kStepBags,
                       chunk_end, first_column);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowTiles * kTiles * 4; ++i) {
      float& sum = sums[i / 8][i / 4 % 2][i % 4];
      add_compensated(sum, lost[i / 8][i / 4 % 2][i % 4], of_bags[i / 8][i / 4 % 2][i % 4]);
    }
  }

  // Columns 4q to 4q + 3: tile j has column 2 * n + j where tensor cores have column n.
  const int chunks = (batch_size + chunk_bags - 1) / chunk_bags;
#pragma unroll
  for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + row_tile * 16 + half * 8 + lane / 4;
      Quad quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) quad.values[i] = sums[row_tile][i % 2][half * 2 + i / 2];
      const uint64 at = (static_cast<uint64>(row) * chunks + chunk) * kBucket;
      *reinterpret_cast<Quad*>(partials + at + first_column + lane % 4 * 4) = quad;
    }
  }
  __syncthreads();
  if (thread < kRows) used[thread * chunks + chunk] = shared.used[thread] != 0;
  end(overlap);
}
