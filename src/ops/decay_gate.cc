#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void decay_gate(ExecContext& ctx, const DecayGateArgs& args) {
  PALIMPSEST_CHECK(args.f.rank == 3 && same_f32(args.f, args.g), "f and g are F32 [T, H, K]");
  PALIMPSEST_CHECK(is_f32(args.a_log, 1) && args.a_log.size(0) == args.f.size(1),
                   "a_log is F32 [H]");
  PALIMPSEST_CHECK(
      is_f32(args.dt_bias, 1) && args.dt_bias.size(0) == args.f.size(1) * args.f.size(2),
      "dt_bias is F32 [H * K]");
  if (const Entered op = enter(ctx, Op::kDecayGate, [&] { return moves(args.f, args.g); })) compute(ctx, args, cpu::decay_gate, cuda::plain::decay_gate);
}

}  // namespace palimpsest::ops
