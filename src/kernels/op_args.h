#pragma once

// The arguments of every op, as small PODs of tensors. ref::, cpu:: and cuda:: kernels of an op take the same struct, and so do
// tests and benchmarks; the reference takes it with F64 tensors too.
//
// Conventions. T = rows of the batch (tokens of all its sequences, concatenated), N = sequences of the batch, H = heads.
// Activations are F32 and contiguous unless a field says otherwise. Kernels never allocate and never see a model.
// Where a batch is ragged, sequence n owns rows [cu_seqlens[n], cu_seqlens[n+1]); empty sequences are allowed.
// Reproducibility: what is computed for a row depends on its own sequence and on weight shapes only, bit for bit.

#include <cstdint>

#include "kernels/q8_rows.h"
#include "palimpsest/tensor.h"

namespace palimpsest {

/// How the rows of a batch belong to sequences, and where each sequence keeps its state.
struct RaggedRows {
  Tensor cu_seqlens;  ///< I64 [N + 1], ascending from 0 to T
  Tensor slots;       ///< I32 [N], slot of the state pool; each slot at most once
};

/// Where a kernel leaves rows, up to 64, a second time: as products of a batch read them (sm90/wide_products.cuh), in so many BF16 parts. No kernel: nowhere.
struct RowImage {
  void* to = nullptr;
  std::int32_t parts = 0;  ///< ops say it
  static constexpr std::int64_t kRows = 64;
  static std::int64_t bytes(std::int64_t columns) { return (columns + 63) / 64 * 64 * kRows * 4; }
};

/// out[t] = table[ids[t]]
struct EmbeddingArgs {
  Matrix table;  ///< [vocab, width]
  Tensor ids;    ///< I32 [T], in range (checked by the caller)
  Tensor out;    ///< [T, width]
};

/// y[t] = W x[t]: y [T, n] = x [T, k] W[n, k]^T. The sum over k runs in an order fixed by the weight's shape alone.
struct MatmulArgs {
  Tensor x;  ///< [T, k], unit column stride
  Matrix w;  ///< [n, k]
  Tensor y;  ///< [T, n], unit column stride
};

/// y = x * rsqrt(mean(x^2) + eps) * weight
struct RmsNormArgs {
  Tensor x;       ///< [T, width]; rows may lie apart (columns of a wider matrix)
  Tensor weight;  ///< [width] BF16 or F32
  float eps = 0;
  Tensor y;  ///< [T, width]; may be x
};

/// A function of one number.
enum class Unary : std::uint8_t {
  kSigmoid,
  kSilu,      ///< x sigmoid(x)
  kRelu,
  kEluPlus1,  ///< x + 1 above zero, exp(x) below: a positive feature map
  kGeluTanh,  ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): gelu_new
};
/// y = f(x)
struct UnaryArgs {
  Tensor x;  ///< any shape
  Unary function = Unary::kSigmoid;
  Tensor y;  ///< same; may be x
};

/// y = x * rsqrt(mean(x^2) + eps) * weight * f(gate), the mean over one head: the output norm of KDA (sigmoid) and Gated DeltaNet (silu).
struct GatedRmsNormArgs {
  Tensor x;       ///< [T, H, V]
  Tensor weight;  ///< [V], shared by the heads
  Tensor gate;    ///< [T, H, V]
  Unary function = Unary::kSigmoid;  ///< kSigmoid or kSilu
  float eps = 0;
  Tensor y;  ///< [T, H, V]; may be x
};

/// y = scale * x / sqrt(sum(x^2) + eps), over one head; eps inside the root and on the sum.
struct L2NormArgs {
  Tensor x;  ///< [T, H, K]
  float eps = 1e-6f;
  float scale = 1;
  Tensor y;  ///< [T, H, K]; may be x
};

/// y[r] = x[r] / (d[r] + eps), d the divisor or else the sum of the row, added in order.
struct DivideRowsArgs {
  Tensor x;        ///< [R, width]; rows may lie apart
  Tensor divisor;  ///< [R, 1]; rows may lie apart; or absent
  float eps = 0;
  Tensor y;  ///< [R, width], contiguous; may be x
};

/// y[r] = (x[r] | 1): a channel that counts.
struct AppendOneArgs {
  Tensor x;  ///< [R, width]
  Tensor y;  ///< [R, width + 1]; not x
};

