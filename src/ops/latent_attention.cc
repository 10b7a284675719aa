#include "kernels/cpu/latent_attention.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/product_workspace.h"
#include "kernels/cuda/prompt_kernels.h"
#include "kernels/cuda/tile_kernels.h"
#include "ops/front_door.h"
#include "ops/latent_checks.h"
#include "ops/one_row_ops.h"
#include "ops/ops.h"
#include "ops/ragged.h"
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
  const Q8Rows &q8 = a.list.q8, ours = q8_latent_rows(512, 64);
  const bool of_codes = q8.left == ours.left && q8.left_group == ours.left_group && q8.right_group == ours.right_group;
  return ctx.on_device() && (ctx.planning() || activation_parts(ctx) > 0) && (q8.defined() ? of_codes : a.list.blocks.dtype == DType::kBF16) && a.list.block_tokens() % 8 == 0 && a.list.width() == 576 &&
         a.kv_b.cols() == 512 && a.q.size(2) == 192 && a.o.size(2) == 128 && a.q.size(1) <= 128 && b.defined() && b.dtype == DType::kBF16 &&
         b.is_contiguous() && (ctx.planning() || reinterpret_cast<std::uintptr_t>(b.data) % 16 == 0);
}

/// For lists of any length: the plan knows none.
std::int64_t slab_bytes(const LatentAttentionArgs& a) {
  return cuda::latent_decode_workspace(std::min(a.q.size(0), kSlabRows), a.q.size(1), std::int64_t{1} << 30);
}

/// Absorbed, each row as a sequence of its own: the rows that `rule` does not ask for. `append`: rows to write first.
void attend_in_slabs(ExecContext& ctx, const LatentAttentionArgs& a, const PromptRule& rule, const LatentStepArgs* append = nullptr) {
  const ArenaScope scope(ctx.workspace);
  const std::int64_t rows = a.q.size(0);
  const auto* cu = a.rows.cu_seqlens.on_host<std::int64_t>();
  const bool each = one_row_each({cu, static_cast<std::size_t>(a.rows.cu_seqlens.size(0))});
  const Tensor slots = each ? a.rows.slots : ctx.workspace.allocate(DType::kI32, {rows}), past = each ? a.past : ctx.workspace.allocate(DType::kI64, {rows}),
               workspace = ctx.workspace.allocate(DType::kU8, {slab_bytes(a)});
  if (!each) cuda::row_places(a.rows, a.past, slots, past, ctx.device.stream());
  const auto* before = a.past.on_host<std::int64_t>();
  std::uint64_t longest = 256;  // a power of two: passes that are alike stay so while lists grow
  for (std::int64_t n = 0; n < a.past.size(0); ++n) longest = std::max(longest, std::bit_ceil(static_cast<std::uint64_t>(before[n] + cu[n + 1] - cu[n])));
  const auto attend = [&](std::int64_t first, std::int64_t count) {
    const RowImage image = count == rows ? row_image(ctx, rows, a.o.size(1) * a.o.size(2), a.image) : RowImage{};
    ctx.rounded = {a.o.data, image.to, ctx.calls()};
    LatentDecodeArgs slab = {.q = a.q.rows(first, count), .kv_b = a.kv_b.dense, .list = a.list, .cu_seqlens = {}, .slots = slots.rows(first, count),
                             .past = past.rows(first, count), .scale = a.scale, .gate = {}, .o = a.o.rows(first, count), .workspace = workspace, .image = image};
    if (append) slab.kv_a = append->kv_a.rows(first, count), slab.kv_a_layernorm = append->kv_a_layernorm, slab.kv_a_eps = append->eps;
    cuda::latent_decode(slab, static_cast<std::int64_t>(longest), ctx.device.stream());
  };
  const auto attend_run = [&](std::int64_t first, std::int64_t end) {
    for (; first < end; first += kSlabRows) attend(first, std::min(kSlabRows, end - first));
  };
  std::int64_t run = 0;  // where the rows began that lie side by side
  for (std::int64_t n = 0; n < a.past.size(0); ++n) {
    const std::int64_t prompt = rule(before[n], cu[n + 1] - cu[n]);
    if (prompt == 0) continue;
    attend_run(run, cu[n]);
    run = cu[n] + prompt;
  }
  attend_run(run, rows);
}

