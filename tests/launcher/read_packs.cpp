// Opens the packs whose paths it is given and reads every cubin: "ok" or the error of each, on a
// line. The index hash that a pack must have is made from the file, so that what is behind that
// check is reached as well.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>

#include "core/pack.h"
#include "core/sha256.h"

namespace tbe_aot {
const BuildInfo kBuild = {"", "", nullptr, 0, nullptr, 0};
}  // namespace tbe_aot

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string data((std::istreambuf_iterator<char>(file)), {});
    tbe_aot::ArchInfo arch{"sm90", 9, 0, "sm90.pack", {}};
    uint32_t count = 0;
    if (data.size() >= 16) std::memcpy(&count, data.data() + 12, sizeof(count));
    const uint64_t index = std::min<uint64_t>(40 + 48 * uint64_t{count}, data.size());
    const auto hash = tbe_aot::sha256(data.data(), index);
    std::memcpy(arch.index_sha256, hash.data(), sizeof(arch.index_sha256));
    try {
      const tbe_aot::Pack pack(argv[i], arch);
      for (int32_t blob = 0; blob < pack.blob_count(); ++blob) pack.checked_blob(blob);
      std::puts("ok");
    } catch (const std::exception& error) {
      std::puts(error.what());
    }
  }
  return 0;
}
