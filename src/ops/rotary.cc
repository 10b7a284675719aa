#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void positions(ExecContext& ctx, const PositionsArgs& args) {
  PALIMPSEST_CHECK(is_ragged(args.rows) && args.past.dtype == DType::kI64 && args.past.rank == 1, "one past length per sequence");
  PALIMPSEST_CHECK(args.out.dtype == DType::kI32 && args.out.rank == 1 && args.out.is_contiguous(), "positions are I32 [T]");
  if (const Entered op = enter(ctx, Op::kPositions, [&] { return moves(args.out); })) compute(ctx, args, cpu::positions, cuda::plain::positions);
}

void rotary_table(ExecContext& ctx, const RotaryTableArgs& args) {
  PALIMPSEST_CHECK(args.inv_freq.dtype == DType::kF64 && args.inv_freq.rank == 1 && args.inv_freq.is_contiguous(), "inv_freq is F64 [n]");
  PALIMPSEST_CHECK(is_ragged(args.rows) && args.past.dtype == DType::kI64 && args.past.rank == 1, "one past length per sequence");
  PALIMPSEST_CHECK(args.cos.rank == 2 && same_f32(args.cos, args.sin) && args.cos.size(1) == args.inv_freq.size(0), "cos and sin are F32 [T, n]");
  if (const Entered op = enter(ctx, Op::kRotaryTable, [&] { return moves(args.cos, args.sin); })) compute(ctx, args, cpu::rotary_table, cuda::plain::rotary_table);
}

void rotary(ExecContext& ctx, const RotaryArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.x, 3) && args.cos.rank == 2 && same_f32(args.cos, args.sin), "x is F32 [T, H, D], cos and sin F32 [T, n]");
  PALIMPSEST_CHECK(args.cos.size(0) == args.x.size(0) && 2 * args.cos.size(1) <= args.x.size(2), "a row of angles per token, two channels an angle");
  if (const Entered op = enter(ctx, Op::kRotary, [&] { return moves(args.x, args.x); })) compute(ctx, args, cpu::rotary, cuda::plain::rotary);
}

}  // namespace palimpsest::ops
