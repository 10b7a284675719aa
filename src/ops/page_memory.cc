#include "ops/page_memory.h"

#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/page_memory.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/plain_kernels.h"
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

/// Token by token, however many a sequence has, so that how a prompt is cut changes no bit.
void step(ExecContext& ctx, const PageMemoryArgs& a) {
  DeltaStepArgs args;
  args.in = {.q = a.q, .k = a.k, .v = a.v, .f = a.g, .b = a.beta, .gate = a.decay == PageDecay::kNone ? DeltaGate::kNone : DeltaGate::kLogDecay, .a_log = {},
             .dt_bias = {}, .l2_norm = false, .beta_sigmoid = false, .write = a.write};
  args.pages = a.pages;
  args.cu_seqlens = a.rows.cu_seqlens;
  args.slots = a.rows.slots;
  args.o = a.o;
  const auto* cu = a.rows.cu_seqlens.on_host<std::int64_t>();
  std::int64_t most = 1;
  for (std::int64_t n = 0; n < a.rows.slots.size(0); ++n) most = std::max(most, cu[n + 1] - cu[n]);
  cuda::delta_step(args, most, ctx.device.stream());
}

}  // namespace

void page_memory(ExecContext& ctx, const PageMemoryArgs& args) {
  page_memory(ctx, args, {});
}

void page_memory(ExecContext& ctx, const PageMemoryArgs& args, const Tensor& written) {
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
  if (const Entered op = enter(ctx, Op::kPageMemory, [&] { return work_of(args); })) {
    if (written.defined()) cpu::page_memory(ctx, args, written);
    else if (ctx.on_device() && is_stepped(args)) step(ctx, args);
    else compute(ctx, args, cpu::page_memory, cuda::plain::page_memory);
  }
}

}  // namespace palimpsest::ops
