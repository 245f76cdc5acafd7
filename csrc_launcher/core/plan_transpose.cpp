#include <algorithm>
#include <limits>
#include <string>

#include "core/axis_values.h"
#include "core/error.h"
#include "core/kernel_lookup.h"
#include "core/kernel_table.h"
#include "core/launch_chain.h"
#include "core/launch_limits.h"
#include "core/planner.h"
#include "core/transpose_launches.h"
#include "core/transposed_format.h"
#include "tbe_aot_generated.h"

namespace tbe_aot {
namespace {

using generated::FindRunsKeyWidth;
using generated::kFindRunsKernel;
using generated::kLineariseLookupsKernel;
using generated::kSortPassKernel;
using generated::LineariseLookupsIndexWidth;
using generated::LineariseLookupsKeyWidth;
using generated::LineariseLookupsShape;
using generated::SortPassKeyWidth;
using generated::SortPassSize;

constexpr int64_t kWord = sizeof(int32_t);

// From the shortest bags to the longest; the last one serves what no other does.
constexpr LineariseLookupsShape kShapes[] = {
    LineariseLookupsShape::short_, LineariseLookupsShape::medium, LineariseLookupsShape::long_};

// Likewise, by the number of lookups.
constexpr SortPassSize kSizes[] = {SortPassSize::small, SortPassSize::large};

bool is_factored(const TransposeRequest& request) {
  return request.mean || request.per_sample_weights != nullptr;
}

// How many bits a number needs.
int32_t bit_count(int64_t value) {
  int32_t bits = 0;
  for (; value > 0; value >>= 1) ++bits;
  return bits;
}

void check(const TransposeRequest& request, const Layout& layout) {
  if (request.lookups < 0 || request.batch_size < 0 || request.total_bags < 0) {
    fail("negative size: ", request.lookups, " lookups, ", request.batch_size,
         " bags per feature, ", request.total_bags, " bags");
  }
  check_lookups(request.lookups);
  if ((request.vbe_bag_offsets == nullptr) != (request.vbe_output_offsets == nullptr)) {
    fail("vbe_bag_offsets and vbe_output_offsets must be given together");
  }
  if (layout.feature_count() > kMaxGridY) {
    fail("the layout has ", layout.feature_count(), " features; the lookups of at most ", kMaxGridY,
         " can be transposed");
  }
  const int64_t width = layout.output_width();
  if (request.vbe_bag_offsets == nullptr && width > 0 &&
      request.batch_size > kMaxGradientNumel / width) {
    fail("the gradient has ", request.batch_size, " rows of ", width, " elements, allowed are ",
         kMaxGradientNumel, " elements in all");
  }
}

bool is_empty(const TransposeRequest& request) {
  return request.lookups == 0 || request.total_bags == 0 || request.batch_size == 0;
}

Choice choose_linearise(const TransposeRequest& request, bool wide_keys) {
  generated::LineariseLookupsAxes axes{};
  axes.key_width = wide_keys ? LineariseLookupsKeyWidth::k64 : LineariseLookupsKeyWidth::k32;
  axes.index_width = index_width_axis<LineariseLookupsIndexWidth>(request.index_width);
  Choice choice{};
  for (const LineariseLookupsShape shape : kShapes) {
    axes.shape = shape;
    choice = choose_variant(request.arch, kLineariseLookupsKernel,
                            generated::linearise_lookups_cell(axes));
    const int32_t below = generated::linearise_lookups_constants(*choice.info).MEAN_LENGTH_BELOW;
    if (request.lookups < below * request.total_bags) break;
  }
  return choice;
}

Choice choose_sort(const TransposeRequest& request, bool wide_keys) {
  generated::SortPassAxes axes{};
  axes.key_width = wide_keys ? SortPassKeyWidth::k64 : SortPassKeyWidth::k32;
  Choice choice{};
  for (const SortPassSize size : kSizes) {
    axes.size = size;
    choice = choose_variant(request.arch, kSortPassKernel, generated::sort_pass_cell(axes));
    if (request.lookups < generated::sort_pass_constants(*choice.info).LOOKUPS_BELOW) break;
  }
  return choice;
}

Choice choose_find_runs(const TransposeRequest& request, bool wide_keys) {
  generated::FindRunsAxes axes{};
  axes.key_width = wide_keys ? FindRunsKeyWidth::k64 : FindRunsKeyWidth::k32;
  const Choice choice =
      choose_variant(request.arch, kFindRunsKernel, generated::find_runs_cell(axes));
  check_chunk(choice, generated::find_runs_constants(*choice.info).CHUNK);
  return choice;
}

// The kernels of a call, and where their temporaries are in its scratch memory.
struct Work {
  bool wide_keys;
  Choice linearise;
  Choice sort;
  Choice find_runs;
  int32_t digit_bits;
  int32_t passes;
  int64_t sort_tiles;
  int64_t find_runs_tiles;

