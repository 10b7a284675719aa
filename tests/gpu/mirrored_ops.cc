// The front doors of src/ops once more, for host tensors: each copies its arguments to the device, runs the plain kernel there and copies the
// results back. Linked in place of the real ones, so that the tests of the CPU kernels, as they are, test the device's.

#include "ops/ops.h"

#include <deque>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/page_memory.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/product_workspace.h"
#include "kernels/cuda/plain_vision_kernels.h"
#include "ops/page_memory.h"
#include "ops/vision_ops.h"
#include "tensor/buffer.h"

namespace palimpsest::ops {
namespace {

/// Tensors of one call. A tensor within the memory of an earlier one is the same on the device too: ops in place, columns of a matrix.
class Mirror {
 public:
  ~Mirror() {
    for (const Piece& piece : pieces_) {
      if (piece.result) device_.copy(piece.host, piece.place(), piece.bytes);
    }
    device_.wait();
  }

  Tensor in(const Tensor& t) { return place(t, false); }
  Tensor out(const Tensor& t) { return place(t, true); }
  Matrix in(const Matrix& m) {
    Matrix w = m;
    w.dense = in(m.dense);
    w.mx = {in(m.mx.codes), in(m.mx.scales)};
    w.int8 = {in(m.int8.codes), in(m.int8.scales)};
    if (m.is_blocks()) w.blocks.data = at(m.blocks.data, m.blocks.rows * m.blocks.row_bytes, false);
    return w;
  }
  RaggedRows in(const RaggedRows& rows) { return {in(rows.cu_seqlens), in(rows.slots)}; }
  PagedList in(const PagedList& list) { return {in(list.blocks), in(list.table), list.q8}; }
  PagedList out(const PagedList& list) { return {out(list.blocks), in(list.table), list.q8}; }
  ExpertMatrices in(const ExpertMatrices& e) { return {in(e.w1), in(e.w3), in(e.w2)}; }

  std::byte* scratch(std::int64_t bytes) { return scratch_.emplace_back(bytes, device_).data(); }
  Device& device() { return device_; }
  void* stream() { return device_.stream(); }

 private:
  struct Piece {
    std::byte* host;
    std::int64_t bytes;
    bool result;
    std::int64_t shift;
    Buffer there;
    std::byte* place() const { return there.data() + shift; }
  };
  Tensor place(const Tensor& t, bool result) {
    if (!t.defined()) return t;
    std::int64_t last = 0;
    for (int d = 0; d < t.rank; ++d) last += (t.sizes[d] - 1) * t.strides[d];
    Tensor there = t;
    there.data = at(t.data, t.numel() == 0 ? 0 : (last + 1) * dtype_size(t.dtype), result);
    there.device = DeviceKind::kCuda;
    return there;
  }
  void* at(void* data, std::int64_t bytes, bool result) {
    auto* host = static_cast<std::byte*>(data);
    for (Piece& piece : pieces_) {
      if (host < piece.host || host + bytes > piece.host + piece.bytes) continue;
      piece.result |= result;
      return piece.place() + (host - piece.host);
    }
    // Shifted as on the host, so that alignment is what the test made it.
    const auto shift = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(host) % 64);
    pieces_.push_back({host, bytes, result, shift, Buffer(bytes + shift + 1, device_)});
    if (bytes > 0) device_.copy(pieces_.back().place(), host, bytes);
    return pieces_.back().place();
  }

  Device& device_ = cuda::cuda_device();
  std::deque<Piece> pieces_;
  std::deque<Buffer> scratch_;
};

namespace plain = cuda::plain;

}  // namespace

void embedding(ExecContext&, const EmbeddingArgs& args) {
  Mirror m;
  EmbeddingArgs a = args;
  a.table = m.in(args.table);
  a.ids = m.in(args.ids);
  a.out = m.out(args.out);
  plain::embedding(a, m.stream());
}

