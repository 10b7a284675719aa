#pragma once

#include <cstdint>

namespace palimpsest::machine {

/// Name of the instruction set that dispatched code runs with.
const char* probe_target();

/// Reads `bytes` bytes (a multiple of 4096) at `data` as `streams` (1, 4 or 8) interleaved
/// contiguous streams; returns a checksum so that nothing is optimised away.
std::uint64_t read_streams(const std::uint8_t* data, std::int64_t bytes, int streams);

/// Multiplies `bytes / 4` floats (a multiple of 4096 bytes) at `data` by `factor`, in place.
void update_stream(float* data, std::int64_t bytes, float factor);

/// `iterations` rounds of independent fused multiply-adds in registers; returns the operations done
/// and adds to *sink.
double fma_chains(std::int64_t iterations, float* sink);

}  // namespace palimpsest::machine