  // In bytes from the start.
  int64_t histograms;        // int32 [passes + 1, digits]
  int64_t sort_status;       // int32 [passes, sort_tiles, digits]
  int64_t find_runs_status;  // int64 [find_runs_tiles]
  int64_t cleared_end;       // All before is cleared.
  int64_t keys[2];           // [N]
  int64_t values;            // int32 [N]
  int64_t positions;         // uint32 [N] if factored.
  int64_t factors;           // fp32 [N] if factored.
  int64_t bytes;

  int64_t histogram_bytes() const { return (kWord << digit_bits); }
};

Work lay_out(const TransposeRequest& request, const Layout& layout) {
  // The key of a pruned lookup is the number of rows, and must not be the last of its width.
  const int64_t largest_key = layout.total_rows();
  Work work{};
  work.wide_keys = largest_key >= std::numeric_limits<int32_t>::max();
  work.linearise = choose_linearise(request, work.wide_keys);
  work.sort = choose_sort(request, work.wide_keys);
  work.find_runs = choose_find_runs(request, work.wide_keys);
  const auto sort = generated::sort_pass_constants(*work.sort.info);
  work.digit_bits = sort.DIGIT_BITS;
  work.passes =
      std::max<int32_t>(1, static_cast<int32_t>(ceil_div(bit_count(largest_key), work.digit_bits)));
  work.sort_tiles = ceil_div(request.lookups, sort.TILE);
  work.find_runs_tiles =
      ceil_div(request.lookups, generated::find_runs_constants(*work.find_runs.info).TILE);

  const auto take = [&work](int64_t bytes) {
    const int64_t start = work.bytes;
    work.bytes += ceil_div(bytes, kVectorBytes) * kVectorBytes;
    return start;
  };
  work.histograms = take((work.passes + 1) * work.histogram_bytes());
  work.sort_status = take(work.passes * work.sort_tiles * work.histogram_bytes());
  work.find_runs_status = take(work.find_runs_tiles * 2 * kWord);
  work.cleared_end = work.bytes;
  const int64_t key_bytes = request.lookups * (work.wide_keys ? 2 : 1) * kWord;
  for (int64_t& keys : work.keys) keys = take(key_bytes);
  work.values = take(request.lookups * kWord);
  const int64_t factored_bytes = is_factored(request) ? request.lookups * kWord : 0;
  work.positions = take(factored_bytes);
  work.factors = take(factored_bytes);
  return work;
}

const unsigned char* at(const void* start, int64_t bytes) {
  return static_cast<const unsigned char*>(start) + bytes;
}

void add_linearise(LaunchChain& chain, const TransposeRequest& request, const Layout& layout,
                   const Work& work, const void* positions) {
  generated::LineariseLookupsArgs args{};
  args.keys = at(request.scratch, work.keys[0]);
  args.positions = positions;
  args.factors = at(request.scratch, work.factors);
  args.histogram = at(request.scratch, work.histograms);
  args.features = request.features;
  args.indices = request.indices;
  args.offsets = request.offsets;
  args.per_sample_weights = request.per_sample_weights;
  args.vbe_bag_offsets = request.vbe_bag_offsets;
  args.vbe_output_offsets = request.vbe_output_offsets;
  args.lookups = static_cast<int32_t>(request.lookups);
  args.batch_size = to_int32(request.batch_size, "the number of bags per feature");
  args.output_width = to_int32(layout.output_width(), "the width of the output");
  args.total_rows = layout.total_rows();
  args.weighted = request.per_sample_weights != nullptr ? 1 : 0;
  args.mean = request.mean ? 1 : 0;
  args.vbe = request.vbe_bag_offsets != nullptr ? 1 : 0;
  const int32_t bags = generated::linearise_lookups_constants(*work.linearise.info).BAGS;
  chain.add(kLineariseLookupsKernel, work.linearise, ceil_div(request.batch_size, bags),
            layout.feature_count(), args);
  chain.explain("the row and the gradient's position of each of ", request.lookups,
                " lookups; keys of ", work.wide_keys ? 64 : 32, " bits for ", layout.total_rows(),
                " rows and one more; bags have ",
                static_cast<double>(request.lookups) / static_cast<double>(request.total_bags),
                " lookups on average");
}

void add_sort(LaunchChain& chain, const TransposeRequest& request, const Work& work,
              const void* values_in, const void* values_out) {
  generated::SortPassArgs args{};
  args.lookups = static_cast<int32_t>(request.lookups);
  for (int32_t pass = 0; pass < work.passes; ++pass) {
    const bool odd = pass % 2 != 0;
    args.keys_in = at(request.scratch, work.keys[odd ? 1 : 0]);
    args.keys_out = at(request.scratch, work.keys[odd ? 0 : 1]);
    args.values_in = values_in;
    args.values_out = values_out;
    args.histogram = at(request.scratch, work.histograms + pass * work.histogram_bytes());
    args.next_histogram = at(args.histogram, work.histogram_bytes());
    args.status =
        at(request.scratch, work.sort_status + pass * work.sort_tiles * work.histogram_bytes());
    args.shift = pass * work.digit_bits;
    args.count_up = is_factored(request) && pass == 0 ? 1 : 0;
    chain.add(kSortPassKernel, work.sort, work.sort_tiles, 1, args, /*waits_first=*/true);
    chain.explain("pass ", pass + 1, " of ", work.passes, " of the sort by row: bits from ",
                  args.shift, " on");
    std::swap(values_in, values_out);
  }
}

void add_find_runs(LaunchChain& chain, const TransposeRequest& request, const Layout& layout,
                   const Work& work, const TransposedFormat& format) {
  const auto section = [&request](int64_t start) { return at(request.transposed, start * kWord); };
  generated::FindRunsArgs args{};
  args.keys = at(request.scratch, work.keys[work.passes % 2]);
  args.values = section(format.positions);
  args.lookup_positions = at(request.scratch, work.positions);
  args.lookup_factors = at(request.scratch, work.factors);
  args.positions = section(format.positions);
  args.factors = section(format.factors);
  args.run_starts = section(format.run_starts);
  args.run_rows = section(format.run_rows);
  args.run_slots = section(format.run_slots);
  args.run_begins = section(format.run_begins);
  args.chunk_starts = section(format.chunk_starts);
  args.chunk_runs = section(format.chunk_runs);
  args.status = at(request.scratch, work.find_runs_status);
  args.features = request.features;
  args.lookups = static_cast<int32_t>(request.lookups);
  args.feature_count = static_cast<int32_t>(layout.feature_count());
  args.total_rows = layout.total_rows();
  args.factored = is_factored(request) ? 1 : 0;
  chain.add(kFindRunsKernel, work.find_runs, work.find_runs_tiles, 1, args, /*waits_first=*/true);
  chain.explain("the runs of equal rows, and chunks of ", kChunk, " lookups of the long ones",
                is_factored(request) ? "; sorts positions and factors" : "");
}

}  // namespace

void check_chunk(const Choice& choice, int32_t chunk) {
  if (chunk != kChunk) {
    fail(choice.info->name, " has chunks of ", chunk, " lookups, the launcher those of ", kChunk,
         ": they belong to different builds");
  }
}

void check_lookups(int64_t lookups) {
  if (lookups > kMaxLookups) {
    fail(lookups, " lookups given; at most ", kMaxLookups, " can be transposed");
  }
}

void add_transpose(Plan& plan, LaunchChain& chain, const TransposeRequest& request,
                   const Layout& layout) {
  check(request, layout);
  const Work work = lay_out(request, layout);
  const TransposedFormat format =
      transposed_format(request.lookups, layout.feature_count(), is_factored(request));
  plan.clear.address = request.scratch;
  plan.clear.bytes = static_cast<size_t>(work.cleared_end);

  // Values end in the result. What is sorted are the positions themselves, or, where each lookup
  // has a factor too, the numbers of the lookups, which find_runs replaces.
  const void* values[2] = {at(request.transposed, format.positions * kWord),
                           at(request.scratch, work.values)};
  const void* first_values = values[work.passes % 2];
  add_linearise(chain, request, layout, work,
                is_factored(request) ? at(request.scratch, work.positions) : first_values);
  add_sort(chain, request, work, first_values, values[1 - work.passes % 2]);
  add_find_runs(chain, request, layout, work, format);
}

int64_t transpose_scratch_bytes(const TransposeRequest& request, const Layout& layout) {
  check(request, layout);
  return is_empty(request) ? 0 : lay_out(request, layout).bytes;
}

Plan plan_transpose(const TransposeRequest& request, const Layout& layout, Reasons* reasons) {
  check(request, layout);
  Plan plan;
  plan.arch = request.arch;
  if (is_empty(request)) {
    const TransposedFormat format =
        transposed_format(request.lookups, layout.feature_count(), is_factored(request));
    // No run starts anywhere.
    const int64_t words = format.run_begins + layout.feature_count() + 1 - format.run_starts;
    plan.clear.address = at(request.transposed, format.run_starts * kWord);
    plan.clear.bytes = static_cast<size_t>(words * kWord);
    if (reasons != nullptr) reasons->push_back("nothing to launch: there are no lookups in bags");
    return plan;
  }
  LaunchChain chain(plan, reasons);
  add_transpose(plan, chain, request, layout);
  return plan;
}

}  // namespace tbe_aot