void matmul(ExecContext& ctx, const MatmulArgs& args) {
  Mirror m;
  MatmulArgs a = args;
  a.x = m.in(args.x);
  a.w = m.in(args.w);
  a.y = m.out(args.y);
  plain::matmul(a, m.stream(), ctx.activations == Activations::kMxfp8);
}

void rms_norm(ExecContext&, const RmsNormArgs& args) {
  Mirror m;
  RmsNormArgs a = args;
  a.x = m.in(args.x);
  a.weight = m.in(args.weight);
  a.y = m.out(args.y);
  plain::rms_norm(a, m.stream());
}

void add_rms_norm(ExecContext&, const AddRmsNormArgs& args) {
  Mirror m;
  AddRmsNormArgs a = args;
  a.add = m.in(args.add);
  a.x = m.out(args.x);
  a.weight = m.in(args.weight);
  a.y = m.out(args.y);
  plain::add_rms_norm(a, m.stream());
}

void gated_rms_norm(ExecContext&, const GatedRmsNormArgs& args) {
  Mirror m;
  GatedRmsNormArgs a = args;
  a.x = m.in(args.x);
  a.weight = m.in(args.weight);
  a.gate = m.in(args.gate);
  a.y = m.out(args.y);
  plain::gated_rms_norm(a, m.stream());
}

void l2_norm(ExecContext&, const L2NormArgs& args) {
  Mirror m;
  L2NormArgs a = args;
  a.x = m.in(args.x);
  a.y = m.out(args.y);
  plain::l2_norm(a, m.stream());
}

void short_conv(ExecContext&, const ShortConvArgs& args) {
  Mirror m;
  ShortConvArgs a = args;
  a.x = m.in(args.x);
  a.weight = m.in(args.weight);
  a.tails = m.out(args.tails);
  a.rows = m.in(args.rows);
  a.y = m.out(args.y);
  plain::short_conv(a, m.stream());
}

void decay_gate(ExecContext&, const DecayGateArgs& args) {
  Mirror m;
  DecayGateArgs a = args;
  a.f = m.in(args.f);
  a.a_log = m.in(args.a_log);
  a.dt_bias = m.in(args.dt_bias);
  a.g = m.out(args.g);
  plain::decay_gate(a, m.stream());
}

void page_memory(ExecContext&, const PageMemoryArgs& args) {
  Mirror m;
  PageMemoryArgs a = args;
  a.q = m.in(args.q);
  a.k = m.in(args.k);
  a.v = m.in(args.v);
  a.g = m.in(args.g);
  a.beta = m.in(args.beta);
  a.pages = m.out(args.pages);
  a.rows = m.in(args.rows);
  a.past = m.in(args.past);
  a.o = m.out(args.o);
  plain::page_memory(a, m.stream());
}

/// What is written is seen on the host only.
void page_memory(ExecContext& ctx, const PageMemoryArgs& args, const Tensor& written, const PromptInputs&) {
  if (written.defined()) cpu::page_memory(ctx, args, written);
  else page_memory(ctx, args);
}

void latent_append(ExecContext&, const LatentAppendArgs& args) {
  Mirror m;
  LatentAppendArgs a = args;
  a.latent = m.in(args.latent);
  a.k_pe = m.in(args.k_pe);
  a.list = m.out(args.list);
  a.rows = m.in(args.rows);
  a.past = m.in(args.past);
  plain::latent_append(a, m.stream());
}

void latent_attention(ExecContext&, const LatentAttentionArgs& args) {
  Mirror m;
  LatentAttentionArgs a = args;
  a.q = m.in(args.q);
  a.kv_b = m.in(args.kv_b);
  a.list = m.in(args.list);
  a.rows = m.in(args.rows);
  a.past = m.in(args.past);
  a.o = m.out(args.o);
  plain::latent_attention(a, m.stream());
}

void glu(ExecContext&, const GluArgs& args) {
  Mirror m;
  GluArgs a = args;
  a.gate = m.in(args.gate);
  a.up = m.in(args.up);
  a.y = m.out(args.y);
  plain::glu(a, m.stream());
}

