// The recorded layers of golden/ops/mla.safetensors: projections in double here, attention by the reference and by the kernels.

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/latent_attention.h"
#include "latent_case.h"
#include "ops/ops.h"
#include "support/golden.h"
#include "support/shared_data.h"

namespace palimpsest::test {
namespace {

using Doubles = std::vector<double>;

/// x [rows, k] times W [n, k] transposed.
Doubles project(const Doubles& x, const Doubles& w, std::size_t k) {
  const std::size_t rows = x.size() / k, n = w.size() / k;
  Doubles y(rows * n);
  for (std::size_t t = 0; t < rows; ++t) {
    for (std::size_t i = 0; i < n; ++i) y[t * n + i] = std::inner_product(&x[t * k], &x[t * k] + k, &w[i * k], 0.0);
  }
  return y;
}

void rms_norm(Doubles& x, const Doubles& weight) {
  const std::size_t width = weight.size();
  for (std::size_t t = 0; t < x.size() / width; ++t) {
    const double mean = std::inner_product(&x[t * width], &x[t * width] + width, &x[t * width], 0.0) / static_cast<double>(width);
    for (std::size_t c = 0; c < width; ++c) x[t * width + c] *= weight[c] / std::sqrt(mean + 1e-6);
  }
}

class RecordedLayer {
 public:
  RecordedLayer(const Golden& golden, const std::string& name, std::int64_t heads) : golden_(golden), name_(name), heads_(heads) {
    const auto x_shape = golden.shape(name + ".x");
    const std::int64_t sequences = x_shape[0], tokens = x_shape[1];
    hidden_ = static_cast<std::size_t>(x_shape[2]);
    r_ = golden.shape(name + ".latent")[2];
    p_ = golden.shape(name + ".kpe")[2];
    dv_ = golden.shape(name + ".o_proj.weight")[1] / heads;
    for (std::int64_t n = 0; n <= sequences; ++n) cu_.push_back(n * tokens);
    for (std::int64_t n = 0; n < sequences; ++n) slots_.push_back(static_cast<std::int32_t>(n));
    past_.resize(slots_.size());
    for (std::int64_t n = 0; n < sequences; ++n) table_.push_back(static_cast<std::int32_t>(sequences - 1 - n));
    list_.resize(static_cast<std::size_t>(sequences * tokens * (r_ + p_)));
    latent_ = golden.floats(name + ".latent");
    k_pe_ = golden.floats(name + ".kpe");
    kv_b_ = golden.floats(name + ".kv_b_proj.weight");
    const Doubles q = queries();
    q_.assign(q.begin(), q.end());
    o_.resize(static_cast<std::size_t>(rows() * heads * dv_));
    o64_.resize(o_.size());
  }

  std::int64_t rows() const { return cu_.back(); }
  std::vector<float>& o() { return o_; }
  Doubles& o64() { return o64_; }

  LatentAppendArgs append_args() {
    LatentAppendArgs a;
    a.latent = Tensor::contiguous(latent_.data(), DType::kF32, {rows(), r_});
    a.k_pe = Tensor::contiguous(k_pe_.data(), DType::kF32, {rows(), p_});
    a.list = list();
    a.rows = ragged();
    a.past = Tensor::contiguous(past_.data(), DType::kI64, {sequences()});
    return a;
  }

  LatentAttentionArgs attention_args(LatentForm form) {
    const std::int64_t dq = static_cast<std::int64_t>(q_.size()) / rows() / heads_;
    LatentAttentionArgs a;
    a.q = Tensor::contiguous(q_.data(), DType::kF32, {rows(), heads_, dq});
    a.kv_b.dense = Tensor::contiguous(kv_b_.data(), DType::kF32, {static_cast<std::int64_t>(kv_b_.size()) / r_, r_});
    a.list = list();
    a.rows = ragged();
    a.past = Tensor::contiguous(past_.data(), DType::kI64, {sequences()});
    a.scale = 1 / std::sqrt(static_cast<float>(dq));
    a.o = Tensor::contiguous(o_.data(), DType::kF32, {rows(), heads_, dv_});
    a.form = form;
    return a;
  }