/// Feature maps that make a key wider.
enum class Features : std::uint8_t {
  kHedgehog,  ///< y = softmax(2x | -2x), width 2K                                              (arXiv 2402.04347)
  kDpfp,      ///< with r = relu(x | -x), block j = 1 .. 4 of y is r[i] r[(i - j) mod 2K], width 8K  (arXiv 2102.11174, nu = 4)
};
constexpr std::int64_t feature_width(Features features, std::int64_t width) { return (features == Features::kHedgehog ? 2 : 8) * width; }
struct FeaturesArgs {
  Tensor x;  ///< [R, K]
  Features kind = Features::kHedgehog;
  Tensor y;  ///< [R, feature_width(kind, K)]; not x
};

/// Depthwise causal convolution with history, then SiLU: y[t,c] = silu(sum_i weight[c,i] * s[t - W + 1 + i, c]), where s is x continued
/// into the past by the sequence's tail. Tap W-1 multiplies the current row. The tail is replaced by the last W-1 rows of (tail, x).
struct ShortConvArgs {
  Tensor x;       ///< [T, D]; rows may lie apart (columns of a wider matrix)
  Tensor weight;  ///< F32 [D, W], W <= 8
  Tensor tails;   ///< F32 [slots, W - 1, D], oldest row first; may be strided in its first dimension
  RaggedRows rows;
  Tensor y;          ///< [T, D]; not x
  bool silu = true;  ///< else y is the sum itself
};

/// Log decay of a page, per key channel, natural logarithm.
enum class DecayGateKind : std::uint8_t {
  kBounded,   ///< g = lower_bound * sigmoid(exp(A_log) * (f + dt_bias))      (Kimi K3)
  kSoftplus,  ///< g = -exp(A_log) * softplus(f + dt_bias)                     (Kimi Linear)
};
struct DecayGateArgs {
  Tensor f;        ///< [T, H, K]
  Tensor a_log;    ///< F32 [H]
  Tensor dt_bias;  ///< F32 [H * K]
  DecayGateKind kind = DecayGateKind::kBounded;
  float lower_bound = -5;
  Tensor g;  ///< [T, H, K]; may be f
};

/// What a page forgets each token: S <- decay(S).
enum class PageDecay : std::uint8_t { kNone, kHead, kChannel };
/// What it writes: v itself, or what v adds to the page's prediction (the delta rule).
enum class PageWrite : std::uint8_t { kPlain, kDelta };
/// How a kernel walks the tokens. kAuto: kStep for sequences with one row in the batch, kChunked for longer ones.
enum class PageForm : std::uint8_t { kAuto, kStep, kChunked };

/// The recurrence of the page memories, per sequence and head, S in R^(V x K) (value-first):
///     S <- S diag(exp(g));   e = v - S k (delta) or v (plain);   S <- S + beta e k^T;   o = S q
/// KDA = channel + delta; Gated DeltaNet = head + delta; DeltaNet = none + delta; linear attention = none + plain.
/// q arrives scaled, q and k arrive normalised where the model asks for it. HV = value heads, a multiple of the H query heads; value head j
/// reads q and k of head j / (HV / H).
/// Chunk borders lie at positions `past + i` divisible by the chunk size, so that a row does not depend on how its prompt was cut
/// into batches beyond the choice of form; see docs/mathematics.md.
struct PageMemoryArgs {
  Tensor q;     ///< [T, H, K]
  Tensor k;     ///< [T, H, K]
  Tensor v;     ///< [T, HV, V]
  Tensor g;     ///< [T, HV, K] (channel), [T, HV] (head), absent (none): log decay, <= 0
  Tensor beta;  ///< [T, HV], or absent for 1
  Tensor pages;  ///< F32 [slots, HV, V, K]; may be strided in its first dimension
  RaggedRows rows;
  Tensor past;  ///< I64 [N]: tokens the sequence held before this batch (absolute position of its first row)
  Tensor o;     ///< [T, HV, V]
  PageDecay decay = PageDecay::kChannel;
  PageWrite write = PageWrite::kDelta;
  PageForm form = PageForm::kAuto;
  /// After a token whose position + 1 is a multiple of this, S <- S rounded to BF16 (to nearest even): positions count from the start of the
  /// sequence, so that it does not matter how it is cut into batches. A multiple of 16; 0: never.
  std::int64_t round_every = 0;
};

