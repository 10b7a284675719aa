#include "kernels/cpu/latent_attention.h"

#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/latent_checks.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"
#include "ops/weight_checks.h"

namespace palimpsest::ops {
namespace {

/// The form with fewer multiply-adds for each sequence, and its list read once.
OpWork work_of(const LatentAttentionArgs& a) {
  const std::int64_t heads = a.q.size(1), r = a.kv_b.cols(), p = a.list.width() - r, dn = a.q.size(2) - p, dv = a.o.size(2);
  const auto* cu = a.rows.cu_seqlens.on_host<std::int64_t>();
  const auto* past = a.past.on_host<std::int64_t>();
  std::int64_t products = 0, listed = 0;
  for (std::int64_t n = 0; n < a.past.size(0); ++n) {
    const std::int64_t rows = cu[n + 1] - cu[n], pairs = rows * past[n] + rows * (rows + 1) / 2, fold = r * (dn + dv);
    products += heads * std::min(pairs * (2 * r + p) + rows * fold, pairs * (dn + p + dv) + (past[n] + rows) * fold);
    listed += past[n] + rows;
  }
  const std::int64_t bytes = listed * a.list.width() * dtype_size(a.list.blocks.dtype) + a.kv_b.bytes();
  return {.flops = 2.0 * static_cast<double>(products), .bytes = static_cast<double>(bytes) + moves(a.q, a.o).bytes, .form = {}};
}

}  // namespace

void latent_attention(ExecContext& ctx, const LatentAttentionArgs& args) {
  const std::int64_t heads = args.q.size(1), r = args.kv_b.cols(), p = args.list.width() - r, dn = args.q.size(2) - p;
  check_weight(args.kv_b);
  PALIMPSEST_CHECK(is_f32(args.q, 3) && is_f32(args.o, 3), "q and o are F32 [T, H, dn + p] and [T, H, dv]");
  PALIMPSEST_CHECK(args.o.size(0) == args.q.size(0) && args.o.size(1) == heads, "q and o have the same rows and heads");
  PALIMPSEST_CHECK(p >= 0 && dn >= 0, "the list is r + p wide, q dn + p");
  PALIMPSEST_CHECK(args.kv_b.rows() == heads * (dn + args.o.size(2)), "kv_b has dn + dv rows a head");
  PALIMPSEST_CHECK(is_paged_list(args.list), "the list is F32, BF16 or 8-bit [blocks, block_tokens, row] with an I32 table");
  PALIMPSEST_CHECK(is_ragged(args.rows) && args.past.dtype == DType::kI64 && args.past.size(0) == args.rows.slots.size(0),
                   "one slot and one past a sequence");
  const std::int64_t workspace = ctx.on_device() ? 0 : cpu::latent_attention_workspace_bytes(heads, r, args.list.width(), args.q.size(0));
  if (const Entered op = enter(ctx, Op::kLatentAttention, workspace, [&] { return work_of(args); })) compute(ctx, args, cpu::latent_attention, cuda::plain::latent_attention);
}

}  // namespace palimpsest::ops
