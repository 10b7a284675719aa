#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/tile_kernels.h"
#include "ops/front_door.h"
#include "ops/one_row_ops.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"
#include "ops/weight_checks.h"

namespace palimpsest::ops {
namespace {

void check_product(const MatmulArgs& args) {
  check_weight(args.w);
  PALIMPSEST_CHECK(args.x.dtype == DType::kF32 && args.x.rank == 2 &&
                       args.x.size(1) == args.w.cols() && has_contiguous_rows(args.x),
                   "x is F32 [T, k] with contiguous rows");
  PALIMPSEST_CHECK(args.y.dtype == DType::kF32 && args.y.rank == 2 &&
                       args.y.size(0) == args.x.size(0) && args.y.size(1) == args.w.rows() &&
                       has_contiguous_rows(args.y),
                   "y is F32 [T, n] with contiguous rows");
}

OpWork work_of(std::span<const MatmulArgs> products) {
  OpWork work;
  for (const MatmulArgs& a : products) {
    work.flops += 2.0 * static_cast<double>(a.x.size(0) * a.w.rows() * a.w.cols());
    work.bytes += static_cast<double>(a.w.bytes()) + moves(a.x, a.y).bytes;
    work.form = stored_form(a.w);
  }
  return work;
}

}  // namespace

void matmul(ExecContext& ctx, const MatmulArgs& args) { matmuls(ctx, {&args, 1}); }

RowImage row_image_room(ExecContext& ctx, std::int64_t rows, std::int64_t columns) {
  return ctx.on_device() && rows > 1 ? RowImage{ctx.workspace.allocate(DType::kU8, {RowImage::bytes(columns)}).data} : RowImage{};
}

void matmuls(ExecContext& ctx, std::span<const MatmulArgs> products) {
  for (const MatmulArgs& args : products) check_product(args);
  const auto work = [&] { return work_of(products); };
  if (ctx.on_device() && ctx.planning()) {
    // Not known here: how activations will be read, and in which form a device holds the weights. There is room for the largest.
    (void)enter(ctx, Op::kMatmul, cuda::tile_workspace_bytes(products, 2), work);
    return;
  }
  const int parts = ctx.on_device() ? activation_parts(ctx) : 0;
  if (parts > 0 && cuda::tile_side_by_side(products)) {
    const std::int64_t workspace = cuda::tile_workspace_bytes(products, parts);
    const bool same = std::all_of(products.begin(), products.end(), [&](const MatmulArgs& a) { return a.x.data == products[0].x.data; });
    const void* const image = same ? ctx.image_of(products[0].x.data) : nullptr;
    if (const Entered op = enter(ctx, Op::kMatmul, workspace, work)) {
      const ArenaScope scope(ctx.workspace);
      cuda::tile_matmul(products, parts, workspace > 0 ? ctx.workspace.allocate(DType::kU8, {workspace}).data : nullptr, ctx.device.stream(), image);
    }
    return;
  }
  if (products.size() > 1) {
    for (const MatmulArgs& args : products) matmul(ctx, args);
  } else if (const Entered op = enter(ctx, Op::kMatmul, work)) {
    if (!ctx.on_device()) cpu::matmul(ctx, products[0]);
    else cuda::plain::matmul(products[0], ctx.device.stream(), parts == cuda::kMxfp8Parts);
  }
}

void gated_product(ExecContext& ctx, const GatedProductArgs& a) {
  const MatmulArgs product = {.x = a.gate, .w = a.w, .y = a.y};
  check_product(product);
  PALIMPSEST_CHECK(same_f32(a.gate, a.up), "gate and up are F32 of one shape");
  if (!ctx.on_device() || ctx.planning() || !cuda::takes_gated_product(a, activation_parts(ctx))) {
    glu(ctx, {.gate = a.gate, .up = a.up, .params = a.params, .y = a.gate});
    return matmul(ctx, product);
  }
  if (const Entered op = enter(ctx, Op::kMatmul, [&] { return work_of({&product, 1}); })) cuda::gated_product(a, activation_parts(ctx), ctx.device.stream());
}

}  // namespace palimpsest::ops
