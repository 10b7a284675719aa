#include "kernels/cpu/latent_attention.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/latent_kernels.h"
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

/// Rows that the device's kernel takes at once: what bounds its workspace.
constexpr std::int64_t kSlabRows = 64;

/// Shapes and forms of latent_kernels.h. It rounds queries and probabilities to BF16, as products with rounded activations do. (A plan is for any
/// activations, and for weights that will lie as uploads lay them.)
bool is_fused(const ExecContext& ctx, const LatentAttentionArgs& a) {
  const Tensor& b = a.kv_b.dense;
  return ctx.on_device() && (ctx.planning() || activation_parts(ctx) > 0) && a.list.blocks.dtype == DType::kBF16 && a.list.block_tokens() % 8 == 0 && a.list.width() == 576 &&
         a.kv_b.cols() == 512 && a.q.size(2) == 192 && a.o.size(2) == 128 && a.q.size(1) <= 128 && b.defined() && b.dtype == DType::kBF16 &&
         b.is_contiguous() && (ctx.planning() || reinterpret_cast<std::uintptr_t>(b.data) % 16 == 0);
}

/// For lists of any length: the plan knows none.
std::int64_t slab_bytes(const LatentAttentionArgs& a) {
  return cuda::latent_decode_workspace(std::min(a.q.size(0), kSlabRows), a.q.size(1), std::int64_t{1} << 30);
}

/// Each row as a sequence of its own, in the absorbed form whatever args.form says, so that how a prompt is cut changes no bit.
void attend_in_slabs(ExecContext& ctx, const LatentAttentionArgs& a) {
  const ArenaScope scope(ctx.workspace);
  const std::int64_t rows = a.q.size(0);
  const Tensor slots = ctx.workspace.allocate(DType::kI32, {rows}), past = ctx.workspace.allocate(DType::kI64, {rows}),
               workspace = ctx.workspace.allocate(DType::kU8, {slab_bytes(a)});
  cuda::row_places(a.rows, a.past, slots, past, ctx.device.stream());
  const auto* cu = a.rows.cu_seqlens.on_host<std::int64_t>();
  const auto* before = a.past.on_host<std::int64_t>();
  std::uint64_t longest = 256;  // a power of two: passes that are alike stay so while lists grow
  for (std::int64_t n = 0; n < a.past.size(0); ++n) longest = std::max(longest, std::bit_ceil(static_cast<std::uint64_t>(before[n] + cu[n + 1] - cu[n])));
  for (std::int64_t first = 0; first < rows; first += kSlabRows) {
    const std::int64_t count = std::min(kSlabRows, rows - first);
    cuda::latent_decode({.q = a.q.rows(first, count), .kv_b = a.kv_b.dense, .list = a.list, .cu_seqlens = {}, .slots = slots.rows(first, count),
                         .past = past.rows(first, count), .scale = a.scale, .gate = {}, .o = a.o.rows(first, count), .workspace = workspace},
                        static_cast<std::int64_t>(longest), ctx.device.stream());
  }
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
  const bool fused = is_fused(ctx, args);
  const std::int64_t workspace = fused ? slab_bytes(args) + 16 * args.q.size(0) + 256 : ctx.on_device() ? 0 : cpu::latent_attention_workspace_bytes(heads, r, args.list.width(), args.q.size(0));
  const Entered op = enter(ctx, Op::kLatentAttention, workspace, [&] { return work_of(args); });
  if (!op) return;
  if (fused) attend_in_slabs(ctx, args);
  else compute(ctx, args, cpu::latent_attention, cuda::plain::latent_attention);
}

}  // namespace palimpsest::ops
