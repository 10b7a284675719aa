#include "ops/page_memory.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/page_memory.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/product_workspace.h"
#include "kernels/cuda/prompt_kernels.h"
#include "ops/front_door.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

namespace {

void check_inputs(const PageMemoryArgs& a) {
  const std::int64_t rows = a.q.size(0), heads = a.q.size(1), width = a.q.size(2),
                     value_heads = a.v.size(1);
  PALIMPSEST_CHECK(a.q.rank == 3 && same_f32(a.q, a.k), "q and k are F32 [T, H, K]");
  PALIMPSEST_CHECK(a.v.rank == 3 && same_f32(a.v, a.o) && a.v.size(0) == rows,
                   "v and o are F32 [T, HV, V]");
  PALIMPSEST_CHECK(heads > 0 && value_heads % heads == 0,
                   "value heads are a multiple of the query heads");
  if (a.beta.defined()) {
    PALIMPSEST_CHECK(is_f32(a.beta, 2) && a.beta.size(0) == rows && a.beta.size(1) == value_heads,
                     "beta is F32 [T, HV]");
  }
  if (a.decay == PageDecay::kHead) {
    PALIMPSEST_CHECK(is_f32(a.g, 2) && a.g.size(0) == rows && a.g.size(1) == value_heads,
                     "g is F32 [T, HV]");
  } else if (a.decay == PageDecay::kChannel) {
    PALIMPSEST_CHECK(
        is_f32(a.g, 3) && a.g.size(0) == rows && a.g.size(1) == value_heads && a.g.size(2) == width,
        "g is F32 [T, HV, K]");
  }
}

/// The recurrence at its minimum: S k (delta rule only), the update and S q, each K V multiply-adds a token and head; each sequence's
/// pages read and written once.
OpWork work_of(const PageMemoryArgs& a) {
  const double products = a.write == PageWrite::kDelta ? 3 : 2;
  const std::int64_t page = a.pages.size(1) * a.pages.size(2) * a.pages.size(3);
  return {.flops = 2 * products * static_cast<double>(a.q.size(0) * page),
          .bytes = 2.0 * static_cast<double>(a.rows.slots.size(0) * page * dtype_size(DType::kF32)) + moves(a.q, a.k, a.v, a.g, a.o).bytes,
          .form = {}};
}

/// Widths of delta_kernels.h; pages that are rounded on the way are not.
bool is_stepped(const PageMemoryArgs& a) {
  const std::int64_t width = a.q.size(2), values = a.v.size(2);
  return (width == 64 || width == 128 || width == 256) && values % 32 == 0 && values <= 256 && a.round_every == 0 &&
         reinterpret_cast<std::uintptr_t>(a.pages.data) % 16 == 0 && a.pages.stride(0) % 4 == 0;
}

/// Of inputs that are ready.
DeltaInputs inputs(const PageMemoryArgs& a, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta) {
  return {.q = q, .k = k, .v = v, .f = g, .b = beta, .gate = a.decay == PageDecay::kNone ? DeltaGate::kNone : DeltaGate::kLogDecay, .a_log = {},
          .dt_bias = {}, .l2_norm = false, .beta_sigmoid = false, .write = a.write};
}

/// Token by token. `most`: rows of a sequence.
void step(ExecContext& ctx, const PageMemoryArgs& a, const Tensor& cu_seqlens, const Tensor& slots, std::int64_t most) {
  DeltaStepArgs args;
  args.in = inputs(a, a.q, a.k, a.v, a.g, a.beta);
  args.pages = a.pages;
  args.cu_seqlens = cu_seqlens;
  args.slots = slots;
  args.o = a.o;
  cuda::delta_step(args, most, ctx.device.stream());
}

/// Chunks of 64 tokens on tensor cores: with inputs rounded to BF16, as products with rounded activations read theirs. (A plan is for any activations.)
bool takes_prompts(const ExecContext& ctx, const PageMemoryArgs& a) {
  return ctx.on_device() && (ctx.planning() || activation_parts(ctx) > 0) && is_stepped(a) && a.form != PageForm::kStep && a.q.size(2) == 128 && a.v.size(2) == 128 &&
         a.q.size(0) >= kPromptGrid;
}

/// Room for all rows of the inputs in BF16.
PromptInputs rounded(Arena& arena, const PageMemoryArgs& a) {
  const auto room = [&](const Tensor& t) {
    Tensor r = t;
    if (!t.defined()) return r;
    r.data = arena.allocate(DType::kBF16, {t.numel()}).data;
    r.dtype = DType::kBF16;
    return r;
  };
  return {.q = room(a.q), .k = room(a.k), .v = room(a.v), .g = room(a.g), .beta = room(a.beta)};
}

/// What the rows of prompts need beside the arguments.
struct PromptRoom {
  PromptInputs in;
  cuda::PromptSplit split;
  Tensor workspace;

