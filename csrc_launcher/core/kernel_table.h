// The shape of the tables that the build generates from the kernel specs: what kernels exist, how a
// combination of axis values finds its variant, how arguments are packed, and which cubin of which
// pack holds the code. Plain data without constructors, so that the tables live in read-only
// memory.
#pragma once

#include <cstdint>

namespace tbe_aot {

// A parameter of a kernel in its binary interface. Parameters come in that order and end with the
// two scratch pointers that Triton appends ("global_scratch", "profile_scratch").
struct ParamInfo {
  const char* name;
  const char* type;
  uint32_t offset;
  uint32_t size;
};

struct AxisInfo {
  const char* name;
  int32_t size;
  const char* const* labels;
};

// One compiled combination of axis values on one arch.
struct VariantInfo {
  const char* name;
  const char* entry;
  int32_t blob;  // Index in the arch's pack; -1 when this build's profile leaves the variant out.
  int32_t num_warps;
  int32_t shared_bytes;
  const int32_t* constants;  // In the order of KernelInfo::constant_names.
};

struct KernelInfo {
  const char* name;
  const AxisInfo* axes;  // The first axis varies slowest in the cell index.
  int32_t axis_count;
  const ParamInfo* params;
  int32_t param_count;
  uint32_t args_size;
  const char* const* constant_names;
  int32_t constant_count;
  const int32_t* cells;  // Cell to variant; -1 where no operator may ask.
  int32_t cell_count;
  int32_t variant_count;
  const VariantInfo* const* variants;  // [arch][variant]; null for an arch that the kernel lacks.
};

struct ArchInfo {
  const char* name;
  int32_t major;
  int32_t minor;
  const char* pack_file;
  uint8_t index_sha256[32];
};

struct BuildInfo {
  const char* profile;
  const char* build_id;
  const ArchInfo* archs;
  int32_t arch_count;
  const KernelInfo* kernels;
  int32_t kernel_count;
};

extern const BuildInfo kBuild;

}  // namespace tbe_aot
