#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void glu(ExecContext& ctx, const GluArgs& args) {
  PALIMPSEST_CHECK(same_f32(args.gate, args.y) && same_f32(args.up, args.y),
                   "gate, up and y are F32 of one shape");
  PALIMPSEST_CHECK(args.params.kind == Glu::kSwiglu || args.params.beta > 0, "SiTU needs beta > 0");
  if (const Entered op = enter(ctx, Op::kGlu, [&] { return moves(args.gate, args.up, args.y); })) compute(ctx, args, cpu::glu, cuda::plain::glu);
}

}  // namespace palimpsest::ops
