#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/latent_checks.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void latent_append(ExecContext& ctx, const LatentAppendArgs& args) {
  const std::int64_t rows = args.latent.size(0), r = args.latent.size(1), p = args.list.width() - r;
  PALIMPSEST_CHECK(args.latent.rank == 2 && args.latent.dtype == DType::kF32 && (r <= 1 || args.latent.stride(1) == 1),
                   "latent is F32 [T, r] with contiguous rows");
  PALIMPSEST_CHECK(p >= 0, "the list is at least as wide as the latent");
  PALIMPSEST_CHECK(p == 0 || (args.k_pe.rank == 2 && args.k_pe.dtype == DType::kF32 && args.k_pe.size(0) == rows &&
                              args.k_pe.size(1) == p && (p == 1 || args.k_pe.stride(1) == 1)),
                   "k_pe is F32 [T, p] with contiguous rows");
  PALIMPSEST_CHECK(is_paged_list(args.list), "the list is F32, BF16 or 8-bit [blocks, block_tokens, row] with an I32 table");
  PALIMPSEST_CHECK(!args.list.q8.defined() || args.list.q8.left == r, "8-bit rows are cut where the latent ends");
  PALIMPSEST_CHECK(is_ragged(args.rows) && args.past.dtype == DType::kI64 && args.past.size(0) == args.rows.slots.size(0),
                   "one slot and one past a sequence");
  if (const Entered op = enter(ctx, Op::kLatentAppend, [&] { return moves(args.latent, args.k_pe); })) compute(ctx, args, cpu::latent_append, cuda::plain::latent_append);
}

}  // namespace palimpsest::ops
