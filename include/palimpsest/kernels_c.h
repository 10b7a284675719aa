/* The device kernels for C: page memories (KDA, Gated DeltaNet, DeltaNet, linear attention), latent attention (MLA), and what lies between the
 * products of such layers, for Hopper (sm_90a). Formulas: src/kernels/delta_args.h, latent_args.h and op_args.h.
 *
 * Every tensor lies in device memory and stays the caller's. A call puts kernels on `stream` (a cudaStream_t; NULL: the default one) and returns at
 * once; it allocates nothing, reads no device memory on the host and may be captured into a CUDA graph. Calls may come from any thread.
 *
 * Each struct begins with its own size, which PALIMPSEST_INIT sets (everything else becomes zero, a default everywhere). Members are only ever added
 * at the end, so a caller built with an older header stays right. A size beyond what is known is refused.
 */
#ifndef PALIMPSEST_KERNELS_C_H_
#define PALIMPSEST_KERNELS_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call returns. */
enum {
  PALIMPSEST_OK = 0,
  PALIMPSEST_UNSUPPORTED = 1,   /* an argument that the kernels cannot take, or a build without CUDA: nothing was launched */
  PALIMPSEST_OUT_OF_MEMORY = 2,
  PALIMPSEST_DEVICE_FAILED = 3  /* what CUDA's runtime refused */
};
/* The text of this thread's last failed call: names the field and the numbers. Never NULL; valid until the thread's next call. */
const char* palimpsest_last_error(void);

enum { PALIMPSEST_F64, PALIMPSEST_F32, PALIMPSEST_F16, PALIMPSEST_BF16, PALIMPSEST_U8, PALIMPSEST_I8, PALIMPSEST_I32, PALIMPSEST_I64 };

/* A strided view; strides count elements. data NULL: absent. */
typedef struct {
  void* data;
  int32_t dtype, rank; /* rank at most 4 */
  int64_t sizes[4], strides[4];
} palimpsest_tensor;
/* A contiguous one. Sizes beyond `rank` are ignored. */
palimpsest_tensor palimpsest_contiguous(void* data, int32_t dtype, int32_t rank, int64_t n0, int64_t n1, int64_t n2, int64_t n3);

#define PALIMPSEST_INIT(type) {.size = sizeof(type)}

enum { PALIMPSEST_GATE_NONE, PALIMPSEST_GATE_LOG_DECAY, PALIMPSEST_GATE_BOUNDED, PALIMPSEST_GATE_SOFTPLUS };

/* Page memories. R rows (tokens of all sequences, concatenated), N sequences, H query heads, HV value heads. S <- decay(S) + beta (v - S k) k^T,
 * o = S q. cu_seqlens [N + 1] I32 or I64; slots I32 [N], -1: zeros in o, nothing else. */
typedef struct {
  size_t size;
  palimpsest_tensor q, k;           /* [R, H, K] BF16, F16 or F32, all inputs alike */
  palimpsest_tensor v;              /* [R, HV, V] */
  palimpsest_tensor f;              /* [R, HV, K] or [R, HV] */
  palimpsest_tensor b;              /* [R, HV]; absent: beta = 1 */
  palimpsest_tensor a_log, dt_bias; /* F32 [HV]; F32 [HV * K] or [HV] */
  palimpsest_tensor pages;          /* F32 or BF16 [slots, HV, V, K], in place */
  palimpsest_tensor cu_seqlens, slots;
  palimpsest_tensor past;                      /* I64 [N], prefill only; absent: 0 */
  palimpsest_tensor snapshots, snapshot_slots; /* [n, HV, V, K], I32 [R]: the page after a row (prefill: at multiples of 64); absent: none */
  palimpsest_tensor o;                         /* [R, HV, V] */
  palimpsest_tensor workspace;                 /* U8, prefill only */
  palimpsest_tensor conv_weight, conv_tails;   /* step only: F32 [2 H K + HV V, W], [slots, W - 1, 2 H K + HV V]; absent: no convolution */
  palimpsest_tensor norm_weight, norm_gate;    /* step only: F32 [V], [R, HV, V]; absent: no norm */
  int32_t gate;                                /* PALIMPSEST_GATE_... */
  float lower_bound;                           /* of PALIMPSEST_GATE_BOUNDED; 0 is -5 */
  int32_t plain_write;                         /* not 0: writes beta v k^T (linear attention) */
  int32_t no_l2_norm, no_beta_sigmoid;
  float l2_eps, q_scale, beta_scale;           /* 0 is 1e-6, 1, 1 */
  int32_t norm_silu;                           /* not 0: silu instead of sigmoid */
  float norm_eps;
} palimpsest_delta;

