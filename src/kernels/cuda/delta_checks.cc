#include "kernels/cuda/delta_checks.h"

#include "kernels/cuda/tensor_checks.h"

namespace palimpsest::cuda {
namespace {

constexpr TensorChecks kCheck{"page memory kernels"};

/// Type as q, and unit stride in the last dimension.
void check_input(const char* field, const Tensor& t, DType type) {
  kCheck.type(field, t, {type});
  if (t.rank == 3 && t.sizes[2] > 1 && t.strides[2] != 1) kCheck.refuse(field, fmt::format("stride {} in the last dimension, expected 1", t.strides[2]));
}

/// Rows of 16-byte accesses.
void check_page_layout(const char* field, const Tensor& pages) {
  const std::int64_t unit = 16 / dtype_size(pages.dtype);
  bool aligned = reinterpret_cast<std::uintptr_t>(pages.data) % 16 == 0 && pages.strides[3] == 1;
  for (int d = 0; d < 3; ++d) aligned = aligned && pages.strides[d] % unit == 0;
  if (!aligned) kCheck.refuse(field, "rows of K must be contiguous and begin at multiples of 16 bytes");
}

void check_inputs(const DeltaInputs& in) {
  kCheck.type("q", in.q, {DType::kBF16, DType::kF16, DType::kF32});
  const std::int64_t rows = in.q.sizes[0], heads = in.q.sizes[1], width = in.q.sizes[2], value_heads = in.v.sizes[1], values = in.v.sizes[2];
  if (in.q.rank != 3 || (width != 64 && width != 128 && width != 256)) kCheck.refuse("q", fmt::format("key width {}, expected 64, 128 or 256", width));
  kCheck.sizes("k", in.k, {rows, heads, width});
  if (in.v.rank != 3 || heads < 1 || value_heads % heads != 0) {
    kCheck.refuse("v", fmt::format("{} value heads are not a multiple of {} heads", value_heads, heads));
  }
  kCheck.sizes("v", in.v, {rows, value_heads, values});
  if (values % 32 != 0 || values < 32 || values > 256) kCheck.refuse("v", fmt::format("value width {}, expected a multiple of 32 up to 256", values));
  for (const auto& [field, t] : {std::pair{"q", &in.q}, {"k", &in.k}, {"v", &in.v}}) check_input(field, *t, in.q.dtype);
  if (in.b.defined()) {
    kCheck.sizes("b", in.b, {rows, value_heads});
    check_input("b", in.b, in.q.dtype);
  }
  if (in.gate == DeltaGate::kNone) return;
  const bool per_channel = in.f.rank == 3;
  if (per_channel) kCheck.sizes("f", in.f, {rows, value_heads, width});
  else kCheck.sizes("f", in.f, {rows, value_heads});
  check_input("f", in.f, in.q.dtype);
  if (in.gate == DeltaGate::kLogDecay) return;
  kCheck.sizes("a_log", in.a_log, {value_heads});
  kCheck.sizes("dt_bias", in.dt_bias, {per_channel ? value_heads * width : value_heads});
  kCheck.type("a_log", in.a_log, {DType::kF32});
  kCheck.type("dt_bias", in.dt_bias, {DType::kF32});
}

void check_conv(const DeltaConv& conv, const DeltaInputs& in) {
  if (!conv.weight.defined()) return;
  const std::int64_t heads = in.q.sizes[1], value_heads = in.v.sizes[1], taps = conv.weight.sizes[1];
  if (heads != value_heads) kCheck.refuse("conv.weight", fmt::format("{} heads and {} value heads would share a tail", heads, value_heads));
  const std::int64_t channels = 2 * heads * in.q.sizes[2] + value_heads * in.v.sizes[2];
  if (taps < 1 || taps > 8) kCheck.refuse("conv.weight", fmt::format("{} taps, expected 1 to 8", taps));
  kCheck.sizes("conv.weight", conv.weight, {channels, taps});
  kCheck.type("conv.weight", conv.weight, {DType::kF32});
  kCheck.sizes("conv.tails", conv.tails, {conv.tails.sizes[0], taps - 1, channels});
  kCheck.type("conv.tails", conv.tails, {in.q.dtype});
  if (taps > 1 && conv.tails.strides[2] != 1) kCheck.refuse("conv.tails", "unit stride is needed in the last dimension");
}

/// Of DeltaStepArgs or DeltaPrefillArgs.
template <class Args>
void check_snapshots(const Args& args) {
  kCheck.sizes("snapshots", args.snapshots, {args.snapshots.sizes[0], args.in.v.sizes[1], args.in.v.sizes[2], args.in.q.sizes[2]});
  kCheck.type("snapshots", args.snapshots, {args.pages.dtype});
  check_page_layout("snapshots", args.snapshots);
  kCheck.sizes("snapshot_slots", args.snapshot_slots, {args.in.q.sizes[0]});
  kCheck.type("snapshot_slots", args.snapshot_slots, {DType::kI32});
}

}  // namespace

void check_delta_step(const DeltaStepArgs& args) {
  check_inputs(args.in);
  check_conv(args.conv, args.in);
  const std::int64_t rows = args.in.q.sizes[0], value_heads = args.in.v.sizes[1], values = args.in.v.sizes[2], width = args.in.q.sizes[2];
  if (args.norm.weight.defined()) {
    kCheck.sizes("norm.weight", args.norm.weight, {values});
    kCheck.type("norm.weight", args.norm.weight, {DType::kF32});
    kCheck.sizes("norm.gate", args.norm.gate, {rows, value_heads, values});
    check_input("norm.gate", args.norm.gate, args.in.q.dtype);
    if (args.norm.function != Unary::kSigmoid && args.norm.function != Unary::kSilu) kCheck.refuse("norm.function", "only sigmoid and silu");
  }
  kCheck.sizes("pages", args.pages, {args.pages.sizes[0], value_heads, values, width});
  kCheck.type("pages", args.pages, {DType::kF32, DType::kBF16});
  check_page_layout("pages", args.pages);
  const std::int64_t sequences = args.slots.sizes[0];
  kCheck.type("slots", args.slots, {DType::kI32});
  if (args.cu_seqlens.defined()) {
    kCheck.sizes("cu_seqlens", args.cu_seqlens, {sequences + 1});
    kCheck.type("cu_seqlens", args.cu_seqlens, {DType::kI32, DType::kI64});
  } else if (rows != sequences) {
    kCheck.refuse("slots", fmt::format("{} sequences for {} rows without cu_seqlens", sequences, rows));
  }
  if (args.snapshots.defined()) check_snapshots(args);
  kCheck.sizes("o", args.o, {rows, value_heads, values});
  kCheck.type("o", args.o, {DType::kBF16, DType::kF16, DType::kF32});
  kCheck.contiguous("o", args.o);
  if (sequences > 0x7fffffff / (value_heads * (values / 32))) kCheck.refuse("slots", fmt::format("{} sequences are too many for one launch", sequences));
}

void check_delta_prefill(const DeltaPrefillArgs& args) {
  check_inputs(args.in);
  const std::int64_t rows = args.in.q.sizes[0], value_heads = args.in.v.sizes[1], values = args.in.v.sizes[2], width = args.in.q.sizes[2];
  kCheck.sizes("pages", args.pages, {args.pages.sizes[0], value_heads, values, width});
  kCheck.type("pages", args.pages, {DType::kF32, DType::kBF16});
  check_page_layout("pages", args.pages);
  kCheck.type("slots", args.slots, {DType::kI32});
  kCheck.sizes("cu_seqlens", args.cu_seqlens, {args.slots.sizes[0] + 1});
  kCheck.type("cu_seqlens", args.cu_seqlens, {DType::kI32, DType::kI64});
  if (args.snapshots.defined()) check_snapshots(args);
  if (args.past.defined()) {
    kCheck.sizes("past", args.past, {args.slots.sizes[0]});
    kCheck.type("past", args.past, {DType::kI64});
  }
  kCheck.sizes("o", args.o, {rows, value_heads, values});
  kCheck.type("o", args.o, {DType::kBF16, DType::kF16, DType::kF32});
  kCheck.contiguous("o", args.o);
  if (reinterpret_cast<std::uintptr_t>(args.workspace.data) % 128 != 0) kCheck.refuse("workspace", "must begin at a multiple of 128 bytes");
}

}  // namespace palimpsest::cuda