/// By multiply-adds unless the caller wants forms to follow from positions.
PromptRule rule_of(const LatentAttentionArgs& a) {
  if (a.form == LatentForm::kAbsorbed) return PromptRule::nothing();
  if (a.form != LatentForm::kAuto) return {};
  const std::int64_t r = a.kv_b.cols(), heads = a.kv_b.rows() / a.q.size(1);
  return {.more_a_pair = 2 * r - heads, .a_token = r * heads};
}

/// Sequences of a pass that can have rows of prompts.
std::int64_t most_prompts(const LatentAttentionArgs& a) { return std::min(a.past.size(0), a.q.size(0) / kPromptGrid); }

/// What rows in the materialised form need: a window of keys at a time, so that memory does not grow with lists.
struct PromptRoom {
  cuda::PromptSplit split;
  Tensor q;              ///< BF16, of all rows
  Tensor cu_keys;
  Tensor latents, k_pe;  ///< of a window
  Tensor kv;             ///< BF16 [window, H (dn + dv)]
  Tensor product, image;  ///< of a few of its rows before they are rounded, where the product does not do that
  Tensor carry;

  PromptRoom(Arena& arena, const LatentAttentionArgs& a) : split(arena, a.past.size(0)) {
    const std::int64_t rows = a.q.size(0), heads = a.q.size(1), window = cuda::window_rows(most_prompts(a)), r = a.kv_b.cols(), width = a.kv_b.rows();
    q = arena.allocate(DType::kBF16, {rows, heads, a.q.size(2)});
    cu_keys = arena.allocate(DType::kI64, {2 * a.past.size(0) + 1});
    latents = arena.allocate(DType::kF32, {window, r});
    k_pe = arena.allocate(DType::kBF16, {window, a.list.width() - r});
    kv = arena.allocate(DType::kBF16, {window, width});
    product = arena.allocate(DType::kF32, {cuda::kWindowRows, width});
    const MatmulArgs most = {.x = latents, .w = a.kv_b, .y = kv};
    image = arena.allocate(DType::kU8, {cuda::tile_workspace_bytes({&most, 1}, 1)});
    carry = arena.allocate(DType::kF32, {rows, heads, 8});
  }
};

/// Keys and values [S, H, ...] of the first S rows of kv: columns [begin, begin + width) of each head.
Tensor of_heads(const Tensor& kv, std::int64_t S, std::int64_t heads, std::int64_t begin, std::int64_t width) {
  const std::int64_t of_head = kv.size(1) / heads;
  Tensor t = kv.reshape({kv.size(0), heads, of_head}).rows(0, S);
  t.data = t.as<std::uint16_t>() + begin;
  t.sizes[2] = width;
  return t;
}

