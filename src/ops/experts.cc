#include "kernels/cpu/experts.h"

#include <algorithm>
#include <set>
#include <span>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/one_row_ops.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"
#include "ops/weight_checks.h"

namespace palimpsest::ops {
namespace {

void check_expert(const ExpertMatrices& expert, std::int64_t width, std::int64_t inter) {
  check_weight(expert.w1);
  check_weight(expert.w3);
  check_weight(expert.w2);
  PALIMPSEST_CHECK(
      expert.w1.rows() == inter && expert.w3.rows() == inter && expert.w2.cols() == inter,
      "the experts of a layer have the same hidden width");
  PALIMPSEST_CHECK(
      expert.w1.cols() == width && expert.w3.cols() == width && expert.w2.rows() == width,
      "experts map [width] to [width]");
}

/// Three products a row and chosen expert; each expert that is chosen at all is read once.
OpWork work_of(ExecContext& ctx, const ExpertsArgs& args, std::int64_t inter) {
  const Tensor chosen = ctx.to_host(args.ids);
  const std::span ids(chosen.as<const std::int32_t>(), static_cast<std::size_t>(chosen.numel()));
  OpWork work = moves(args.x, args.y);
  work.flops = 6.0 * static_cast<double>(args.ids.numel() * args.x.size(1) * inter);
  for (const std::int32_t id : std::set<std::int32_t>(ids.begin(), ids.end())) {
    const ExpertMatrices& expert = args.experts[id];
    work.bytes += static_cast<double>(expert.w1.bytes() + expert.w3.bytes() + expert.w2.bytes());
    work.form = stored_form(expert.w1);
  }
  return work;
}

}  // namespace

void experts(ExecContext& ctx, const ExpertsArgs& args) { experts_and(ctx, args, {}); }

void experts_and(ExecContext& ctx, const ExpertsArgs& args, const Tensor& more) {
  const Tensor &x = args.x, &ids = args.ids, &y = args.y;
  PALIMPSEST_CHECK(x.dtype == DType::kF32 && x.rank == 2 && has_contiguous_rows(x),
                   "x is F32 [T, width] with contiguous rows");
  PALIMPSEST_CHECK(y.dtype == DType::kF32 && y.rank == 2 && y.size(0) == x.size(0) &&
                       y.size(1) == x.size(1) && has_contiguous_rows(y) &&
                       (y.data != x.data || y.numel() == 0),
                   "y is F32 [T, width] with contiguous rows, and not x");
  PALIMPSEST_CHECK(
      ids.dtype == DType::kI32 && ids.rank == 2 && ids.size(0) == x.size(0) && ids.is_contiguous(),
      "ids are I32 [T, top_k]");
  PALIMPSEST_CHECK(args.weights.dtype == DType::kF32 && args.weights.rank == 2 &&
                       args.weights.size(0) == ids.size(0) && args.weights.size(1) == ids.size(1) &&
                       args.weights.is_contiguous(),
                   "weights are F32 [T, top_k]");

  PALIMPSEST_CHECK(!more.defined() || same_f32(more, y), "what is added is F32 [T, width], contiguous");

  // Experts that no id names may be absent: their weights need not be in memory.
  const auto* end = args.experts + args.num_experts;
  const auto* any =
      std::find_if(args.experts, end, [](const ExpertMatrices& e) { return e.w1.defined(); });
  PALIMPSEST_CHECK(any != end || ids.numel() == 0, "no expert is in memory");
  const std::int64_t inter = any != end ? any->w1.rows() : 0;
  PALIMPSEST_CHECK(!ctx.on_device() || ctx.planning() || args.device_experts, "a device has a table of the experts");
  const auto workspace_bytes = ctx.on_device() ? cuda::plain::experts_workspace_bytes : cpu::experts_workspace_bytes;
  const std::int64_t workspace = workspace_bytes(x.size(0), ids.size(1), x.size(1), inter, args.num_experts);
  // On a device the ids are the router's promise.
  for (std::int64_t i = 0; !ctx.planning() && !ctx.on_device() && i < ids.numel(); ++i) {
    const std::int32_t id = ids.as<std::int32_t>()[i];
    PALIMPSEST_CHECK(id >= 0 && id < args.num_experts, "an expert id is out of range");
    check_expert(args.experts[id], x.size(1), inter);
  }
  if (const Entered op = enter(ctx, Op::kExperts, workspace, [&] { return work_of(ctx, args, inter); })) {
    const ArenaScope scope(ctx.workspace);
    if (!ctx.on_device()) cpu::experts(ctx, args);
    else cuda::plain::experts_and(args, more, inter, activation_parts(ctx), ctx.workspace.allocate(DType::kU8, {workspace}).data, ctx.device.stream());
  }
  if (more.defined() && !ctx.on_device()) add(ctx, {.x = more, .y = y});
}

}  // namespace palimpsest::ops
