#include "kernels/cuda/activation_checks.h"

#include "kernels/cuda/tensor_checks.h"

namespace palimpsest::cuda {

void check_gated_rms_norm(const GatedRmsNormArgs& a) {
  const TensorChecks check{"gated_rms_norm"};
  const std::int64_t width = a.x.sizes[2];
  check.type("x", a.x, {DType::kBF16, DType::kF32});
  check.sizes("x", a.x, {a.x.sizes[0], a.x.sizes[1], width});
  if (width != 64 && width != 128 && width != 256) check.refuse("x", fmt::format("heads of {}, expected 64, 128 or 256", width));
  for (const auto& [field, t] : {std::pair{"x", &a.x}, {"gate", &a.gate}, {"y", &a.y}}) {
    check.type(field, *t, {a.x.dtype});
    check.sizes(field, *t, {a.x.sizes[0], a.x.sizes[1], width});
    check.contiguous(field, *t);
    check.aligned(field, *t, 16);
  }
  check.type("weight", a.weight, {DType::kF32});
  check.sizes("weight", a.weight, {width});
  if (a.function != Unary::kSigmoid && a.function != Unary::kSilu) check.refuse("function", "only sigmoid and silu");
}

void check_short_conv(const ShortConvArgs& a) {
  const TensorChecks check{"short_conv"};
  const std::int64_t rows = a.x.sizes[0], channels = a.x.sizes[1], taps = a.weight.sizes[1], sequences = a.rows.slots.sizes[0];
  check.type("x", a.x, {DType::kBF16, DType::kF32});
  check.sizes("x", a.x, {rows, channels});
  check.aligned("x", a.x, dtype_size(a.x.dtype));
  check.type("y", a.y, {a.x.dtype});
  check.sizes("y", a.y, {rows, channels});
  check.contiguous("y", a.y);
  check.type("weight", a.weight, {DType::kF32});
  check.sizes("weight", a.weight, {channels, taps});
  check.contiguous("weight", a.weight);
  if (taps < 2 || taps > 8) check.refuse("weight", fmt::format("{} taps, expected 2 to 8", taps));
  check.type("tails", a.tails, {a.x.dtype});
  check.sizes("tails", a.tails, {a.tails.sizes[0], taps - 1, channels});
  if (a.tails.strides[2] != 1 || a.tails.strides[1] != channels) check.refuse("tails", "rows of a slot must be contiguous");
  check.type("cu_seqlens", a.rows.cu_seqlens, {DType::kI32, DType::kI64});
  check.sizes("cu_seqlens", a.rows.cu_seqlens, {sequences + 1});
  check.type("slots", a.rows.slots, {DType::kI32});
  if (sequences > 65535) check.refuse("slots", fmt::format("{} sequences, expected at most 65535", sequences));
}

void check_attention_residual(const AttentionResidualArgs& a) {
  const TensorChecks check{"attention_residual"};
  const std::int64_t sources = a.sources.sizes[0], rows = a.sources.sizes[1], width = a.sources.sizes[2];
  check.type("sources", a.sources, {DType::kBF16, DType::kF32});
  check.sizes("sources", a.sources, {sources, rows, width});
  if (sources < 1 || sources > 16) check.refuse("sources", fmt::format("{} sources, expected 1 to 16", sources));
  check.aligned("sources", a.sources, dtype_size(a.sources.dtype));
  check.type("w", a.w, {DType::kF32});
  check.sizes("w", a.w, {width});
  check.type("y", a.y, {a.sources.dtype});
  check.sizes("y", a.y, {rows, width});
  check.contiguous("y", a.y);
  if (!a.p.defined()) return;
  check.type("p", a.p, {DType::kF32});
  check.sizes("p", a.p, {rows, sources});
  check.contiguous("p", a.p);
}

}  // namespace palimpsest::cuda
