// SHA-256 (FIPS 180-4) of a block of memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tbe_aot {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(const void* data, size_t size);

// Lower-case hexadecimal digits.
inline std::string to_hex(const uint8_t (&digest)[32]) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * sizeof(digest));
  for (const uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace tbe_aot