/* Decode, and a few drafted tokens a sequence; no sequence has more than max_rows. cu_seqlens may be absent: one row a sequence. */
int palimpsest_delta_step(const palimpsest_delta* args, int64_t max_rows, void* stream);
/* Bytes without which prefill does not run, and from which on more do not help. */
int palimpsest_delta_prefill_workspace(const palimpsest_delta* args, int64_t* least, int64_t* all);
int palimpsest_delta_prefill(const palimpsest_delta* args, void* stream);

/* Absorbed latent attention over paged lists of 512 + 64 numbers a token: BF16 [blocks, tokens, 576], or 8-bit I8 [blocks, tokens, 584], a block
 * being codes [tokens, 576], then BF16 scales [tokens, 4] of columns 0..191, 192..383, 384..511, 512..575. */
typedef struct {
  size_t size;
  palimpsest_tensor q;      /* [R, H, 192] BF16 or F32 */
  palimpsest_tensor kv_b;   /* BF16 [H * 256, 512] */
  palimpsest_tensor blocks, table; /* table I32 [slots, most blocks of a list] */
  palimpsest_tensor cu_seqlens, slots, past; /* cu_seqlens may be absent: one row a sequence; past I64 [N] */
  palimpsest_tensor gate;   /* [R, H, 128]; absent: no gate */
  palimpsest_tensor o;      /* [R, H, 128] */
  palimpsest_tensor workspace;
  float scale;
} palimpsest_latent_list;
/* Bytes of `workspace`, for lists of at most max_length rows. 0 for a size out of range, which palimpsest_last_error() then names: rows 0 to 2^31 - 1, heads
 * 1 to 128, max_length 1 to 2^31 - 64. */
int64_t palimpsest_latent_decode_workspace(int64_t rows, int64_t heads, int64_t max_length);
int palimpsest_latent_decode(const palimpsest_latent_list* args, int64_t max_length, void* stream);

/* Materialised latent attention, causal, ragged, all BF16: q [R, H, 192], k and v [S, H, 128], k_pe [S, 64]. */
typedef struct {
  size_t size;
  palimpsest_tensor q, k, k_pe, v, cu_seqlens, cu_keys, gate, o;
  float scale;
} palimpsest_latent_rows;
int palimpsest_latent_prefill(const palimpsest_latent_rows* args, void* stream);

/* y = x rsqrt(mean(x^2) + eps) weight sigmoid(gate), or silu; x, gate, y [T, H, V] BF16 or F32, V 64, 128 or 256; weight F32 [V]. y may be x. */
int palimpsest_gated_rms_norm(const palimpsest_tensor* x, const palimpsest_tensor* weight, const palimpsest_tensor* gate, int silu, float eps,
                              const palimpsest_tensor* y, void* stream);
/* Depthwise causal convolution with SiLU over x [R, D] and the rows before it; weight F32 [D, W], tails [slots, W - 1, D], oldest row first. */
int palimpsest_short_conv(const palimpsest_tensor* x, const palimpsest_tensor* weight, const palimpsest_tensor* tails, const palimpsest_tensor* cu_seqlens,
                          const palimpsest_tensor* slots, const palimpsest_tensor* y, void* stream);
/* y = sum_j p_j v_j, p = softmax over the sources v [M, T, width] of v_j . w rsqrt(mean(v_j^2) + eps); p [T, M] F32 may be NULL. */
int palimpsest_attention_residual(const palimpsest_tensor* sources, const palimpsest_tensor* w, float eps, const palimpsest_tensor* y,
                                  const palimpsest_tensor* p, void* stream);

#ifdef __cplusplus
}
#endif
#endif
