#include "core/pack.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/error.h"
#include "core/sha256.h"

namespace tbe_aot {
namespace {

constexpr char kMagic[8] = {'T', 'B', 'E', 'A', 'O', 'T', 'P', 'K'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kBlobAlignment = 16;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t blob_count;
  char arch[16];
  uint64_t file_size;
};
static_assert(sizeof(Header) == 40 && sizeof(PackBlob) == 48);

class File {
 public:
  explicit File(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) {
      fail("cannot open the pack ", path, ": ", std::strerror(errno),
           ". It is installed beside the library; reinstall tbe-aot");
    }
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

template <typename... Parts>
[[noreturn]] void refuse(const std::string& path, const Parts&... reason) {
  fail("the pack ", path, " is refused: ", join(reason...), ". Reinstall tbe-aot");
}

bool equal(const Sha256& digest, const uint8_t (&expected)[32]) {
  return std::memcmp(digest.data(), expected, sizeof(expected)) == 0;
}

// Bytes of a damaged file as part of a message, which must be text for whoever shows it.
std::string printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

// Folder of the shared library or executable that contains this function.
std::string own_folder() {
  Dl_info info;
  char resolved[PATH_MAX];
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 ||
      realpath(info.dli_fname, resolved) == nullptr) {
    fail("cannot find the folder of this library, where its packs are");
  }
  const std::string path = resolved;
  return path.substr(0, path.rfind('/'));
}

}  // namespace

void Pack::Unmap::operator()(const void* address) const {
  munmap(const_cast<void*>(address), size);
}

Pack::Pack(const std::string& path, const ArchInfo& arch) : path_(path), data_(nullptr, Unmap{0}) {
  const File file(path);
  struct stat status;
  if (fstat(file.descriptor(), &status) != 0) {
    fail("cannot read the size of the pack ", path, ": ", std::strerror(errno));
  }
  file_size_ = static_cast<uint64_t>(status.st_size);
  if (file_size_ < sizeof(Header)) {
    refuse(path, "it is truncated: ", file_size_, " bytes are less than its header");
  }
  void* address = mmap(nullptr, file_size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) fail("cannot map the pack ", path, ": ", std::strerror(errno));
  data_ = {static_cast<const uint8_t*>(address), Unmap{file_size_}};

  Header header;
  std::memcpy(&header, data_.get(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) refuse(path, "it is not a pack");
  if (header.version != kVersion) {
    refuse(path, "its format version is ", header.version, ", this library reads ", kVersion);
  }
  if (file_size_ < header.file_size) {
    refuse(path, "it is truncated: ", file_size_, " of ", header.file_size, " bytes");
  }
  if (file_size_ != header.file_size) {
    refuse(path, "its size is ", file_size_, " bytes, its header says ", header.file_size);
  }
  const std::string arch_name(header.arch, strnlen(header.arch, sizeof(header.arch)));
  if (arch_name != arch.name) {
    refuse(path, "it holds cubins for ", printable(arch_name), ", not for ", arch.name);
  }
  const uint64_t index_end = sizeof(Header) + uint64_t{header.blob_count} * sizeof(PackBlob);
  if (index_end > file_size_ || header.blob_count > INT32_MAX) {
    refuse(path, "its index of ", header.blob_count, " cubins is longer than the file");
  }
  if (!equal(sha256(data_.get(), index_end), arch.index_sha256)) {
    refuse(path, "its index is not the one of this library (SHA-256 ", to_hex(arch.index_sha256),
           "): it belongs to another build or was changed");
  }
  blob_count_ = static_cast<int32_t>(header.blob_count);
  index_ = reinterpret_cast<const PackBlob*>(data_.get() + sizeof(Header));
  for (int32_t i = 0; i < blob_count_; ++i) {
    const PackBlob& entry = index_[i];
    if (entry.offset < index_end || entry.offset % kBlobAlignment != 0 ||
        entry.offset > file_size_ || entry.size > file_size_ - entry.offset) {
      refuse(path, "cubin ", i, " lies outside the file (offset ", entry.offset, ", size ",
             entry.size, ")");
    }
  }
}

const void* Pack::checked_blob(int32_t index) const {
  const PackBlob& entry = index_[index];
  const uint8_t* bytes = data_.get() + entry.offset;
  if (!equal(sha256(bytes, entry.size), entry.sha256)) {
    refuse(path_, "cubin ", index, " was changed: its SHA-256 is not ", to_hex(entry.sha256));
  }
  return bytes;
}

const Pack& arch_pack(int32_t arch) {
  static std::mutex mutex;
  // Never unmapped: loaded libraries may be in use until the process ends.
  static auto& packs = *new std::vector<std::unique_ptr<Pack>>(kBuild.arch_count);
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Pack>& pack = packs.at(arch);
  if (pack == nullptr) {
    const ArchInfo& info = kBuild.archs[arch];
    pack = std::make_unique<Pack>(own_folder() + "/" + info.pack_file, info);
  }
  return *pack;
}

}  // namespace tbe_aot
