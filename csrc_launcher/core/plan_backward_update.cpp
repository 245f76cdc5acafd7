#include <algorithm>
#include <limits>
#include <string>

#include "core/axis_values.h"
#include "core/error.h"
#include "core/fused_long_runs.h"
#include "core/kernel_lookup.h"
#include "core/launch_chain.h"
#include "core/launch_limits.h"
#include "core/optimizers.h"
#include "core/planner.h"
#include "core/small_tables.h"
#include "core/transpose_launches.h"
#include "core/transposed_format.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::kAdvanceCountersKernel;
using generated::kSumAndUpdateLongRunsKernel;
using generated::kSumChunksKernel;
using generated::kUpdateLongRunsKernel;
using generated::kUpdateShortRunsKernel;
using generated::SumChunksAligned;
using generated::SumChunksBucket;
using generated::SumChunksFactored;
using generated::SumChunksGradientDtype;
using generated::UpdateLongRunsAligned;
using generated::UpdateLongRunsBucket;
using generated::UpdateLongRunsOptimizer;
using generated::UpdateLongRunsWeightDtype;
using generated::UpdateShortRunsAligned;
using generated::UpdateShortRunsBucket;
using generated::UpdateShortRunsFactored;
using generated::UpdateShortRunsGradientDtype;
using generated::UpdateShortRunsOptimizer;
using generated::UpdateShortRunsWeightDtype;

// Why no group of this call may use an aligned variant; null when nothing speaks against it.
const char* why_all_generic(const BackwardUpdateRequest& request, const Layout& layout) {
  if (!is_vector_aligned(request.weights)) return "the weights' address is not a multiple of 16";
  if (!is_vector_aligned(request.gradient)) return "the gradient's address is not a multiple of 16";
  const OptimizerTraits& traits = traits_of(request.optimizer);
  if ((traits.momentum1 == StatePlace::kWeight && !is_vector_aligned(request.momentum1)) ||
      (traits.momentum2 == StatePlace::kWeight && !is_vector_aligned(request.momentum2))) {
    return "the address of the optimizer's state is not a multiple of 16";
  }
  if (request.vbe && !layout.all_rows_aligned()) {
    return "in a 1-D gradient rows of other features shift those of the group";
  }
  return nullptr;
}

void check(const BackwardUpdateRequest& request) {
  if (request.lookups < 0 || request.total_bags < 0 || request.gradient_numel < 0 ||
      request.multiprocessors < 1) {
    fail("negative size: ", request.lookups, " lookups, ", request.total_bags, " bags, ",
         request.gradient_numel, " elements of the gradient, ", request.multiprocessors,
         " multiprocessors");
  }
  check_lookups(request.lookups);
  if (request.gradient_numel > kMaxGradientNumel) {
    fail("the gradient has ", request.gradient_numel, " elements, allowed are ", kMaxGradientNumel);
  }
  if (!has_gradient_variants(request.weight_dtype, request.gradient_dtype)) {
    fail("gradients of weights are of the weights' dtype or fp32, widen others before");
  }
  if (!is_vector_aligned(request.transposed)) {
    fail("the address of the transposed lookups, ", request.transposed, ", is not a multiple of ",
         kVectorBytes);
  }
}

int32_t widest_bucket(const Layout& layout) {
  int32_t widest = 0;
  for (size_t i = 0; i < layout.group_count(); ++i) {
    if (layout.group(i).feature_count > 0) widest = std::max(widest, layout.group(i).bucket);
  }
  return widest;
}

// Whether the launches of a group are aligned; `generic_reason`: what why_all_generic() says.
bool is_aligned(const FeatureGroup& group, const char* generic_reason) {
  return group.aligned == 2 && generic_reason == nullptr;
}

// One memset clears the counters, and before a transposition what that needs cleared.
void clear_counters(Plan& plan, const BackwardUpdateRequest& request, const Layout& layout) {
  const int64_t bytes = counters_bytes(request, layout);
  if (bytes == 0) return;
  if (plan.clear.bytes > 0 &&
      static_cast<const unsigned char*>(request.counters) + bytes != plan.clear.address) {
    fail("the counters, ", bytes, " bytes at ", request.counters,
         ", do not end where the scratch memory of the transposition starts, at ",
         plan.clear.address);
  }
  plan.clear.address = request.counters;
  plan.clear.bytes += static_cast<size_t>(bytes);
}

