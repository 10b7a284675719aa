#pragma once

// What is said of rows of logits that stay on a device.

#include "palimpsest/logit_facts.h"
#include "palimpsest/tensor.h"

namespace palimpsest {

inline constexpr int kLogitParts = 16;  ///< blocks that share a row
inline constexpr int kLogitBins = 256;  ///< of kLogitsPerBin each, counted from the largest logit down
inline constexpr float kLogitsPerBin = 0.125f;
inline constexpr int kMostCandidates = 1024;

/// Of one row, as kernels leave it.
struct LogitHead {
  std::uint64_t best;  ///< the largest logit's bits, turned so that they are ordered like the number, << 32 | ~id: the largest is the first of the largest
  std::int32_t odd;    ///< INT32_MAX - the first id whose logit is not finite; 0: none
  std::int32_t count;  ///< of candidates
  double sums[kLogitParts];
};

/// Row n of logits goes to row slots[n] of `kept`, and `room` says what LogitFacts tells of it. Where inverse[n] > 0, with candidates: of the bins below the largest
/// logit as many whole ones as hold at most kMostCandidates ids together.
struct KeepLogitsArgs {
  Tensor logits;   ///< F32 [N, V], contiguous
  Tensor slots;    ///< I32 [N], of both sides
  Tensor kept;     ///< F32 [S, V], rows contiguous
  Tensor inverse;  ///< F64 [N], of both sides: one over the temperature; 0: no candidates
  Tensor room;     ///< U8 [logit_room_bytes(N)]: N heads, N rows of bins (I32), N rows of candidates
};

inline std::int64_t logit_heads_bytes(std::int64_t rows) { return rows * static_cast<std::int64_t>(sizeof(LogitHead)); }
inline std::int64_t logit_room_bytes(std::int64_t rows) {
  return rows * static_cast<std::int64_t>(sizeof(LogitHead) + kLogitBins * sizeof(std::int32_t) + kMostCandidates * sizeof(LogitCandidate));
}

/// On a device, put on `stream` (a cudaStream_t). Results do not depend on the order in which blocks run, but for the order of candidates.
namespace cuda {
void keep_logits(const KeepLogitsArgs& args, void* stream);
}

}  // namespace palimpsest
