#pragma once

#include <algorithm>

#include "kernels/cuda/sm90/delta_segments.cuh"

// The kernels around prefill in segments, compiled by themselves (delta_segments.cu).
namespace palimpsest::cuda {

/// Cuts at multiples of 2^shift positions, or half of that where they may be absent.
inline sm90::fused::Segments segments_of(std::int64_t rows, std::int64_t sequences, int shift, bool halves) {
  sm90::fused::Segments s;
  s.halves = halves;
  s.shift = shift - (halves ? 1 : 0);
  const std::int64_t by_rows = (rows >> (s.shift - 1)) + 1, by_sequences = (rows >> s.shift) + sequences;
  s.id_sequence = by_sequences < by_rows ? 1 : 0;
  s.id_shift = s.id_sequence == 1 ? s.shift : s.shift - 1;
  s.ids = std::min(by_rows, by_sequences);
  return s;
}

void plan_segments(const sm90::fused::FusedArgs& args, cudaStream_t stream);
void link_segments(const sm90::fused::FusedArgs& args, cudaStream_t stream);

}  // namespace palimpsest::cuda
