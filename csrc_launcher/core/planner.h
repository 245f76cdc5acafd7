// From pointers and sizes to launches. Pure: reads no memory behind the pointers, calls no driver,
// knows no torch. Pointers are addresses on the device that the launches will run on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/layout.h"
#include "core/plan.h"

namespace tbe_aot {

// The values are those that kernels take at run time for a dtype.
enum class Dtype : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// Why a plan is what it is, one sentence each, for people.
using Reasons = std::vector<std::string>;

// Whether the kernels for small tables take the lookups that they can take.
enum class SmallTables : int32_t { kAuto, kNever, kAlways };

// Whether the kernels that look up check the indices too, rather than a kernel before them.
enum class FusedChecks : int32_t { kAuto, kNever, kAlways };

struct CheckBoundsRequest;

// T features, B bags per feature, N lookups.
struct ForwardRequest {
  int32_t arch = 0;  // Index in kBuild.archs, from device_arch().
  Dtype weight_dtype = Dtype::kFloat32;
  Dtype output_dtype = Dtype::kFloat32;
  int32_t index_width = 64;  // 32 or 64, of indices and offsets.
  bool mean = false;

  const void* output = nullptr;  // [B, output_width]; VBE: 1-D.
  const void* weights = nullptr;
  const void* features = nullptr;            // int64 [T, 8].
  const void* indices = nullptr;             // [N]
  const void* offsets = nullptr;             // [total_bags + 1]
  const void* per_sample_weights = nullptr;  // fp32 [N]; null: unweighted.
  const void* vbe_bag_offsets = nullptr;     // int64 [T + 1]; null: not VBE.
  const void* vbe_output_offsets = nullptr;  // int64 [total_bags]; null: not VBE.

  int64_t lookups = 0;     // N
  int64_t batch_size = 0;  // B; VBE: most bags of any feature.
  int64_t total_bags = 0;  // T * B; VBE: offsets.numel() - 1.

  SmallTables small_tables = SmallTables::kAuto;
  bool work_stealing = false;  // Where there is a kernel that can (core/work_stealing.h).

  // Planned first, where given: `indices` and `offsets` are then those of the check. Its copy of
  // the indices is needed unless fuses_checks().
  const CheckBoundsRequest* check = nullptr;
  FusedChecks fused_checks = FusedChecks::kAuto;
};

// Launches of the pooled lookup: one per group of features (more where a group has more features
// than one grid can hold), none where there is no bag; perhaps behind those of a bounds check. An
// absent optional array with N = 0 may be null. Throws Error when a size exceeds what the kernels
// can address or a bucket is unknown.
Plan plan_forward(const ForwardRequest& request, const Layout& layout, Reasons* reasons = nullptr);

// The report that the bounds-check kernels fill: int64 [kReportSize] on the device.
inline constexpr int32_t kReportSize = 4;
enum ReportEntry : int32_t {
  kBadOffsets = 0,         // Number of bad entries in the offsets.
  kFirstBadOffset = 1,     // offsets_numel - position of the first bad entry; 0 = none.
  kFirstInvalidIndex = 2,  // lookups - position of the first invalid index; 0 = none.
  kInvalidIndices = 3,     // Their number, when the caller gave no invalid_count.
};

// Whether the launches of a lookup with a check check the indices themselves. Looks at all of the
// request but `indices`, `offsets` and what is in `check`.
bool fuses_checks(const ForwardRequest& request, const Layout& layout);

struct CheckBoundsRequest {
  int32_t arch = 0;
  int32_t index_width = 64;  // 32 or 64, of indices and offsets.

  const void* indices = nullptr;          // [N]
  const void* offsets = nullptr;          // [offsets_numel]
  const void* features = nullptr;         // int64 [T, 8]
  const void* vbe_bag_offsets = nullptr;  // int64 [T + 1]; null: not VBE.
  void* indices_out = nullptr;            // [N], the checked copy.
  void* offsets_out = nullptr;            // [offsets_numel], the checked copy.
  void* report = nullptr;                 // int64 [kReportSize]; cleared by the plan.
  void* invalid_count = nullptr;          // int64 [1], added to; null: counted in the report.

  int64_t feature_count = 0;
  int64_t lookups = 0;
  int64_t offsets_numel = 0;
  int64_t batch_size = 0;  // B; VBE: most bags of any feature, or any bound of it.
};

// Launches that copy indices and offsets and put right what is out of bounds in the copies.
Plan plan_check_bounds(const CheckBoundsRequest& request, Reasons* reasons = nullptr);

// What transpose_indices does: who uses which row.
struct TransposeRequest {
  int32_t arch = 0;
  int32_t index_width = 64;  // 32 or 64, of indices and offsets.
  bool mean = false;

  const void* features = nullptr;            // int64 [T, 8].
  const void* indices = nullptr;             // [N]
  const void* offsets = nullptr;             // [total_bags + 1]
  const void* per_sample_weights = nullptr;  // fp32 [N]; null: unweighted.
  const void* vbe_bag_offsets = nullptr;     // int64 [T + 1]; null: not VBE.
  const void* vbe_output_offsets = nullptr;  // int64 [total_bags]; null: not VBE.
  void* transposed = nullptr;                // As transposed_format.h says; the result.
  void* scratch = nullptr;  // transpose_scratch_bytes() bytes, at a multiple of 16.

