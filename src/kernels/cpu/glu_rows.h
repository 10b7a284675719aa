#pragma once

#include <cstdint>

#include "kernels/op_args.h"

namespace palimpsest::cpu {

/// y[i] = glu(gate[i], up[i]) for i in [0, n), on the calling thread, with the target that kernels
/// run with. y may be gate or up. An element's bits do not depend on n or on its place. Formulas:
/// Glu in kernels/op_args.h.
void glu_rows(const float* gate, const float* up, float* y, std::int64_t n,
              const GluParams& params);

}  // namespace palimpsest::cpu
