// The lookups in the order of the rows that they hit, as one tensor of int32: what the operator
// transpose_indices returns and what updates read, on a GPU and on a CPU.
#pragma once

#include <cstdint>

namespace tbe_aot {

// Runs of so many lookups and more are summed in chunks; kernels are built for the same number.
inline constexpr int32_t kChunk = 128;
// Positions of lookups, and counts of them beside two flags, have 32 bits.
inline constexpr int64_t kMaxLookups = (int64_t{1} << 30) - 1;
// Positions in the gradient are uint32.
inline constexpr int64_t kMaxGradientNumel = int64_t{1} << 32;

// Where the sections start, in int32 words, for N lookups of T features.
// kernel_specs/operators.toml has `numel` as a formula, for the fake.
//
// A run is one row that was looked up, with every lookup that hit it; runs are in the order of
// rows, the lookups of a run in their own. A slot is a row of the features tensor. A row belongs to
// the last slot whose first global row is not after it.
struct TransposedFormat {
  int64_t run_rows = 0;    // int64 [N], global row of each run.
  int64_t positions = 0;   // uint32 [N], where the gradient of each sorted lookup's bag starts.
  int64_t run_starts = 0;  // [N + 1], first sorted lookup of each run; then N.
  int64_t run_slots = 0;   // [N], slot of each run.
  int64_t run_begins = 0;  // [T + 1], first run of each slot; the last entry is the number of runs.
  int64_t chunk_starts = 0;  // [chunks], first sorted lookup of the chunk that starts in a stretch
                             // of kChunk lookups; -1 for none.
  int64_t chunk_runs = 0;    // [chunks], run of that chunk; -1 for none.
  int64_t factors = 0;       // fp32 [N] if factored, else [0], factor of each sorted lookup.
  int64_t numel = 0;
  int64_t chunks = 0;  // ceil(N / kChunk)
};

// `factored`: with per-sample weights, or MEAN.
constexpr TransposedFormat transposed_format(int64_t lookups, int64_t feature_count,
                                             bool factored) {
  TransposedFormat format;
  format.chunks = (lookups + kChunk - 1) / kChunk;
  int64_t end = 0;
  const auto section = [&end](int64_t words) {
    const int64_t start = (end + 3) / 4 * 4;  // 16 bytes.
    end = start + words;
    return start;
  };
  format.run_rows = section(2 * lookups);
  format.positions = section(lookups);
  format.run_starts = section(lookups + 1);
  format.run_slots = section(lookups);
  format.run_begins = section(feature_count + 1);
  format.chunk_starts = section(format.chunks);
  format.chunk_runs = section(format.chunks);
  format.factors = section(factored ? lookups : 0);
  format.numel = end;
  return format;
}

}  // namespace tbe_aot
