#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "ops/ops.h"

namespace palimpsest::ops {

void latent_attention(ExecContext& ctx, const LatentAttentionArgs& args) {
  const std::int64_t sequences = args.rows.cu_seqlens.size(0) - 1, heads = args.q.size(1);
  PALIMPSEST_CHECK(args.q.rank == 3 && args.q.dtype == DType::kF32 && args.q.is_contiguous(), "q is F32 [T, H, dn + p]");
  PALIMPSEST_CHECK(args.o.rank == 3 && args.o.dtype == DType::kF32 && args.o.is_contiguous(), "o is F32 [T, H, dv]");
  PALIMPSEST_CHECK(args.o.size(0) == args.q.size(0) && args.o.size(1) == heads, "q and o have the same rows and heads");
  const std::int64_t p = args.list.width() - args.kv_b.cols(), dn = args.q.size(2) - p;
  PALIMPSEST_CHECK(p >= 0 && dn >= 0, "widths of the list, kv_b and q disagree");
  PALIMPSEST_CHECK(args.kv_b.rows() == heads * (dn + args.o.size(2)), "kv_b has dn + dv rows a head");
  PALIMPSEST_CHECK(args.list.blocks.rank == 3 && args.list.blocks.is_contiguous(), "the list is contiguous");
  PALIMPSEST_CHECK(args.list.blocks.dtype == DType::kF32 || args.list.blocks.dtype == DType::kBF16,
                   "the list is F32 or BF16");
  PALIMPSEST_CHECK(args.list.table.rank == 2 && args.list.table.dtype == DType::kI32, "table is I32 [slots, blocks]");
  PALIMPSEST_CHECK(sequences >= 0 && args.rows.slots.size(0) == sequences && args.past.size(0) == sequences,
                   "one slot and one past per sequence");
  ctx.count(Op::kLatentAttention);
  cpu::latent_attention(ctx, args);
}

}  // namespace palimpsest::ops
