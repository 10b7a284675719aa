#include "ops/vision_ops.h"

#include <algorithm>

#include "kernels/cpu/vision_kernels.h"
#include "kernels/cuda/plain_vision_kernels.h"
#include "ops/front_door.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {
namespace {

bool is_grid(const PatchGridSize& grid) { return grid.frames >= 1 && grid.rows >= 1 && grid.columns >= 1; }

OpWork work_of(const PatchAttentionArgs& a) {
  const double pairs = static_cast<double>(a.q.size(0)) * static_cast<double>(a.k.size(0));
  return {.flops = 4 * pairs * static_cast<double>(a.q.size(1) * a.q.size(2)), .bytes = moves(a.q, a.k, a.v, a.o).bytes, .form = {}};
}

}  // namespace

void patch_positions(ExecContext& ctx, const PatchPositionsArgs& args) {
  PALIMPSEST_CHECK(is_grid(args.grid) && is_f32(args.x, 2) && args.x.size(0) == args.grid.patches(), "x is F32, a row a patch");
  PALIMPSEST_CHECK(args.table.rank == 3 && args.table.is_contiguous() && args.table.size(2) == args.x.size(1), "the table has x's width");
  if (const Entered op = enter(ctx, Op::kEmbedding, [&] { return moves(args.x, args.x); })) compute(ctx, args, cpu::patch_positions, cuda::plain::patch_positions);
}

void patch_turns(ExecContext& ctx, const PatchTurnsArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.turns, 3) && args.head_dim % 4 == 0 && args.turns.size(1) == args.head_dim / 4 && args.turns.size(2) == 2, "turns are F32 [coordinates, D / 4, 2]");
  if (const Entered op = enter(ctx, Op::kRotaryTable, [&] { return moves(args.turns); })) compute(ctx, args, cpu::patch_turns, cuda::plain::patch_turns);
}

void patch_rotary(ExecContext& ctx, const PatchRotaryArgs& args) {
  PALIMPSEST_CHECK(args.x.dtype == DType::kF32 && args.x.rank == 3 && args.x.stride(2) == 1 && args.x.stride(1) == args.x.size(2) && args.x.size(2) % 4 == 0,
                   "x is F32 [T, H, D], D a multiple of 4");
  PALIMPSEST_CHECK(is_grid(args.grid) && args.first >= 0 && args.first + args.x.size(0) <= args.grid.patches(), "rows are patches of the grid");
  PALIMPSEST_CHECK(is_f32(args.turns, 3) && args.turns.size(1) == args.x.size(2) / 4 && args.turns.size(2) == 2 &&
                       args.turns.size(0) >= std::max(args.grid.rows, args.grid.columns),
                   "turns of this head size, for every row and column");
  if (const Entered op = enter(ctx, Op::kRotary, [&] { return moves(args.x, args.x); })) compute(ctx, args, cpu::patch_rotary, cuda::plain::patch_rotary);
}

void patch_attention(ExecContext& ctx, const PatchAttentionArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.q, 3) && same_f32(args.q, args.o), "q and o are F32 [Tq, H, D]");
  PALIMPSEST_CHECK(is_f32(args.k, 3) && same_f32(args.k, args.v) && args.k.size(1) == args.q.size(1) && args.k.size(2) == args.q.size(2) && args.k.size(0) >= 1,
                   "k and v are F32 [T, H, D]");
  if (const Entered op = enter(ctx, Op::kSoftmaxAttention, [&] { return work_of(args); })) compute(ctx, args, cpu::patch_attention, cuda::plain::patch_attention);
}

void gelu_erf(ExecContext& ctx, const GeluErfArgs& args) {
  PALIMPSEST_CHECK(same_f32(args.x, args.y), "x and y are F32 of one shape");
  if (const Entered op = enter(ctx, Op::kUnary, [&] { return moves(args.x, args.y); })) compute(ctx, args, cpu::gelu_erf, cuda::plain::gelu_erf);
}

void patch_merge(ExecContext& ctx, const PatchMergeArgs& args) {
  PALIMPSEST_CHECK(is_grid(args.grid) && is_f32(args.x, 2) && args.x.size(0) == args.grid.patches(), "x is F32, a row a patch");
  PALIMPSEST_CHECK(args.side >= 1 && args.grid.rows % args.side == 0 && args.grid.columns % args.side == 0, "cells tile the grid");
  PALIMPSEST_CHECK(is_f32(args.y, 2) && args.y.size(1) == args.side * args.side * args.x.size(1), "y holds a cell a row");
  PALIMPSEST_CHECK(args.first >= 0 && args.first + args.y.size(0) <= args.grid.rows / args.side * (args.grid.columns / args.side), "tokens of the grid");
  if (const Entered op = enter(ctx, Op::kEmbedding, [&] { return moves(args.y, args.y); })) compute(ctx, args, cpu::patch_merge, cuda::plain::patch_merge);
}

}  // namespace palimpsest::ops