  /// The layer's output from attention's, and errors of o carried through |o_proj|.
  Doubles output(const Doubles& o) const { return project(gated(o), weight("o_proj.weight"), o.size() / static_cast<std::size_t>(rows())); }
  Doubles carried(const Doubles& o_errors) const {
    Doubles absolute = weight("o_proj.weight");
    for (double& w : absolute) w = std::abs(w);
    return project(gated(o_errors), absolute, o_errors.size() / static_cast<std::size_t>(rows()));
  }

 private:
  std::int64_t sequences() const { return static_cast<std::int64_t>(slots_.size()); }
  PagedList list() {
    return {Tensor::contiguous(list_.data(), DType::kF32, {sequences(), cu_[1], r_ + p_}),
            Tensor::contiguous(table_.data(), DType::kI32, {sequences(), 1})};
  }
  RaggedRows ragged() {
    return {Tensor::contiguous(cu_.data(), DType::kI64, {sequences() + 1}), Tensor::contiguous(slots_.data(), DType::kI32, {sequences()})};
  }
  Doubles weight(const std::string& name) const { return to_double(golden_.floats(name_ + "." + name)); }
  Doubles x() const { return weight("x"); }

  Doubles queries() const {
    if (golden_.has(name_ + ".q_proj.weight")) return project(x(), weight("q_proj.weight"), hidden_);
    Doubles low = project(x(), weight("q_a_proj.weight"), hidden_);
    rms_norm(low, weight("q_a_layernorm.weight"));
    return project(low, weight("q_b_proj.weight"), weight("q_a_layernorm.weight").size());
  }

  Doubles gated(Doubles o) const {
    if (!golden_.has(name_ + ".g_proj.weight")) return o;
    const Doubles gate = project(x(), weight("g_proj.weight"), hidden_);
    for (std::size_t i = 0; i < o.size(); ++i) o[i] /= 1 + std::exp(-gate[i]);
    return o;
  }

  const Golden& golden_;
  std::string name_;
  std::int64_t heads_, r_ = 0, p_ = 0, dv_ = 0;
  std::size_t hidden_ = 0;
  std::vector<std::int64_t> cu_, past_;
  std::vector<std::int32_t> slots_, table_;
  std::vector<float> list_, latent_, k_pe_, kv_b_, q_, o_;
  Doubles o64_;
};

TEST(LatentGolden, LayersOfTheRecordedModel) {
  const auto path = shared_path("golden/ops/mla.safetensors");
  if (path.empty()) GTEST_SKIP() << "shared data absent: golden/ops/mla.safetensors";
  const Golden golden(path);
  for (const auto& [name, heads] : std::vector<std::pair<std::string, std::int64_t>>{
           {"direct_t1", 2}, {"direct_t20", 2}, {"qlora_gate_t37", 2}, {"qlora_gate_t131_h4", 4}}) {
    RecordedLayer layer(golden, name, heads);
    ExecContext ctx(2);
    ops::latent_append(ctx, layer.append_args());
    const auto recorded = golden.floats(name + ".y");
    const Doubles y = to_double(recorded);
    LatentAttentionArgs args = layer.attention_args(LatentForm::kAuto);
    const LatentTruth truth = latent_truth(args);
    const Doubles magnitude = layer.carried(truth.magnitude);

    // Rounded to F32: q, latent, k_pe, and y itself.
    const Bound rounded_inputs{.c = 4, .eps_out = kEpsF32};
    args.o = Tensor::contiguous(layer.o64().data(), DType::kF64, {layer.rows(), heads, args.o.size(2)});
    ref::latent_attention<double>(args);
    const Doubles by_reference = layer.output(layer.o64());
    EXPECT_TRUE(within_bound(recorded, by_reference, magnitude, rounded_inputs)) << name << ", reference";

    ctx.workspace.reserve(cpu::latent_attention_workspace_bytes(heads, args.kv_b.cols(), args.list.width(), layer.rows()));
    for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kMaterialized}) {
      ops::latent_attention(ctx, layer.attention_args(form));
      const Doubles got = layer.output(to_double(layer.o()));
      Bound bound = truth.bound;
      bound.c += rounded_inputs.c;
      bound.eps_out = kEpsF32;
      EXPECT_TRUE(within_bound(std::vector<float>(got.begin(), got.end()), y, magnitude, bound)) << name << ", form " << static_cast<int>(form);
    }
  }
}

}  // namespace
}  // namespace palimpsest::test
