#pragma once

#include "kernels/kda_step_args.h"

// What a device does in one launch where there is one row, with the bits of the ops that it replaces; activations are rounded as in tile_kernels.h.

namespace palimpsest {

/// y = W glu(gate, up)
struct GatedProductArgs {
  Tensor gate;  ///< F32 [T, k], contiguous; may be overwritten
  Tensor up;    ///< the same; not overwritten
  GluParams params;
  Matrix w;  ///< [n, k]
  Tensor y;  ///< F32 [T, n]
  bool beside = false;  ///< nothing that the kernel before writes is read, and that kernel waits for the one before it
};

/// rms_norm() of the latent in kv_a, latent_append(), then latent_attention(), where each sequence has one row.
struct LatentStepArgs {
  LatentAttentionArgs attention;
  Tensor kv_a;  ///< F32 [T, r + p]: latent | k_pe
  Tensor kv_a_layernorm;
  float eps = 0;
};

namespace cuda {
/// Of one row, or 9 to 64. The gate stays.
bool takes_gated_product(const GatedProductArgs& args, int parts);
void gated_product(const GatedProductArgs& args, int parts, void* stream);
/// The same with router() of the same row in that launch.
bool takes_router_beside(const RouterArgs& router, const GatedProductArgs& args, int parts);
void router_beside(const RouterArgs& router, const GatedProductArgs& args, int parts, void* stream);
/// kda_step() behind products of 128 columns whose outputs it reads and which are not stored: of in.gate.f, and of norm.gate unless that w is absent.
bool takes_kda_step_from(const KdaStepArgs& args, const MatmulArgs& f, const MatmulArgs& gate);
void kda_step_from(const KdaStepArgs& args, const MatmulArgs& f, const MatmulArgs& gate, int parts, void* stream);

namespace plain {
/// experts() of plain_kernels.h, and y += add: F32 [T, width], contiguous, or absent.
void experts_and(const ExpertsArgs& args, const Tensor& add, std::int64_t inter, int parts, void* workspace, void* stream, int most_tile_rows = 1 << 20);
}  // namespace plain
}  // namespace cuda
}  // namespace palimpsest