void multiply_sigmoid(ExecContext&, const MultiplySigmoidArgs& args) {
  Mirror m;
  MultiplySigmoidArgs a = args;
  a.x = m.in(args.x);
  a.gate = m.in(args.gate);
  a.y = m.out(args.y);
  plain::multiply_sigmoid(a, m.stream());
}

void add(ExecContext&, const AddArgs& args) {
  Mirror m;
  AddArgs a = args;
  a.x = m.in(args.x);
  a.y = m.out(args.y);
  plain::add(a, m.stream());
}

void multiply(ExecContext&, const MultiplyArgs& args) {
  Mirror m;
  MultiplyArgs a = args;
  a.x = m.in(args.x);
  a.y = m.out(args.y);
  plain::multiply(a, m.stream());
}

void add_bias(ExecContext&, const AddBiasArgs& args) {
  Mirror m;
  AddBiasArgs a = args;
  a.bias = m.in(args.bias);
  a.y = m.out(args.y);
  plain::add_bias(a, m.stream());
}

void scale(ExecContext&, const ScaleArgs& args) {
  Mirror m;
  ScaleArgs a = args;
  a.y = m.out(args.y);
  plain::scale(a, m.stream());
}

void unary(ExecContext&, const UnaryArgs& args) {
  Mirror m;
  UnaryArgs a = args;
  a.x = m.in(args.x);
  a.y = m.out(args.y);
  plain::unary(a, m.stream());
}

void layer_norm(ExecContext&, const LayerNormArgs& args) {
  Mirror m;
  LayerNormArgs a = args;
  a.x = m.in(args.x);
  a.weight = m.in(args.weight);
  a.bias = m.in(args.bias);
  a.y = m.out(args.y);
  plain::layer_norm(a, m.stream());
}

void positions(ExecContext&, const PositionsArgs& args) {
  Mirror m;
  PositionsArgs a = args;
  a.rows = m.in(args.rows);
  a.past = m.in(args.past);
  a.out = m.out(args.out);
  plain::positions(a, m.stream());
}

void rotary_table(ExecContext&, const RotaryTableArgs& args) {
  Mirror m;
  RotaryTableArgs a = args;
  a.inv_freq = m.in(args.inv_freq);
  a.rows = m.in(args.rows);
  a.past = m.in(args.past);
  a.cos = m.out(args.cos);
  a.sin = m.out(args.sin);
  plain::rotary_table(a, m.stream());
}

void rotary(ExecContext&, const RotaryArgs& args) {
  Mirror m;
  RotaryArgs a = args;
  a.x = m.out(args.x);
  a.cos = m.in(args.cos);
  a.sin = m.in(args.sin);
  plain::rotary(a, m.stream());
}

void divide_rows(ExecContext&, const DivideRowsArgs& args) {
  Mirror m;
  DivideRowsArgs a = args;
  a.x = m.in(args.x);
  a.divisor = m.in(args.divisor);
  a.y = m.out(args.y);
  plain::divide_rows(a, m.stream());
}

void append_one(ExecContext&, const AppendOneArgs& args) {
  Mirror m;
  AppendOneArgs a = args;
  a.x = m.in(args.x);
  a.y = m.out(args.y);
  plain::append_one(a, m.stream());
}

void features(ExecContext&, const FeaturesArgs& args) {
  Mirror m;
  FeaturesArgs a = args;
  a.x = m.in(args.x);
  a.y = m.out(args.y);
  plain::features(a, m.stream());
}

void softmax_attention(ExecContext&, const SoftmaxAttentionArgs& args) {
  Mirror m;
  SoftmaxAttentionArgs a = args;
  a.q = m.in(args.q);
  a.list = m.in(args.list);
  a.rows = m.in(args.rows);
  a.past = m.in(args.past);
  a.o = m.out(args.o);
  plain::softmax_attention(a, m.stream());
}