// One launch of each kernel that updates serves one of these.
struct Group {
  FeatureGroup features;
  int64_t first_slot;
  bool aligned;
  const char* why_two_launches;  // For long runs; null: they take one.
};

// The launches of one call.
class Update {
 public:
  // `why_not_small`: why the kernels of a small table do not run, where that is of interest.
  Update(const BackwardUpdateRequest& request, const Layout& layout, LaunchChain& chain,
         const char* why_not_small)
      : request_(request),
        layout_(layout),
        chain_(chain),
        format_(transposed_format(request.lookups, layout.feature_count(), request.factored)),
        generic_reason_(why_all_generic(request, layout)),
        why_not_small_(why_not_small) {}

  // Nothing to launch where nothing is counted.
  void add_counters() {
    const bool counts_steps = traits_of(request_.optimizer).counts_updates;
    if (!counts_steps && request_.rounding_seed == nullptr) return;
    generated::AdvanceCountersArgs args{};
    args.step = request_.step;
    args.rounding_seed = request_.rounding_seed;
    args.found_inf = request_.found_inf;
    args.counts_steps = counts_steps ? 1 : 0;
    args.stochastic = request_.rounding_seed != nullptr ? 1 : 0;
    args.checked = request_.found_inf != nullptr ? 1 : 0;
    const Choice choice =
        choose_variant(request_.arch, kAdvanceCountersKernel, generated::advance_counters_cell({}));
    chain_.add(kAdvanceCountersKernel, choice, 1, 1, args);
    chain_.explain("counts the update: ", counts_steps ? "its step" : "",
                   counts_steps && args.stochastic != 0 ? " and " : "",
                   args.stochastic != 0 ? "the seed of its rounding" : "");
  }

  // The widest rows first: they take longest, and narrower ones fill the device beside their end.
  void add_groups() {
    // There may be some, as far as the host knows.
    const bool long_runs = request_.lookups >= kChunk;
    for_groups([this, long_runs](const Group& group) {
      if (long_runs && group.why_two_launches == nullptr) add_fused_long_runs(group);
      if (long_runs && group.why_two_launches != nullptr) add_sum_chunks(group);
    });
    for_groups([this](const Group& group) { add_short_runs(group); });
    for_groups([this, long_runs](const Group& group) {
      if (long_runs && group.why_two_launches != nullptr) add_long_runs(group);
    });
  }

 private:
  template <typename Body>
  void for_groups(const Body& body) const {
    int64_t end = layout_.feature_count();
    for (size_t i = layout_.group_count(); i-- > 0;) {
      const FeatureGroup features = layout_.group(i);
      end -= features.feature_count;
      if (features.feature_count == 0) continue;
      const bool aligned = is_aligned(features, generic_reason_);
      const char* why = why_two_launches(request_, layout_, features, aligned);
      body(Group{features, end, aligned, why});
    }
  }

  const void* section(int64_t start) const {
    return static_cast<const int32_t*>(request_.transposed) + start;
  }

  // Programs of a launch with work for `most` of them.
  int64_t programs(int32_t per_multiprocessor, int64_t most) const {
    return std::min<int64_t>(int64_t{per_multiprocessor} * request_.multiprocessors, most);
  }

  // What all of these kernels take under the same names.
  template <typename Args>
  Args common_args(const Group& group) const {
    Args args{};
    args.features = request_.features;
    args.run_starts = section(format_.run_starts);
    args.run_slots = section(format_.run_slots);
    args.run_begins = section(format_.run_begins + group.first_slot);
    args.group_slots = static_cast<int32_t>(group.features.feature_count);
    return args;
  }

  template <typename Args>
  void set_chunk_args(Args& args) const {
    args.partials = request_.partials;
    args.chunk_starts = section(format_.chunk_starts);
    args.chunk_runs = section(format_.chunk_runs);
    args.chunk_slots = static_cast<int32_t>(format_.chunks);
    args.partial_stride = widest_bucket(layout_);
  }

  template <typename Args>
  void set_gradient_args(Args& args) const {
    args.gradient = request_.gradient;
    args.positions = section(format_.positions);
    args.factors = section(format_.factors);
    args.gradient_scale = request_.gradient_scale;
    args.scaled = request_.gradient_scale != nullptr ? 1 : 0;
    args.clip = request_.clip > 0 ? request_.clip : std::numeric_limits<float>::infinity();
  }

