#pragma once

// Arguments of the fused kernels of the page memories on a device: from what the projections give to what the output projection takes, in
// one launch a layer. The same steps as the ops short_conv, l2_norm, decay_gate, page_memory and gated_rms_norm of op_args.h, one after
// the other; ref::delta_step computes exactly that.
//
// R = rows of the batch (tokens of all its sequences, concatenated), N = sequences, H = query and key heads, HV = value heads (a multiple of
// H; value head j reads q and k of head j / (HV / H)).

#include <cstdint>

#include "kernels/op_args.h"

namespace palimpsest {

/// How the log decay comes out of what the projection gives.
enum class DeltaGate : std::uint8_t {
  kNone,      ///< no decay; f is absent
  kLogDecay,  ///< f is the log decay itself
  kBounded,   ///< lower_bound * sigmoid(exp(a_log) * (f + dt_bias))      (Kimi K3)
  kSoftplus,  ///< -exp(a_log) * softplus(f + dt_bias)                     (Kimi Linear, Gated DeltaNet)
};

/// A slot that says: these rows are of another call. Nothing of them is read or written.
inline constexpr std::int32_t kRowsOfOthers = -2;

/// q, k, v and gates as the projections give them, and how they are made ready. Inputs are BF16, F16 or F32, all of one type; the last dimension
/// has unit stride, rows and heads may lie apart.
struct DeltaInputs {
  Tensor q;  ///< [R, H, K]
  Tensor k;  ///< [R, H, K]
  Tensor v;  ///< [R, HV, V]
  Tensor f;  ///< [R, HV, K] (a gate a channel) or [R, HV] (a gate a head)
  Tensor b;  ///< [R, HV]; absent: beta = 1

  DeltaGate gate = DeltaGate::kBounded;
  Tensor a_log;    ///< F32 [HV]; absent for kNone and kLogDecay
  Tensor dt_bias;  ///< F32 [HV * K] or [HV]; absent for kNone and kLogDecay
  float lower_bound = -5;

  bool l2_norm = true;  ///< x / sqrt(sum(x^2) + l2_eps), q and k
  float l2_eps = 1e-6f;
  float q_scale = 1;         ///< after the norm; usually K^-1/2
  bool beta_sigmoid = true;  ///< beta = beta_scale * sigmoid(b); else b as it is
  float beta_scale = 1;
  PageWrite write = PageWrite::kDelta;
};

/// Short convolution with SiLU in front of q, k and v. Only where HV = H: else several value heads would share one tail.
struct DeltaConv {
  Tensor weight;  ///< F32 [2 H K + HV V, W]: rows of q, of k, of v; W <= 8. Absent: no convolution
  Tensor tails;   ///< type of q, [slots, W - 1, 2 H K + HV V], oldest row first; may be strided in its first dimension
};

/// The output norm: o * rsqrt(mean(o^2) + eps) * weight * f(gate).
struct DeltaNorm {
  Tensor weight;  ///< F32 [V]; absent: no norm
  Tensor gate;    ///< [R, HV, V], type of q
  Unary function = Unary::kSigmoid;
  float eps = 0;
};

/// What stands between the projections of a page mixer and its recurrence: a short convolution with SiLU of q, k and v, then
/// x / sqrt(sum(x^2) + l2_eps) a head of q and k, q scaled; log decays; write strengths. The ops short_conv, l2_norm, decay_gate and unary one after the
/// other. F32; q_in, k_in, v_in with unit stride in the last dimension, the rest contiguous.
struct DeltaPrepareArgs {
  Tensor q_in, k_in;              ///< [R, H K]
  Tensor v_in;                    ///< [R, HV V]
  Tensor conv_q, conv_k, conv_v;  ///< F32 [channels, W], or all absent: SiLU alone
  Tensor tails_q, tails_k, tails_v;  ///< [slots, W - 1, channels], moved on; may be strided in their first dimension
  RaggedRows rows;
  float l2_eps = 1e-6f, q_scale = 1;
  DecayGateArgs gate;             ///< g may be f
  Tensor beta;                    ///< [R, HV], in place: beta_scale * sigmoid(beta)
  float beta_scale = 1;
  Tensor q, k;                    ///< [R, H, K]; K up to 256
  Tensor v;                       ///< [R, HV, V]
};

/// Decode, and verification of a few drafted tokens: the rows of every sequence one after the other.
struct DeltaStepArgs {
  DeltaInputs in;
  DeltaConv conv;
  DeltaNorm norm;
  Tensor pages;       ///< F32 or BF16 [slots, HV, V, K], updated in place; may be strided in its first dimension
  Tensor cu_seqlens;  ///< I32 or I64 [N + 1], read on the device only; absent: R = N, one row a sequence
  Tensor slots;       ///< I32 [N]; each slot at most once. -1: the rows of o become 0 and nothing else is read or written; or kRowsOfOthers
  Tensor snapshots;       ///< type of pages, [snapshot slots, HV, V, K]: the page after a row; absent: none
  Tensor snapshot_slots;  ///< I32 [R], -1: none
  Tensor o;               ///< [R, HV, V], BF16, F16 or F32
};

/// Prefill: the same recurrence, without convolution and norm, over many rows of each sequence at once.
/// Chunks (of 16 or 64 tokens) and segments lie at multiples of their size of the absolute position, so batch mates and later tokens change
/// no bit.
struct DeltaPrefillArgs {
  DeltaInputs in;
  Tensor pages;       ///< as in DeltaStepArgs
  Tensor cu_seqlens;  ///< I32 or I64 [N + 1], read on the device only
  Tensor slots;       ///< I32 [N]; -1: the rows of o become 0 and nothing else is read or written; or kRowsOfOthers
  Tensor past;        ///< I64 [N]: tokens the sequence held before this batch; absent: 0
  Tensor snapshots;       ///< type of pages, [snapshot slots, HV, V, K]: the page after a row; absent: none
  Tensor snapshot_slots;  ///< I32 [R], -1: none. Read where a row's position + 1 is a multiple of 64, elsewhere ignored
  Tensor o;           ///< [R, HV, V], BF16, F16 or F32
  Tensor workspace;   ///< U8, at least the bytes that delta_prefill_workspace() names; contents do not matter before or after
  /// Chunk after chunk, never in segments, which few heads take else and which begin anew where the rows of a batch do: then a sequence that is
  /// cut at a multiple of 64 has the same bits.
  bool in_turn = false;
};

}  // namespace palimpsest