void attention_residual(ExecContext&, const AttentionResidualArgs& args) {
  Mirror m;
  AttentionResidualArgs a = args;
  a.sources = m.in(args.sources);
  a.w = m.in(args.w);
  a.y = m.out(args.y);
  a.p = m.out(args.p);
  plain::attention_residual(a, m.stream());
}

void router(ExecContext&, const RouterArgs& args) {
  Mirror m;
  RouterArgs a = args;
  a.logits = m.in(args.logits);
  a.bias = m.in(args.bias);
  a.ids = m.out(args.ids);
  a.weights = m.out(args.weights);
  plain::router(a, m.stream());
}

void patch_positions(ExecContext&, const PatchPositionsArgs& args) {
  Mirror m;
  PatchPositionsArgs a = args;
  a.table = m.in(args.table);
  a.x = m.out(args.x);
  plain::patch_positions(a, m.stream());
}

void patch_turns(ExecContext&, const PatchTurnsArgs& args) {
  Mirror m;
  PatchTurnsArgs a = args;
  a.turns = m.out(args.turns);
  plain::patch_turns(a, m.stream());
}

void patch_rotary(ExecContext&, const PatchRotaryArgs& args) {
  Mirror m;
  PatchRotaryArgs a = args;
  a.turns = m.in(args.turns);
  a.x = m.out(args.x);
  plain::patch_rotary(a, m.stream());
}

void patch_attention(ExecContext&, const PatchAttentionArgs& args) {
  Mirror m;
  PatchAttentionArgs a = args;
  a.q = m.in(args.q);
  a.k = m.in(args.k);
  a.v = m.in(args.v);
  a.o = m.out(args.o);
  plain::patch_attention(a, m.stream());
}

void gelu_erf(ExecContext&, const GeluErfArgs& args) {
  Mirror m;
  GeluErfArgs a = args;
  a.x = m.in(args.x);
  a.y = m.out(args.y);
  plain::gelu_erf(a, m.stream());
}

void patch_merge(ExecContext&, const PatchMergeArgs& args) {
  Mirror m;
  PatchMergeArgs a = args;
  a.x = m.in(args.x);
  a.y = m.out(args.y);
  plain::patch_merge(a, m.stream());
}

void experts(ExecContext& ctx, const ExpertsArgs& args) {
  Mirror m;
  ExpertsArgs a = args;
  a.x = m.in(args.x);
  a.ids = m.in(args.ids);
  a.weights = m.in(args.weights);
  a.y = m.out(args.y);
  std::vector<ExpertMatrices> experts;
  std::int64_t inter = 0;
  for (std::int64_t e = 0; e < args.num_experts; ++e) {
    experts.push_back(m.in(args.experts[e]));
    if (args.experts[e].w1.defined()) inter = args.experts[e].w1.rows();
  }
  std::vector<std::byte> table(static_cast<std::size_t>(plain::expert_table_bytes(args.num_experts)));
  plain::make_expert_table(experts.data(), args.num_experts, table.data());
  std::byte* there = m.scratch(static_cast<std::int64_t>(table.size()) + 1);
  m.device().copy(there, table.data(), static_cast<std::int64_t>(table.size()));
  a.device_experts = there;
  const std::int64_t rows = a.ids.size(0), top_k = a.ids.size(1), width = a.x.size(1);
  // What the test measures of the CPU's workspace.
  const ArenaScope scope(ctx.workspace);
  if (rows * top_k > 0) ctx.workspace.allocate(DType::kU8, {cpu::experts_workspace_bytes(rows, top_k, width, inter, args.num_experts)});
  plain::experts(a, inter, ctx.activations == Activations::kMxfp8 ? cuda::kMxfp8Parts : 0, m.scratch(plain::experts_workspace_bytes(rows, top_k, width, inter, args.num_experts) + 1), m.stream());
}

}  // namespace palimpsest::ops