/// Materialised: the rows that `rule` asks for. Latents are BF16 as they come out of the list, so their products have one part.
void attend_prompts(ExecContext& ctx, const LatentAttentionArgs& a, const PromptRule& rule, const PromptCount& count) {
  const ArenaScope scope(ctx.workspace);
  const PromptRoom room(ctx.workspace, a);
  void* const stream = ctx.device.stream();
  const std::int64_t heads = a.q.size(1), dv = a.o.size(2), dn = a.kv_b.rows() / heads - dv, N = a.past.size(0);
  const auto *cu = a.rows.cu_seqlens.on_host<std::int64_t>(), *past = a.past.on_host<std::int64_t>();
  cuda::split_prompts(a.rows, a.past, rule, room.split, stream);
  const cuda::Rounding queries = {a.q, room.q};
  cuda::round_to_bf16({&queries, 1}, stream);
  const std::int64_t window = cuda::window_keys(most_prompts(a), count.sequences);
  for (std::int64_t first = 0; first < count.most_keys; first += window) {
    std::int64_t S = 0;
    for (std::int64_t n = 0; n < N; ++n) {
      const std::int64_t prompt = rule(past[n], cu[n + 1] - cu[n]);
      if (prompt > 0) S += std::clamp<std::int64_t>(past[n] + prompt - first, 0, window);
    }
    const Tensor latents = room.latents.rows(0, S), k_pe = room.k_pe.rows(0, S);
    cuda::latent_window({.list = a.list, .split = room.split, .first = first, .count = window, .cu_keys = room.cu_keys, .latents = latents, .k_pe = k_pe}, stream);
    const MatmulArgs whole = {.x = latents, .w = a.kv_b, .y = room.kv.rows(0, S)};
    const bool rounds = S > 0 && cuda::tile_rounds(whole);
    if (rounds) cuda::tile_matmul({&whole, 1}, 1, room.image.data, stream);
    for (std::int64_t s = 0; s < S && !rounds; s += cuda::kWindowRows) {
      const std::int64_t rows = std::min(cuda::kWindowRows, S - s);
      const MatmulArgs product = {.x = latents.rows(s, rows), .w = a.kv_b, .y = room.product.rows(0, rows)};
      cuda::tile_matmul({&product, 1}, 1, room.image.data, stream);
      const cuda::Rounding rounding = {product.y, room.kv.rows(s, rows)};
      cuda::round_to_bf16({&rounding, 1}, stream);
    }
    cuda::latent_prefill({.q = room.q, .k = of_heads(room.kv, S, heads, 0, dn), .k_pe = k_pe, .v = of_heads(room.kv, S, heads, dn, dv), .cu_seqlens = room.split.cu_seqlens,
                          .cu_keys = room.cu_keys, .scale = a.scale, .gate = {}, .o = a.o, .carry = room.carry, .past = room.split.past, .window = first, .window_keys = window},
                         stream);
  }
}

void attend_fused(ExecContext& ctx, const LatentAttentionArgs& a) {
  const PromptRule rule = rule_of(a);
  const PromptCount count = count_prompts(rule, a.rows, a.past);
  if (count.sequences > 0) attend_prompts(ctx, a, rule, count);
  if (count.most_others > 0) attend_in_slabs(ctx, a, rule);
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
  if (fused && ctx.planning() && args.q.size(0) >= kPromptGrid) {
    const ArenaScope scope(ctx.workspace);
    const PromptRoom room(ctx.workspace, args);
  }
  const std::int64_t workspace = fused ? slab_bytes(args) + 16 * args.q.size(0) + 256 : ctx.on_device() ? 0 : cpu::latent_attention_workspace_bytes(heads, r, args.list.width(), args.q.size(0));
  const Entered op = enter(ctx, Op::kLatentAttention, workspace, [&] { return work_of(args); });
  if (!op) return;
  if (fused) attend_fused(ctx, args);
  else compute(ctx, args, cpu::latent_attention, cuda::plain::latent_attention);
}

bool latent_step(ExecContext& ctx, const LatentStepArgs& step) {
  const LatentAttentionArgs& a = step.attention;
  const Tensor& cu = a.rows.cu_seqlens;
  const auto in_vectors = [](const Tensor& t) { return t.dtype == DType::kF32 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; };
  if (ctx.planning() || ctx.profile || !is_fused(ctx, a) || !in_vectors(step.kv_a) || step.kv_a.stride(0) % 4 != 0 || !in_vectors(step.kv_a_layernorm) ||
      !one_row_each({cu.on_host<std::int64_t>(), static_cast<std::size_t>(cu.size(0))}))
    return false;
  ctx.count(Op::kRmsNorm), ctx.count(Op::kLatentAppend), ctx.count(Op::kLatentAttention);
  attend_in_slabs(ctx, a, PromptRule::nothing(), &step);
  return true;
}

}  // namespace palimpsest::ops