  int64_t lookups = 0;     // N
  int64_t batch_size = 0;  // B; VBE: most bags of any feature.
  int64_t total_bags = 0;  // T * B; VBE: offsets.numel() - 1.
};

// How much memory the launches of plan_transpose() work in: a multiple of 16; 0 where nothing is
// transposed. Throws Error as plan_transpose() does.
int64_t transpose_scratch_bytes(const TransposeRequest& request, const Layout& layout);

// Launches that linearise the lookups, sort them by row and find the runs. Without lookups or bags
// run_begins alone is written, with zeros. Throws Error when a size exceeds what the kernels can
// address.
Plan plan_transpose(const TransposeRequest& request, const Layout& layout,
                    Reasons* reasons = nullptr);

enum class Optimizer : int32_t;  // core/optimizers.h

// Whether one launch sums the chunks of long runs and updates their rows, where there is a kernel
// for that. The bits are those of two launches.
enum class FusedLongRuns : int32_t { kAuto, kNever, kAlways };

struct BackwardUpdateRequest {
  int32_t arch = 0;
  int32_t multiprocessors = 1;  // Of the device, from device_multiprocessors().
  Dtype weight_dtype = Dtype::kFloat32;
  Dtype gradient_dtype = Dtype::kFloat32;  // One that has_gradient_variants().
  Optimizer optimizer{};                   // The first one.
  bool factored = false;                   // With per-sample weights, or MEAN.
  bool vbe = false;

  void* weights = nullptr;
  const void* gradient = nullptr;        // [B, output_width]; VBE: 1-D.
  void* momentum1 = nullptr;             // fp32; null where the optimizer has none.
  void* momentum2 = nullptr;             // fp32; null where the optimizer has none.
  void* step = nullptr;                  // int64 [1]; null where the optimizer has none.
  void* rounding_seed = nullptr;         // int64 [1]; null: rows are rounded to the nearest.
  const void* learning_rate = nullptr;   // fp32 [1]
  const void* gradient_scale = nullptr;  // fp32 [1]; null: 1.
  const void* found_inf = nullptr;       // fp32 [1]; null: 0.
  const void* features = nullptr;        // int64 [T, 8].
  const void* transposed = nullptr;      // As transposed_format.h says.
  void* partials = nullptr;  // partials_bytes() bytes or, unless that is 0, small_table_bytes(), at
                             // a multiple of 16.
  // counters_bytes() bytes, cleared by the plan; directly before the scratch memory of `transpose`,
  // where that is given, which is cleared with them.
  void* counters = nullptr;

  int64_t lookups = 0;  // N
  int64_t total_bags = 0;
  int64_t gradient_numel = 0;
  float eps = 0;
  double beta1 = 0;
  double beta2 = 0;
  float l2_decay = 0;
  float decoupled_decay = 0;
  float clip = 0;  // 0: none.

  SmallTables small_tables = SmallTables::kAuto;
  FusedLongRuns fused_long_runs = FusedLongRuns::kAuto;

  // Planned first, where given: what writes `transposed`.
  const TransposeRequest* transpose = nullptr;
};

// How much memory the sums of chunks take: a multiple of 16; 0 where there cannot be a long run.
int64_t partials_bytes(int64_t lookups, const Layout& layout);

// How much memory an update works in that the kernels of a small table make, which transposes
// nothing; 0 where they do not run. Looks at all of the request but `transposed` and `partials`.
int64_t small_table_bytes(const BackwardUpdateRequest& request, const Layout& layout);

// How much memory the counts of chunks take: a multiple of 16; 0 where no group sums and updates
// long runs in one launch. Looks at all of the request but memory that a call works in.
int64_t counters_bytes(const BackwardUpdateRequest& request, const Layout& layout);

// Whether there are kernels for a gradient of that dtype; others are widened to fp32 before.
constexpr bool has_gradient_variants(Dtype weight_dtype, Dtype gradient_dtype) {
  return gradient_dtype == Dtype::kFloat32 || gradient_dtype == weight_dtype;
}

// Launches that take one step of the optimizer for every row that was looked up, perhaps behind
// those that transpose the lookups. Throws Error when a size exceeds what the kernels can address
// or a bucket is unknown.
Plan plan_backward_update(const BackwardUpdateRequest& request, const Layout& layout,
                          Reasons* reasons = nullptr);

struct SampleWeightsGradientRequest {
  int32_t arch = 0;
  Dtype weight_dtype = Dtype::kFloat32;
  Dtype gradient_dtype = Dtype::kFloat32;  // One that has_gradient_variants().
  int32_t index_width = 64;                // 32 or 64, of indices and offsets.
  bool mean = false;

  void* result = nullptr;          // fp32 [N]
  const void* gradient = nullptr;  // [B, output_width]; VBE: 1-D.
  const void* weights = nullptr;
  const void* features = nullptr;            // int64 [T, 8].
  const void* indices = nullptr;             // [N]
  const void* offsets = nullptr;             // [total_bags + 1]
  const void* vbe_bag_offsets = nullptr;     // int64 [T + 1]; null: not VBE.
  const void* vbe_output_offsets = nullptr;  // int64 [total_bags]; null: not VBE.

  int64_t lookups = 0;     // N
  int64_t batch_size = 0;  // B; VBE: most bags of any feature.
  int64_t total_bags = 0;  // T * B; VBE: offsets.numel() - 1.
};

// Launches of the gradient of the per-sample weights: one per group of features (more where a group
// has more features than one grid can hold). Without bags the result is cleared.
Plan plan_per_sample_weights_gradient(const SampleWeightsGradientRequest& request,
                                      const Layout& layout, Reasons* reasons = nullptr);

}  // namespace tbe_aot
