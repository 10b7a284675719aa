/* The C API as a program in C sees it: each function returns 0, or the number of the first thing that is not as it should be. */
#include <string.h>

#include "palimpsest/kernels_c.h"

int refusals_in_c(void) {
  palimpsest_delta args = PALIMPSEST_INIT(palimpsest_delta);
  char memory[64];
  int64_t least = -1;
  if (palimpsest_delta_step(NULL, 1, NULL) != PALIMPSEST_UNSUPPORTED || strcmp(palimpsest_last_error(), "delta_step: no arguments") != 0) return 1;
  if (palimpsest_delta_step(&args, 1, NULL) != PALIMPSEST_UNSUPPORTED || strcmp(palimpsest_last_error(), "q: absent") != 0) return 2;
  args.size += 8;
  if (palimpsest_delta_prefill(&args, NULL) != PALIMPSEST_UNSUPPORTED || strstr(palimpsest_last_error(), "size is ") == NULL) return 3;
  args.size = 0;
  if (palimpsest_delta_prefill_workspace(&args, &least, NULL) != PALIMPSEST_UNSUPPORTED || least != -1) return 4;
  args.size = sizeof args;
  args.q = palimpsest_contiguous(memory, PALIMPSEST_BF16, 7, 1, 1, 1, 1);
  if (palimpsest_delta_step(&args, 1, NULL) != PALIMPSEST_UNSUPPORTED || strcmp(palimpsest_last_error(), "q: rank 7, expected 0 to 4") != 0) return 5;
  args.q = palimpsest_contiguous(memory, 99, 3, 1, 1, 1, 1);
  if (palimpsest_delta_step(&args, 1, NULL) != PALIMPSEST_UNSUPPORTED || strcmp(palimpsest_last_error(), "q: type 99 is not known") != 0) return 6;
  if (palimpsest_short_conv(NULL, NULL, NULL, NULL, NULL, NULL, NULL) != PALIMPSEST_UNSUPPORTED) return 7;
  if (palimpsest_latent_decode(NULL, 1, NULL) != PALIMPSEST_UNSUPPORTED || palimpsest_latent_prefill(NULL, NULL) != PALIMPSEST_UNSUPPORTED) return 8;
  if (palimpsest_latent_decode_workspace(1, 12, 1000) <= 0 || palimpsest_latent_decode_workspace(INT32_MAX, 64, INT32_MAX - 63) <= 0) return 9;
  if (palimpsest_latent_decode_workspace(-1, 12, 1000) != 0 || strstr(palimpsest_last_error(), "rows: -1,") == NULL) return 11;
  if (palimpsest_latent_decode_workspace(INT64_MAX, 12, 1000) != 0 || palimpsest_latent_decode_workspace(1, 129, 1000) != 0 ||
      palimpsest_latent_decode_workspace(1, -1, 1000) != 0 || palimpsest_latent_decode_workspace(1, 12, -1) != 0 ||
      palimpsest_latent_decode_workspace(1, 12, INT64_MAX) != 0) return 12;
  args.q = palimpsest_contiguous(memory, PALIMPSEST_F32, 3, 5, 2, 3, 0);
  if (args.q.strides[0] != 6 || args.q.strides[1] != 3 || args.q.strides[2] != 1) return 10;
  return 0;
}

/* One token of two heads of 64 x 32, without gate: every array in device memory. Also by a caller whose struct ends before norm_silu. */
int step_in_c(void* q, void* k, void* v, void* b, void* pages, void* slots, void* o, float q_scale) {
  palimpsest_delta args = PALIMPSEST_INIT(palimpsest_delta);
  args.size = offsetof(palimpsest_delta, norm_silu);
  args.q = palimpsest_contiguous(q, PALIMPSEST_BF16, 3, 1, 2, 64, 0);
  args.k = palimpsest_contiguous(k, PALIMPSEST_BF16, 3, 1, 2, 64, 0);
  args.v = palimpsest_contiguous(v, PALIMPSEST_BF16, 3, 1, 2, 32, 0);
  args.b = palimpsest_contiguous(b, PALIMPSEST_BF16, 2, 1, 2, 0, 0);
  args.pages = palimpsest_contiguous(pages, PALIMPSEST_F32, 4, 3, 2, 32, 64);
  args.slots = palimpsest_contiguous(slots, PALIMPSEST_I32, 1, 1, 0, 0, 0);
  args.o = palimpsest_contiguous(o, PALIMPSEST_F32, 3, 1, 2, 32, 0);
  args.gate = PALIMPSEST_GATE_NONE;
  args.q_scale = q_scale;
  return palimpsest_delta_step(&args, 1, NULL);
}
