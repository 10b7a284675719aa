#pragma once

#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/product_workspace.h"
#include "kernels/op_args.h"
#include "tensor/exec_context.h"
#include "tensor/op_profile.h"

// What every front door does first:
//     if (const Entered op = enter(ctx, Op::kAdd, [&] { return moves(args.x, args.y); })) compute(ctx, args, cpu::add, cuda::plain::add);

namespace palimpsest::ops {

/// Lives while an op computes: where a profile is kept, it ends the op's time, for which it waits for the device. True: compute.
class [[nodiscard]] Entered {
 public:
  Entered(bool compute, ExecContext& ctx, Op op, const OpWork& work) : compute_(compute), profile_(compute ? ctx.profile : nullptr), device_(ctx.device), op_(op), work_(work) {
    if (!profile_) return;
    device_.wait();
    start_ = OpProfile::Clock::now();
  }
  ~Entered() {
    if (!profile_) return;
    device_.wait();
    profile_->add(op_, work_, std::chrono::duration<double>(OpProfile::Clock::now() - start_).count());
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  explicit operator bool() const& { return compute_; }
  explicit operator bool() const&& = delete;  ///< a temporary would end before the op begins: name it

 private:
  bool compute_;
  OpProfile* profile_;
  Device& device_;
  Op op_;
  OpWork work_;
  OpProfile::Clock::time_point start_{};
};

/// Counts the call and says whether to compute. While the plan measures workspace, reserves `workspace_bytes` (what the kernel would take
/// from the arena) and answers false. `work()` is an OpWork, asked for only where a profile is kept.
template <class Work>
Entered enter(ExecContext& ctx, Op op, std::int64_t workspace_bytes, Work work) {
  if (!ctx.planning()) {
    ctx.count(op);
    return {true, ctx, op, ctx.profile ? work() : OpWork{}};
  }
  const ArenaScope scope(ctx.workspace);
  ctx.workspace.allocate(DType::kU8, {workspace_bytes});
  return {false, ctx, op, {}};
}
template <class Work>
Entered enter(ExecContext& ctx, Op op, Work work) {
  return enter(ctx, op, 0, work);
}

/// Calls the kernel of the context's device.
template <class Args>
void compute(ExecContext& ctx, const Args& args, void (*on_host)(ExecContext&, const std::type_identity_t<Args>&),
               void (*on_cuda)(const std::type_identity_t<Args>&, void* stream)) {
  if (ctx.on_device()) on_cuda(args, ctx.device.stream());
  else on_host(ctx, args);
}

/// How many BF16 numbers an activation is the sum of in products on a device's tensor cores, or kMxfp8Parts; 0: none, products are F32.
inline int activation_parts(const ExecContext& ctx) {
  constexpr int kParts[] = {0, 2, 1, cuda::kMxfp8Parts};
  return kParts[static_cast<std::size_t>(ctx.activations)];
}

/// With the parts of this context; nowhere if these are not rows of a batch, or not of whole chunks, which an image has.
inline RowImage row_image(const ExecContext& ctx, std::int64_t rows, std::int64_t columns, const RowImage& image) {
  const int parts = activation_parts(ctx);
  return rows > 8 && rows <= RowImage::kRows && columns % 64 == 0 && parts > 0 ? RowImage{image.to, parts == 1 ? 1 : 2} : RowImage{};
}

/// Work of an op that does little more than read and write these tensors once each.
template <class... Tensors>
OpWork moves(const Tensors&... tensors) {
  return {.flops = 0, .bytes = (0.0 + ... + static_cast<double>(tensors.defined() ? tensors.numel() * dtype_size(tensors.dtype) : 0)), .form = {}};
}

/// "BF16", "MXFP4", "Q4_K": how a matrix is stored.
inline std::string_view stored_form(const Matrix& m) {
  if (m.is_mx()) return "MXFP4";
  if (m.is_int8()) return "I8";
  return m.is_blocks() ? block_type_name(m.blocks.type) : dtype_name(m.dense.dtype);
}

}  // namespace palimpsest::ops