  template <typename Args>
  void set_step_args(Args& args) const {
    args.weights = request_.weights;
    args.momentum1 = request_.momentum1;
    args.learning_rate = request_.learning_rate;
    args.found_inf = request_.found_inf;
    args.rounding_seed = request_.rounding_seed;
    args.run_rows = section(format_.run_rows);
    args.eps = request_.eps;
    args.l2_decay = request_.l2_decay;
    args.decoupled_decay = request_.decoupled_decay;
    // Variants of `rowwise` serve SGD too, which has no state.
    args.adagrad = traits_of(request_.optimizer).momentum1 == StatePlace::kRow ? 1 : 0;
    args.stochastic = request_.rounding_seed != nullptr ? 1 : 0;
    args.checked = request_.found_inf != nullptr ? 1 : 0;
  }

  // Of kernels that know all optimizers.
  template <typename Args>
  void set_optimizer_args(Args& args) const {
    set_step_args(args);
    args.momentum2 = request_.momentum2;
    args.step = request_.step;
    args.beta1 = request_.beta1;
    args.beta2 = request_.beta2;
  }

  // Adds a launch. Each waits first, also where only the launch before the last wrote what it
  // reads: the instruction that waits is what makes that memory visible.
  template <typename Args>
  void add(int32_t kernel, const Choice& choice, int64_t grid, const Args& args, const Group& group,
           const char* purpose, const std::string& why = {}) {
    chain_.add(kernel, choice, grid, 1, args, /*waits_first=*/true);
    if (chain_.explains()) {
      chain_.explain(purpose, " of ", group.features.feature_count, " features of bucket ",
                     group.features.bucket, "; ",
                     describe_row_alignment(group.features, generic_reason_),
                     why_not_small_ == nullptr
                         ? ""
                         : join("; not the small table's kernels because ", why_not_small_),
                     why);
    }
  }

  void add_fused_long_runs(const Group& group) {
    const Choice choice = choose_fused_long_runs(request_, group.features);
    const auto constants = generated::sum_and_update_long_runs_constants(*choice.info);
    check_chunk(choice, constants.CHUNK);
    auto args = common_args<generated::SumAndUpdateLongRunsArgs>(group);
    set_gradient_args(args);
    set_chunk_args(args);
    set_step_args(args);
    args.counters = request_.counters;
    add(kSumAndUpdateLongRunsKernel, choice, programs(constants.PROGRAMS_PER_SM, format_.chunks),
        args, group, "the sums of the chunks of long runs and one step for each of their rows",
        request_.fused_long_runs == FusedLongRuns::kAlways
            ? "; one launch because fused_long_runs is always"
            : "; one launch because a kernel does both for such rows");
  }

  void add_sum_chunks(const Group& group) {
    generated::SumChunksAxes axes{};
    axes.gradient_dtype = dtype_axis<SumChunksGradientDtype>(request_.gradient_dtype, "gradient");
    axes.bucket =
        bucket_axis<SumChunksBucket>(group.features.bucket, generated::kSumChunksBucketValues);
    axes.factored = request_.factored ? SumChunksFactored::factored : SumChunksFactored::plain;
    axes.aligned = group.aligned ? SumChunksAligned::aligned : SumChunksAligned::generic;
    const Choice choice =
        choose_variant(request_.arch, kSumChunksKernel, generated::sum_chunks_cell(axes));
    const auto constants = generated::sum_chunks_constants(*choice.info);
    check_chunk(choice, constants.CHUNK);
    auto args = common_args<generated::SumChunksArgs>(group);
    set_gradient_args(args);
    set_chunk_args(args);
    add(kSumChunksKernel, choice, programs(constants.PROGRAMS_PER_SM, format_.chunks), args, group,
        "the sums of the chunks of long runs",
        chain_.explains() ? join("; two launches because ", group.why_two_launches) : "");
  }

