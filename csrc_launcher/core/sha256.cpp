#include "core/sha256.h"

#include <cstring>

namespace tbe_aot {
namespace {

constexpr size_t kBlockSize = 64;

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotate_right(uint32_t value, int count) {
  return (value >> count) | (value << (32 - count));
}

void compress(uint32_t (&state)[8], const uint8_t* block) {
  uint32_t schedule[64];
  for (int i = 0; i < 16; ++i) {
    schedule[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
                  uint32_t{block[4 * i + 2]} << 8 | uint32_t{block[4 * i + 3]};
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = schedule[i - 15];
    const uint32_t b = schedule[i - 2];
    schedule[i] = schedule[i - 16] + schedule[i - 7] +
                  (rotate_right(a, 7) ^ rotate_right(a, 18) ^ (a >> 3)) +
                  (rotate_right(b, 17) ^ rotate_right(b, 19) ^ (b >> 10));
  }
  uint32_t w[8];
  std::memcpy(w, state, sizeof(w));
  for (int i = 0; i < 64; ++i) {
    const uint32_t mix1 = rotate_right(w[4], 6) ^ rotate_right(w[4], 11) ^ rotate_right(w[4], 25);
    const uint32_t choice = (w[4] & w[5]) ^ (~w[4] & w[6]);
    const uint32_t first = w[7] + mix1 + choice + kRound[i] + schedule[i];
    const uint32_t mix0 = rotate_right(w[0], 2) ^ rotate_right(w[0], 13) ^ rotate_right(w[0], 22);
    const uint32_t majority = (w[0] & w[1]) ^ (w[0] & w[2]) ^ (w[1] & w[2]);
    w[7] = w[6];
    w[6] = w[5];
    w[5] = w[4];
    w[4] = w[3] + first;
    w[3] = w[2];
    w[2] = w[1];
    w[1] = w[0];
    w[0] = first + mix0 + majority;
  }
  for (int i = 0; i < 8; ++i) state[i] += w[i];
}

}  // namespace

Sha256 sha256(const void* data, size_t size) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* bytes = static_cast<const uint8_t*>(data);
  const size_t whole = size / kBlockSize * kBlockSize;
  for (size_t start = 0; start < whole; start += kBlockSize) compress(state, bytes + start);

  // The rest, a one bit, zeros and the length in bits fill one block or two.
  uint8_t tail[2 * kBlockSize] = {};
  const size_t rest = size - whole;
  if (rest > 0) std::memcpy(tail, bytes + whole, rest);
  tail[rest] = 0x80;
  const size_t tail_size = rest + 9 <= kBlockSize ? kBlockSize : 2 * kBlockSize;
  const uint64_t bits = static_cast<uint64_t>(size) * 8;
  for (int i = 0; i < 8; ++i) tail[tail_size - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
  for (size_t start = 0; start < tail_size; start += kBlockSize) compress(state, tail + start);

  Sha256 digest;
  for (int i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

}  // namespace tbe_aot
