#pragma once

// Arguments of the kernels of latent attention (MLA) on a device.
//
// R = rows of the batch (tokens of all its sequences, concatenated), N = sequences, H = heads; r = 512 numbers of latent, p = 64 shared key
// channels, dn = 128 and dv = 128 channels a head of keys and values.

#include <cstdint>

#include "kernels/op_args.h"

namespace palimpsest {

/// Decode, and verification of a few drafted tokens: absorbed attention over the paged list, which already holds this batch's rows. Row i of
/// sequence n sees the first past[n] + i + 1 rows t of the list, with (latent_t | k_pe_t) a row of it:
///     q' = (B_k,h^T q_nope | q_pe)      s_t = scale q' . (latent_t | k_pe_t)      o_h = B_v,h sum_t softmax(s)_t latent_t
/// and, with a gate, o <- o * sigmoid(gate) (Kimi K3). The same numbers as LatentAttentionArgs, in another order of sums.
struct LatentDecodeArgs {
  Tensor q;     ///< [R, H, dn + p], BF16 or F32; unit stride in the last dimension
  Tensor kv_b;  ///< BF16 [H * (dn + dv), r]: of head h the dn rows of B_k, then the dv rows of B_v
  PagedList list;     ///< width r + p, BF16 or the 8-bit rows of q8_latent_rows(r, p) (584 bytes a token), blocks of a multiple of 8 tokens
  Tensor cu_seqlens;  ///< I32 or I64 [N + 1], read on the device only; absent: R = N, one row a sequence
  Tensor slots;       ///< I32 [N], rows of list.table; -1: the rows of o become 0 and nothing else is read
  Tensor past;        ///< I64 [N]: list length before this batch
  float scale = 1;
  Tensor gate;  ///< [R, H, dv], type of q; absent: no gate
  Tensor o;     ///< [R, H, dv], contiguous, BF16 or F32
  Tensor workspace;  ///< U8, the bytes that latent_decode_workspace() names; contents do not matter before or after
  RowImage image = {};  ///< of o in F32, more than eight rows
  /// Absent; or, where cu_seqlens is: this batch's rows of the lists, which are then written first, with the bits of rms_norm() of the latent and latent_append().
  Tensor kv_a;  ///< F32 [R, r + p], rows at multiples of 16 bytes
  Tensor kv_a_layernorm;  ///< F32 [r]
  float kv_a_eps = 0;
};

/// Prefill in materialised form: causal attention of ragged queries over keys and values that lie ready, keys_n = cu_keys[n+1] - cu_keys[n] rows
/// of sequence n, the last of which belong to its queries: query i of rows_n sees key j where j <= keys_n - rows_n + i.
///     s_j = scale (q_nope . k_j + q_pe . k_pe_j)      o_h = sum_j softmax(s)_j v_j      o <- o * sigmoid(gate)
/// Sequences without keys are passed over. Keys may come by windows, one call for each: what one leaves in o and carry the next goes on from, with
/// the bits of one call.
struct LatentPrefillArgs {
  Tensor q;           ///< BF16 [R, H, dn + p]
  Tensor k;           ///< BF16 [S, H, dn]; S = rows of all keys
  Tensor k_pe;        ///< BF16 [S, p], shared by the heads
  Tensor v;           ///< BF16 [S, H, dv]
  Tensor cu_seqlens;  ///< I32 or I64 [N + 1], read on the device only
  Tensor cu_keys;     ///< the same type; absent: cu_seqlens (no prefix)
  float scale = 1;
  Tensor gate;  ///< BF16 [R, H, dv]; absent: no gate
  Tensor o;     ///< [R, H, dv], contiguous, BF16 or F32
  Tensor carry;  ///< F32 [R, H, 8]; absent: all keys are there. Else o is F32, cu_keys is of the keys that are there, and:
  Tensor past;   ///< I64 [N]: query i sees the keys of the first past[n] + i + 1 positions
  std::int64_t window = 0;       ///< position of a sequence's first key that is there, a multiple of 128
  std::int64_t window_keys = 0;  ///< how many are there of a sequence that has as many, a multiple of 128
};

}  // namespace palimpsest