  void add_short_runs(const Group& group) {
    generated::UpdateShortRunsAxes axes{};
    axes.weight_dtype = dtype_axis<UpdateShortRunsWeightDtype>(request_.weight_dtype, "weight");
    axes.gradient_dtype =
        dtype_axis<UpdateShortRunsGradientDtype>(request_.gradient_dtype, "gradient");
    axes.bucket = bucket_axis<UpdateShortRunsBucket>(group.features.bucket,
                                                     generated::kUpdateShortRunsBucketValues);
    axes.factored =
        request_.factored ? UpdateShortRunsFactored::factored : UpdateShortRunsFactored::plain;
    axes.aligned =
        group.aligned ? UpdateShortRunsAligned::aligned : UpdateShortRunsAligned::generic;
    axes.optimizer = optimizer_axis<UpdateShortRunsOptimizer>(request_.optimizer);
    const Choice choice = choose_variant(request_.arch, kUpdateShortRunsKernel,
                                         generated::update_short_runs_cell(axes));
    const auto constants = generated::update_short_runs_constants(*choice.info);
    check_chunk(choice, constants.CHUNK);
    auto args = common_args<generated::UpdateShortRunsArgs>(group);
    set_gradient_args(args);
    set_optimizer_args(args);
    add(kUpdateShortRunsKernel, choice,
        programs(constants.PROGRAMS_PER_SM, ceil_div(request_.lookups, constants.RUNS)), args,
        group, "one step for each row with a short run");
  }

  void add_long_runs(const Group& group) {
    generated::UpdateLongRunsAxes axes{};
    axes.weight_dtype = dtype_axis<UpdateLongRunsWeightDtype>(request_.weight_dtype, "weight");
    axes.bucket = bucket_axis<UpdateLongRunsBucket>(group.features.bucket,
                                                    generated::kUpdateLongRunsBucketValues);
    axes.aligned = group.aligned ? UpdateLongRunsAligned::aligned : UpdateLongRunsAligned::generic;
    axes.optimizer = optimizer_axis<UpdateLongRunsOptimizer>(request_.optimizer);
    const Choice choice = choose_variant(request_.arch, kUpdateLongRunsKernel,
                                         generated::update_long_runs_cell(axes));
    const auto constants = generated::update_long_runs_constants(*choice.info);
    check_chunk(choice, constants.CHUNK);
    auto args = common_args<generated::UpdateLongRunsArgs>(group);
    set_chunk_args(args);
    set_optimizer_args(args);
    add(kUpdateLongRunsKernel, choice, programs(constants.PROGRAMS_PER_SM, format_.chunks), args,
        group, "one step for each row with a long run");
  }

  const BackwardUpdateRequest& request_;
  const Layout& layout_;
  LaunchChain& chain_;
  const TransposedFormat format_;
  const char* generic_reason_;
  const char* why_not_small_;
};

}  // namespace

int64_t partials_bytes(int64_t lookups, const Layout& layout) {
  if (lookups < kChunk) return 0;
  return ceil_div(lookups, kChunk) * widest_bucket(layout) * static_cast<int64_t>(sizeof(float));
}

int64_t counters_bytes(const BackwardUpdateRequest& request, const Layout& layout) {
  if (request.lookups < kChunk) return 0;
  const char* generic_reason = why_all_generic(request, layout);
  bool any = false;
  for (size_t i = 0; i < layout.group_count(); ++i) {
    const FeatureGroup group = layout.group(i);
    any |= group.feature_count > 0 &&
           why_two_launches(request, layout, group, is_aligned(group, generic_reason)) == nullptr;
  }
  if (!any) return 0;
  return ceil_div(ceil_div(request.lookups, kChunk) * static_cast<int64_t>(sizeof(int32_t)),
                  kVectorBytes) *
         kVectorBytes;
}

Plan plan_backward_update(const BackwardUpdateRequest& request, const Layout& layout,
                          Reasons* reasons) {
  check(request);
  Plan plan;
  plan.arch = request.arch;
  LaunchChain chain(plan, reasons);
  const bool any = request.lookups > 0 && request.total_bags > 0;
  const char* why_not_small = any ? why_not_small_table_update(request, layout) : nullptr;
  const bool general = any && why_not_small != nullptr;
  if (general && request.transpose != nullptr) {
    add_transpose(plan, chain, *request.transpose, layout);
  }
  if (general) clear_counters(plan, request, layout);
  Update update(request, layout, chain,
                tells_of_small_tables(request.small_tables, layout) ? why_not_small : nullptr);
  update.add_counters();
  if (general) update.add_groups();
  if (any && !general) add_small_table_update(chain, request, layout);
  if (!any && reasons != nullptr) reasons->push_back("no row is updated: there are no lookups");
  return plan;
}

}  // namespace tbe_aot
