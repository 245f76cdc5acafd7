// A pack: one file with all cubins of one arch, each addressed by its SHA-256.
//
//   0   "TBEAOTPK", u32 version, u32 blob count, char arch[16], u64 file size     (little endian)
//   40  per blob: u8 sha256[32], u64 offset, u64 size                             (sorted by
//   sha256)
//   ..  the blobs, each at a multiple of 16
//
// The library knows the SHA-256 of everything before the blobs from its own build, so a pack of
// another build is refused when it is opened, and a changed blob when it is first read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/kernel_table.h"

namespace tbe_aot {

struct PackBlob {
  uint8_t sha256[32];
  uint64_t offset;
  uint64_t size;
};

class Pack {
 public:
  // Maps the file and checks its size, header, index and bounds. Throws Error naming what is wrong.
  Pack(const std::string& path, const ArchInfo& arch);

  const std::string& path() const { return path_; }
  uint64_t file_size() const { return file_size_; }
  int32_t blob_count() const { return blob_count_; }
  const PackBlob& blob(int32_t index) const { return index_[index]; }

  // The bytes of a blob, after its SHA-256 has been checked. Throws Error when they were changed.
  const void* checked_blob(int32_t index) const;

 private:
  struct Unmap {
    size_t size;
    void operator()(const void* address) const;
  };

  std::string path_;
  uint64_t file_size_ = 0;
  std::unique_ptr<const uint8_t, Unmap> data_;
  int32_t blob_count_ = 0;
  const PackBlob* index_ = nullptr;
};

// The pack of an arch (index in kBuild.archs), opened at the first call; it lies beside the file
// that holds this code. A pack that was refused is tried again by the next call.
const Pack& arch_pack(int32_t arch);

}  // namespace tbe_aot