  PromptRoom(Arena& arena, const PageMemoryArgs& a, const PromptInputs& prompts) : in(prompts.q.defined() ? prompts : rounded(arena, a)), split(arena, a.rows.slots.size(0)) {
    constexpr std::int64_t kAlignment = 128;
    const std::int64_t bytes = cuda::page_prompt_bytes(a.q.size(0), 2 * a.rows.slots.size(0), a.v.size(1),
                                                       a.decay == PageDecay::kChannel ? cuda::kChannelChunkBytes : cuda::kHeadChunkBytes);
    workspace = arena.allocate(DType::kU8, {bytes + kAlignment});
    workspace.data = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace.data) + kAlignment - 1) / kAlignment * kAlignment);
    workspace.sizes[0] = bytes;
  }
};

/// Rows before the last multiple of 64 in chunks, then the others token by token (prompt_rows.h).
void chunks_and_steps(ExecContext& ctx, const PageMemoryArgs& a, const PromptInputs& prompts, const PromptCount& count) {
  const ArenaScope scope(ctx.workspace);
  const PromptRoom room(ctx.workspace, a, prompts);
  const PromptInputs& in = room.in;
  void* const stream = ctx.device.stream();
  cuda::split_prompts(a.rows, a.past, {}, room.split, stream);
  std::vector<cuda::Rounding> roundings = {{a.q, in.q}, {a.k, in.k}, {a.v, in.v}};
  if (a.g.defined()) roundings.push_back({a.g, in.g});
  if (a.beta.defined()) roundings.push_back({a.beta, in.beta});
  if (!prompts.q.defined()) cuda::round_to_bf16(roundings, stream);
  cuda::delta_prefill({.in = inputs(a, in.q, in.k, in.v, in.g, in.beta), .pages = a.pages, .cu_seqlens = room.split.cu_seqlens, .slots = room.split.prompts,
                       .past = room.split.past, .snapshots = {}, .snapshot_slots = {}, .o = a.o, .workspace = room.workspace, .in_turn = true},
                      stream);
  if (count.most_others > 0) step(ctx, a, room.split.cu_seqlens, room.split.others, count.most_others);
}

void on_device(ExecContext& ctx, const PageMemoryArgs& a, const PromptInputs& prompts) {
  const PromptCount count = count_prompts(takes_prompts(ctx, a) ? PromptRule{} : PromptRule::nothing(), a.rows, a.past);
  if (count.sequences > 0) chunks_and_steps(ctx, a, prompts, count);
  else step(ctx, a, a.rows.cu_seqlens, a.rows.slots, std::max<std::int64_t>(count.most_others, 1));
}

}  // namespace

void page_memory(ExecContext& ctx, const PageMemoryArgs& args) {
  page_memory(ctx, args, {});
}

PromptInputs prompt_inputs(ExecContext& ctx, const PageMemoryArgs& args) {
  if (!takes_prompts(ctx, args) || (!ctx.planning() && count_prompts({}, args.rows, args.past).sequences == 0)) return {};
  return rounded(ctx.workspace, args);
}

void page_memory(ExecContext& ctx, const PageMemoryArgs& args, const Tensor& written, const PromptInputs& prompts) {
  check_inputs(args);
  PALIMPSEST_CHECK(!written.defined() || same_f32(args.v, written), "written is F32 [T, HV, V]");
  PALIMPSEST_CHECK(is_ragged(args.rows), "one slot per sequence");
  PALIMPSEST_CHECK(args.past.dtype == DType::kI64 && args.past.rank == 1 &&
                       args.past.size(0) == args.rows.slots.size(0),
                   "past is I64 [N]");
  PALIMPSEST_CHECK(args.pages.dtype == DType::kF32 && args.pages.rank == 4 &&
                       args.pages.size(1) == args.v.size(1) &&
                       args.pages.size(2) == args.v.size(2) &&
                       args.pages.size(3) == args.q.size(2) && is_f32(args.pages.rows(0, 1), 4),
                   "pages are F32 [slots, HV, V, K], contiguous within a slot");
  PALIMPSEST_CHECK(args.round_every >= 0 && args.round_every % 16 == 0,
                   "pages are rounded where a chunk ends");
  PALIMPSEST_CHECK(!written.defined() || !ctx.on_device(), "what is written can be seen on the host only");
  if (ctx.planning() && takes_prompts(ctx, args)) {
    const ArenaScope scope(ctx.workspace);
    const PromptRoom room(ctx.workspace, args, prompts);
  }
  if (const Entered op = enter(ctx, Op::kPageMemory, [&] { return work_of(args); })) {
    if (written.defined()) cpu::page_memory(ctx, args, written);
    else if (ctx.on_device() && is_stepped(args)) on_device(ctx, args, prompts);
    else compute(ctx, args, cpu::page_memory, cuda::plain::page_memory);
  }
}

}  // namespace palimpsest::ops
