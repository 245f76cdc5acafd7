// The core as `_launcher` sees it: a C interface, so that there is one copy of the core in a
// process (in libtbe_aot.so) and no exception crosses from one library into the other.
//
// Functions that return int return 0 on success; else tbe_aot_last_error() says what went wrong in
// this thread's last call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernel_table.h"
#include "core/launcher.h"
#include "core/pack.h"
#include "core/planner.h"

#define TBE_AOT_EXPORT __attribute__((visibility("default")))

extern "C" {

TBE_AOT_EXPORT const char* tbe_aot_last_error();

// The generated tables.
TBE_AOT_EXPORT const tbe_aot::BuildInfo* tbe_aot_build_info();
// The same as data, for who reads the file without loading it (tbe_aot_audit/library.py).
TBE_AOT_EXPORT extern const tbe_aot::BuildInfo* const tbe_aot_tables;

// The integers that the bucket axis of the forward kernel can have, ascending.
TBE_AOT_EXPORT const int32_t* tbe_aot_buckets(size_t* count);

// Opens the pack of an arch, if it is not open, and shows it.
TBE_AOT_EXPORT int tbe_aot_pack(int32_t arch, const tbe_aot::Pack** pack);
TBE_AOT_EXPORT const char* tbe_aot_pack_path(const tbe_aot::Pack* pack);
TBE_AOT_EXPORT uint64_t tbe_aot_pack_file_size(const tbe_aot::Pack* pack);
TBE_AOT_EXPORT int32_t tbe_aot_pack_blob_count(const tbe_aot::Pack* pack);
TBE_AOT_EXPORT const tbe_aot::PackBlob* tbe_aot_pack_blob(const tbe_aot::Pack* pack, int32_t blob);
// Checks the SHA-256 of one cubin.
TBE_AOT_EXPORT int tbe_aot_pack_verify(const tbe_aot::Pack* pack, int32_t blob);

// A plan with the reason for each of its launches; owned by the caller.
struct tbe_aot_plan;
TBE_AOT_EXPORT int tbe_aot_plan_forward(const tbe_aot::ForwardRequest* request,
                                        const int64_t* layout, size_t layout_size,
                                        tbe_aot_plan** plan);
TBE_AOT_EXPORT int tbe_aot_plan_check_bounds(const tbe_aot::CheckBoundsRequest* request,
                                             tbe_aot_plan** plan);
TBE_AOT_EXPORT int tbe_aot_plan_transpose(const tbe_aot::TransposeRequest* request,
                                          const int64_t* layout, size_t layout_size,
                                          tbe_aot_plan** plan);
TBE_AOT_EXPORT int tbe_aot_plan_backward_update(const tbe_aot::BackwardUpdateRequest* request,
                                                const int64_t* layout, size_t layout_size,
                                                tbe_aot_plan** plan);
TBE_AOT_EXPORT int tbe_aot_plan_per_sample_weights_gradient(
    const tbe_aot::SampleWeightsGradientRequest* request, const int64_t* layout, size_t layout_size,
    tbe_aot_plan** plan);
// Memory, in bytes, that the plans of the backward are given.
TBE_AOT_EXPORT int tbe_aot_transpose_scratch_bytes(const tbe_aot::TransposeRequest* request,
                                                   const int64_t* layout, size_t layout_size,
                                                   int64_t* bytes);
TBE_AOT_EXPORT int tbe_aot_partials_bytes(int64_t lookups, const int64_t* layout,
                                          size_t layout_size, int64_t* bytes);
TBE_AOT_EXPORT int tbe_aot_counters_bytes(const tbe_aot::BackwardUpdateRequest* request,
                                          const int64_t* layout, size_t layout_size,
                                          int64_t* bytes);
TBE_AOT_EXPORT const tbe_aot::Plan* tbe_aot_plan_get(const tbe_aot_plan* plan);
TBE_AOT_EXPORT size_t tbe_aot_plan_reason_count(const tbe_aot_plan* plan);
TBE_AOT_EXPORT const char* tbe_aot_plan_reason(const tbe_aot_plan* plan, size_t index);
TBE_AOT_EXPORT void tbe_aot_plan_free(tbe_aot_plan* plan);

// launcher.h
TBE_AOT_EXPORT int tbe_aot_device_arch(int32_t device, int32_t* arch);
TBE_AOT_EXPORT int tbe_aot_device_multiprocessors(int32_t device, int32_t* count);
TBE_AOT_EXPORT int tbe_aot_run(const tbe_aot_plan* plan, int32_t device, void* stream);
TBE_AOT_EXPORT int tbe_aot_preload(int32_t device, int32_t kernel, int32_t variant);
TBE_AOT_EXPORT int tbe_aot_is_capturing(int32_t device, void* stream, bool* capturing);
TBE_AOT_EXPORT int tbe_aot_copy_to_host(void* destination, const void* source, size_t bytes,
                                        int32_t device, void* stream);
// Calls `visit(user, variant)` for each variant loaded on a device.
TBE_AOT_EXPORT int tbe_aot_loaded(void (*visit)(void* user, const tbe_aot::LoadedVariant*),
                                  void* user);

}  // extern "C"
