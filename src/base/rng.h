#pragma once

#include <array>
#include <cstdint>

namespace palimpsest::base {

/// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a counter-based generator. The same
/// (key, counter) gives the same four words on every machine, in any order, so sampling does not depend on batching.
inline std::array<std::uint32_t, 4> philox4x32(std::uint64_t key, std::array<std::uint32_t, 4> counter) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * counter[0], p1 = 0xCD9E8D57ull * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

/// A uniform number in [0, 1) with 53 random bits, named by (seed, sequence, position).
inline double uniform(std::uint64_t seed, std::uint64_t sequence, std::uint64_t position) {
  const auto words = philox4x32(seed, {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
                                       static_cast<std::uint32_t>(sequence), static_cast<std::uint32_t>(sequence >> 32)});
  const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace palimpsest::base