/// A list memory cut into fixed blocks: row `position` of slot s lies in block table[s, position / block_tokens].
struct PagedList {
  Tensor blocks;  ///< F32 or BF16 [num_blocks, block_tokens, width], contiguous rows; or I8 [num_blocks, block_tokens, q8.row_bytes()]
  Tensor table;   ///< I32 [slots, max_blocks]
  Q8Rows q8;      ///< what the bytes of an I8 block are
  std::int64_t block_tokens() const { return blocks.size(1); }
  std::int64_t width() const { return q8.defined() ? q8.width() : blocks.size(2); }
};

/// list[past[n] + i] = (left row | right row), rounded to the list's type, for every row i of every sequence.
struct LatentAppendArgs {
  Tensor latent;  ///< [T, r], after kv_a_layernorm
  Tensor k_pe;    ///< [T, p], may have a row stride > p; p may be 0 (absent)
  PagedList list;  ///< width r + p
  RaggedRows rows;
  Tensor past;  ///< I64 [N]
};

/// kAuto: for each sequence by its own rows: absorbed up to kAbsorbedRows, beyond them whichever takes fewer multiply-adds.
/// kByRows: absorbed up to kAbsorbedRows; of more rows, those behind the last multiple of 64 that the sequence has reached are absorbed, the
/// others materialised. So where passes end at multiples of 64 or at the end of a prompt, a row's form follows from its position and that end.
enum class LatentForm : std::uint8_t { kAuto, kAbsorbed, kMaterialized, kByRows };
inline constexpr std::int64_t kAbsorbedRows = 4;

/// Causal multi-head latent attention without positions over the list (which already holds this batch's rows):
///     k_h = [B_k,h latent | k_pe],  v_h = B_v,h latent,   o_h = softmax(scale * q_h k_h^T) v_h
/// with kv_b rows of head h: B_k,h = [h*(dn+dv), +dn), B_v,h = the dv rows after them.
/// kMaterialized computes k_h and v_h block by block and attends with an online softmax (no T x T matrix, nothing kept);
/// kAbsorbed folds B_k,h into q and B_v,h into the output and reads latents only. Key blocks lie on a fixed grid of absolute positions.
struct LatentAttentionArgs {
  Tensor q;        ///< [T, H, dn + p]
  Matrix kv_b;     ///< [H * (dn + dv), r]
  PagedList list;  ///< width r + p
  RaggedRows rows;
  Tensor past;  ///< I64 [N]: list length before this batch
  float scale = 1;
  Tensor o;  ///< [T, H, dv]
  LatentForm form = LatentForm::kAuto;
  RowImage image = {};  ///< of o
};

/// Causal softmax attention with grouped keys and values over the list (which already holds this batch's rows): with G = H / Hkv,
///     o_h = softmax(scale * q_h K_{h/G}^T) V_{h/G}
/// A list row holds the keys of all Hkv heads, then the values of all Hkv heads. Key blocks lie on a fixed grid of absolute positions and are
/// walked in order with an online softmax: no T x T matrix.
struct SoftmaxAttentionArgs {
  Tensor q;        ///< [T, H, dk]
  PagedList list;  ///< width Hkv * (dk + dv)
  RaggedRows rows;
  Tensor past;  ///< I64 [N]: list length before this batch
  std::int64_t num_kv_heads = 1;
  float scale = 1;
  Tensor o;  ///< [T, H, dv]
};

/// The gated unit between the two halves of an MLP.
enum class Glu : std::uint8_t {
  kSwiglu,  ///< silu(gate) * up
  kSitu,    ///< beta * tanh(gate / beta) * sigmoid(gate) * linear_beta * tanh(up / linear_beta); linear_beta <= 0: just up
};
struct GluParams {
  Glu kind = Glu::kSwiglu;
  float beta = 1;
  float linear_beta = 0;
};
struct GluArgs {
  Tensor gate;  ///< [T, width]
  Tensor up;    ///< [T, width]
  GluParams params;
  Tensor y;  ///< [T, width]; may be gate
};

/// y = x * sigmoid(gate)
struct MultiplySigmoidArgs {
  Tensor x;     ///< any shape
  Tensor gate;  ///< same, or [T, 1] for one gate a row
  Tensor y;     ///< same; may be x
};

/// y *= x
struct MultiplyArgs {
  Tensor x;  ///< any shape
  Tensor y;  ///< same
};

