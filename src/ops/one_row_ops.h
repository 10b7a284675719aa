#pragma once

#include "kernels/one_row_args.h"
#include "tensor/exec_context.h"

// Neighbours that a device does in one launch where there is one row.

namespace palimpsest::ops {

/// glu() and matmul().
void gated_product(ExecContext&, const GatedProductArgs&);
/// router() and gated_product(), which do not read what the other writes.
void router_beside(ExecContext&, const RouterArgs&, const GatedProductArgs&);
/// experts(), then y += add: F32 [T, width], contiguous, or absent; not y.
void experts_and(ExecContext&, const ExpertsArgs&, const Tensor& add);
/// kda_step() as in takes_kda_step_from(). False: nothing was done.
bool kda_step_from(ExecContext&, const KdaStepArgs&, const MatmulArgs& f, const MatmulArgs& gate);
/// False: nothing was done.
bool latent_step(ExecContext&, const LatentStepArgs&);

}  // namespace palimpsest::ops
