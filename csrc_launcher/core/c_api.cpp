#include "core/c_api.h"

#include <exception>
#include <iterator>
#include <memory>
#include <string>

#include "tbe_aot_generated.h"

struct tbe_aot_plan {
  tbe_aot::Plan plan;
  tbe_aot::Reasons reasons;
};

namespace {

thread_local std::string last_error;

// Runs `body`; what it throws becomes this thread's last error.
template <typename Body>
int guarded(Body body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
  } catch (...) {
    last_error = "an exception that is no std::exception";
  }
  return 1;
}

// Calls a planner that takes a request and a layout; keeps its plan and the reasons.
template <typename Planner, typename Request>
int make_plan(const Planner& planner, const Request& request, const int64_t* layout,
              size_t layout_size, tbe_aot_plan** plan) {
  return guarded([&] {
    auto made = std::make_unique<tbe_aot_plan>();
    made->plan = planner(request, tbe_aot::Layout(layout, layout_size), &made->reasons);
    *plan = made.release();
  });
}

}  // namespace

const char* tbe_aot_last_error() { return last_error.c_str(); }

const tbe_aot::BuildInfo* tbe_aot_build_info() { return &tbe_aot::kBuild; }

const tbe_aot::BuildInfo* const tbe_aot_tables = &tbe_aot::kBuild;
// The strides of tbe_aot_audit/library.py.
static_assert(sizeof(tbe_aot::ArchInfo) == 56 && sizeof(tbe_aot::AxisInfo) == 24);
static_assert(sizeof(tbe_aot::KernelInfo) == 80 && sizeof(tbe_aot::ParamInfo) == 24);
static_assert(sizeof(tbe_aot::VariantInfo) == 40);

const int32_t* tbe_aot_buckets(size_t* count) {
  *count = std::size(tbe_aot::generated::kForwardBucketValues);
  return std::data(tbe_aot::generated::kForwardBucketValues);
}

int tbe_aot_pack(int32_t arch, const tbe_aot::Pack** pack) {
  return guarded([&] { *pack = &tbe_aot::arch_pack(arch); });
}

const char* tbe_aot_pack_path(const tbe_aot::Pack* pack) { return pack->path().c_str(); }

uint64_t tbe_aot_pack_file_size(const tbe_aot::Pack* pack) { return pack->file_size(); }

int32_t tbe_aot_pack_blob_count(const tbe_aot::Pack* pack) { return pack->blob_count(); }

const tbe_aot::PackBlob* tbe_aot_pack_blob(const tbe_aot::Pack* pack, int32_t blob) {
  return &pack->blob(blob);
}

int tbe_aot_pack_verify(const tbe_aot::Pack* pack, int32_t blob) {
  return guarded([&] { pack->checked_blob(blob); });
}

int tbe_aot_plan_forward(const tbe_aot::ForwardRequest* request, const int64_t* layout,
                         size_t layout_size, tbe_aot_plan** plan) {
  return make_plan(tbe_aot::plan_forward, *request, layout, layout_size, plan);
}

int tbe_aot_plan_transpose(const tbe_aot::TransposeRequest* request, const int64_t* layout,
                           size_t layout_size, tbe_aot_plan** plan) {
  return make_plan(tbe_aot::plan_transpose, *request, layout, layout_size, plan);
}

int tbe_aot_plan_backward_update(const tbe_aot::BackwardUpdateRequest* request,
                                 const int64_t* layout, size_t layout_size, tbe_aot_plan** plan) {
  return make_plan(tbe_aot::plan_backward_update, *request, layout, layout_size, plan);
}

int tbe_aot_plan_per_sample_weights_gradient(const tbe_aot::SampleWeightsGradientRequest* request,
                                             const int64_t* layout, size_t layout_size,
                                             tbe_aot_plan** plan) {
  return make_plan(tbe_aot::plan_per_sample_weights_gradient, *request, layout, layout_size, plan);
}

int tbe_aot_transpose_scratch_bytes(const tbe_aot::TransposeRequest* request, const int64_t* layout,
                                    size_t layout_size, int64_t* bytes) {
  return guarded([&] {
    *bytes = tbe_aot::transpose_scratch_bytes(*request, tbe_aot::Layout(layout, layout_size));
  });
}

int tbe_aot_partials_bytes(int64_t lookups, const int64_t* layout, size_t layout_size,
                           int64_t* bytes) {
  return guarded(
      [&] { *bytes = tbe_aot::partials_bytes(lookups, tbe_aot::Layout(layout, layout_size)); });
}

int tbe_aot_counters_bytes(const tbe_aot::BackwardUpdateRequest* request, const int64_t* layout,
                           size_t layout_size, int64_t* bytes) {
  return guarded(
      [&] { *bytes = tbe_aot::counters_bytes(*request, tbe_aot::Layout(layout, layout_size)); });
}

int tbe_aot_plan_check_bounds(const tbe_aot::CheckBoundsRequest* request, tbe_aot_plan** plan) {
  return guarded([&] {
    auto made = std::make_unique<tbe_aot_plan>();
    made->plan = tbe_aot::plan_check_bounds(*request, &made->reasons);
    *plan = made.release();
  });
}

const tbe_aot::Plan* tbe_aot_plan_get(const tbe_aot_plan* plan) { return &plan->plan; }

size_t tbe_aot_plan_reason_count(const tbe_aot_plan* plan) { return plan->reasons.size(); }

const char* tbe_aot_plan_reason(const tbe_aot_plan* plan, size_t index) {
  return plan->reasons[index].c_str();
}

void tbe_aot_plan_free(tbe_aot_plan* plan) { delete plan; }

int tbe_aot_device_arch(int32_t device, int32_t* arch) {
  return guarded([&] { *arch = tbe_aot::device_arch(device); });
}

int tbe_aot_device_multiprocessors(int32_t device, int32_t* count) {
  return guarded([&] { *count = tbe_aot::device_multiprocessors(device); });
}

int tbe_aot_run(const tbe_aot_plan* plan, int32_t device, void* stream) {
  return guarded([&] { tbe_aot::run(plan->plan, device, stream); });
}

int tbe_aot_preload(int32_t device, int32_t kernel, int32_t variant) {
  return guarded([&] { tbe_aot::preload(device, kernel, variant); });
}

int tbe_aot_is_capturing(int32_t device, void* stream, bool* capturing) {
  return guarded([&] { *capturing = tbe_aot::is_capturing(device, stream); });
}

int tbe_aot_copy_to_host(void* destination, const void* source, size_t bytes, int32_t device,
                         void* stream) {
  return guarded([&] { tbe_aot::copy_to_host(destination, source, bytes, device, stream); });
}

int tbe_aot_loaded(void (*visit)(void* user, const tbe_aot::LoadedVariant*), void* user) {
  return guarded([&] {
    for (const tbe_aot::LoadedVariant& loaded : tbe_aot::loaded_variants()) visit(user, &loaded);
  });
}