/// y[t] += bias
struct AddBiasArgs {
  Tensor bias;  ///< F32 [width]
  Tensor y;     ///< [T, width]
};

/// y *= factor
struct ScaleArgs {
  float factor = 1;
  Tensor y;  ///< any shape
};

/// y = (x - mean(x)) * rsqrt(var(x) + eps) * weight + bias, mean and (biased) variance over the row.
struct LayerNormArgs {
  Tensor x;       ///< [T, width]
  Tensor weight;  ///< F32 [width]
  Tensor bias;    ///< F32 [width]
  float eps = 0;
  Tensor y;  ///< [T, width]; may be x
};

/// The absolute position of every row.
struct PositionsArgs {
  RaggedRows rows;
  Tensor past;  ///< I64 [N]
  Tensor out;   ///< I32 [T]
};

/// cos and sin of position * inv_freq[i] * attention factor, for the rows of a batch; angles are computed in double.
struct RotaryTableArgs {
  Tensor inv_freq;  ///< F64 [n]
  RaggedRows rows;
  Tensor past;             ///< I64 [N]
  double attention_factor = 1;
  Tensor cos;  ///< F32 [T, n]
  Tensor sin;  ///< F32 [T, n]
};

/// Rotary position embedding of the first 2 n channels of every head, in place: (x_i, x_{i+n}) <- (x_i cos_i - x_{i+n} sin_i, x_{i+n} cos_i + x_i sin_i).
struct RotaryArgs {
  Tensor x;    ///< [T, H, D], D >= 2 n
  Tensor cos;  ///< F32 [T, n]
  Tensor sin;  ///< F32 [T, n]
};

/// y += x
struct AddArgs {
  Tensor x;  ///< any shape
  Tensor y;  ///< same
};

/// Attention over depth (block Attention Residuals): per token, with M source vectors v_j (banked streams, oldest first, then the running one),
///     z_j = sum_c v_j[c] * rsqrt(mean(v_j^2) + eps) * w[c],   p = softmax(z),   y = sum_j p_j v_j
struct AttentionResidualArgs {
  Tensor sources;  ///< [M, T, width], M >= 1; may be strided in its first dimension
  Tensor w;        ///< F32 [width]: norm weight times projection, multiplied once in F32
  float eps = 0;
  Tensor y;  ///< [T, width]
  Tensor p;  ///< [T, M] depth weights for observers, or absent
};

/// How a router turns logits into scores.
enum class RouterScore : std::uint8_t { kSigmoid, kSoftmax };

/// Router with selection bias (noaux_tc): s = sigmoid(logits), or softmax over all experts; the top_k experts by s + bias (ties: lowest index; with n_group > topk_group
/// only inside the topk_group groups with the largest sum of their two best); weights = s there, / (sum + 1e-20) if renormalize, * scale.
struct RouterArgs {
  Tensor logits;  ///< F32 [T, E]
  RouterScore score = RouterScore::kSigmoid;
  Tensor bias;    ///< F32 [E], or absent for 0
  std::int32_t top_k = 1;
  std::int32_t n_group = 1;
  std::int32_t topk_group = 1;
  bool renormalize = true;
  float scale = 1;
  Tensor ids;      ///< I32 [T, top_k], in descending order of biased score
  Tensor weights;  ///< F32 [T, top_k]
};

/// One expert: y = w2 glu(w1 x, w3 x).
struct ExpertMatrices {
  Matrix w1;  ///< gate [inter, width]
  Matrix w3;  ///< up   [inter, width]
  Matrix w2;  ///< down [width, inter]
};

/// y[t] = sum_j weights[t,j] * expert[ids[t,j]](x[t]), in F32, in the order j = 0, 1, ...: tokens are grouped by expert so that each
/// expert's weights are read once a batch.
struct ExpertsArgs {
  Tensor x;                                 ///< [T, width]; of one row on a device there before the kernel that ran last: that of the choice
  Tensor ids;                               ///< I32 [T, top_k]
  Tensor weights;                           ///< F32 [T, top_k]
  const ExpertMatrices* experts = nullptr;  ///< [num_experts], host array; only those named by ids are read
  const void* device_experts = nullptr;     ///< the same in the form that a device's kernels read, in its memory; absent on the host
  std::int64_t num_experts = 0;
  GluParams glu;
  Tensor y;  ///< [T, width]; not x
};

}  // namespace palimpsest
