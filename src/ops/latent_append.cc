#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "ops/ops.h"

namespace palimpsest::ops {

void latent_append(ExecContext& ctx, const LatentAppendArgs& args) {
  const std::int64_t sequences = args.rows.cu_seqlens.size(0) - 1, rows = args.latent.size(0);
  PALIMPSEST_CHECK(args.latent.rank == 2 && args.latent.dtype == DType::kF32, "latent is F32 [T, r]");
  PALIMPSEST_CHECK(args.latent.stride(1) == 1 || args.latent.size(1) == 1, "latent rows are contiguous");
  const std::int64_t p = args.list.width() - args.latent.size(1);
  PALIMPSEST_CHECK(p >= 0, "the list is narrower than the latent");
  PALIMPSEST_CHECK(p == 0 || (args.k_pe.dtype == DType::kF32 && args.k_pe.rank == 2 && args.k_pe.size(0) == rows &&
                              args.k_pe.size(1) == p && (args.k_pe.stride(1) == 1 || p == 1)),
                   "k_pe is F32 [T, p] with contiguous rows");
  PALIMPSEST_CHECK(args.list.blocks.rank == 3 && args.list.blocks.is_contiguous(), "the list is contiguous");
  PALIMPSEST_CHECK(args.list.blocks.dtype == DType::kF32 || args.list.blocks.dtype == DType::kBF16,
                   "the list is F32 or BF16");
  PALIMPSEST_CHECK(args.list.table.rank == 2 && args.list.table.dtype == DType::kI32, "table is I32 [slots, blocks]");
  PALIMPSEST_CHECK(sequences >= 0 && args.rows.slots.size(0) == sequences && args.past.size(0) == sequences,
                   "one slot and one past per sequence");
  ctx.count(Op::kLatentAppend);
  cpu::latent_append(ctx, args);
}

}  // namespace palimpsest::ops
