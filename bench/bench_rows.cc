// Ops that go over their rows once: norms, gates, convolutions, residuals, routing. Their floor is moving their operands: bytes read and
// written, each operand once, as a share of the read bandwidth over a working set of that size with the same threads. Kimi-Linear's widths
// (2304; 32 heads of 128; 256 experts). Arguments: rows, threads.

#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "bench_support.h"
#include "kernels/cpu/cpu_kernels.h"

namespace palimpsest::bench {
namespace {

constexpr std::int64_t kHidden = 2304, kHeads = 32, kWidth = 128, kInner = kHeads * kWidth, kExperts = 256, kTopK = 8, kTaps = 4,
                       kSources = 4;

/// Tensors of one batch of rows. Each is made when it is first asked for.
class Rows {
 public:
  explicit Rows(std::int64_t rows) : rows_(rows), cu_{0, rows} {}

  Tensor f32(const std::string& name, std::initializer_list<std::int64_t> sizes) {
    const std::int64_t n = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
    auto& values = floats_[name];
    if (values.empty()) values = random_floats(n, floats_.size()), bytes_ += 4 * n;
    Tensor t = Tensor::contiguous(values.data(), DType::kF32, {n});
    return t.reshape(sizes);
  }
  Tensor i32(const std::string& name, std::initializer_list<std::int64_t> sizes) {
    const std::int64_t n = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
    auto& values = ints_[name];
    for (std::int64_t i = std::ssize(values); i < n; ++i) values.push_back(static_cast<std::int32_t>(i % rows_));
    return Tensor::contiguous(values.data(), DType::kI32, {n}).reshape(sizes);
  }
  Tensor hidden(const std::string& name) { return f32(name, {rows_, kHidden}); }
  Tensor inner(const std::string& name) { return f32(name, {rows_, kHeads, kWidth}); }
  RaggedRows ragged() {
    return {Tensor::contiguous(cu_.data(), DType::kI64, {2}), Tensor::contiguous(&slot_, DType::kI32, {1})};
  }
  Tensor past() { return Tensor::contiguous(&past_, DType::kI64, {1}); }
  std::int64_t count() const { return rows_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t rows_, bytes_ = 0, past_ = 0;
  std::array<std::int64_t, 2> cu_;
  std::int32_t slot_ = 0;
  std::map<std::string, std::vector<float>> floats_;
  std::map<std::string, std::vector<std::int32_t>> ints_;
};

/// Runs `op(ctx, rows)`, whose operands all come from `rows`: their bytes are the floor.
template <class F>
void measure(benchmark::State& state, F op) {
  const int threads = static_cast<int>(state.range(1));
  Rows rows(state.range(0));
  ExecContext ctx(threads);
  op(ctx, rows);
  for (auto _ : state) {
    op(ctx, rows);
    benchmark::ClobberMemory();
  }
  report_shares(state, 0, static_cast<double>(rows.bytes()), rows.bytes(), threads);
  state.SetLabel(std::string(cpu::active_target()));
}

using Op = void (*)(ExecContext&, Rows&);
struct Named {
  const char* name;
  Op op;
};

constexpr Named kOps[] = {
    {"rms_norm", [](ExecContext& ctx, Rows& r) { cpu::rms_norm(ctx, {.x = r.hidden("x"), .weight = r.f32("w", {kHidden}), .eps = 1e-5f, .y = r.hidden("y")}); }},
    {"layer_norm",
     [](ExecContext& ctx, Rows& r) {
       cpu::layer_norm(ctx, {.x = r.hidden("x"), .weight = r.f32("w", {kHidden}), .bias = r.f32("b", {kHidden}), .eps = 1e-5f, .y = r.hidden("y")});
     }},
    {"gated_rms_norm",
     [](ExecContext& ctx, Rows& r) {
       cpu::gated_rms_norm(ctx, {.x = r.inner("x"), .weight = r.f32("w", {kWidth}), .gate = r.inner("gate"), .eps = 1e-5f, .y = r.inner("y")});
     }},
    {"l2_norm", [](ExecContext& ctx, Rows& r) { cpu::l2_norm(ctx, {.x = r.inner("x"), .y = r.inner("y")}); }},
    {"short_conv",
     [](ExecContext& ctx, Rows& r) {
       cpu::short_conv(ctx, {.x = r.f32("x", {r.count(), kInner}),
                             .weight = r.f32("w", {kInner, kTaps}),
                             .tails = r.f32("tails", {1, kTaps - 1, kInner}),
                             .rows = r.ragged(),
                             .y = r.f32("y", {r.count(), kInner})});
     }},
    {"decay_gate_softplus",
     [](ExecContext& ctx, Rows& r) {
       cpu::decay_gate(ctx, {.f = r.inner("f"), .a_log = r.f32("a", {kHeads}), .dt_bias = r.f32("bias", {kInner}), .kind = DecayGateKind::kSoftplus, .g = r.inner("g")});
     }},
    {"decay_gate_bounded",
     [](ExecContext& ctx, Rows& r) {
       cpu::decay_gate(ctx, {.f = r.inner("f"), .a_log = r.f32("a", {kHeads}), .dt_bias = r.f32("bias", {kInner}), .kind = DecayGateKind::kBounded, .g = r.inner("g")});
     }},
    {"swiglu", [](ExecContext& ctx, Rows& r) { cpu::glu(ctx, {.gate = r.hidden("gate"), .up = r.hidden("up"), .params = {}, .y = r.hidden("y")}); }},
    {"situ",
     [](ExecContext& ctx, Rows& r) {
       cpu::glu(ctx, {.gate = r.hidden("gate"), .up = r.hidden("up"), .params = {.kind = Glu::kSitu, .beta = 4, .linear_beta = 25}, .y = r.hidden("y")});
     }},
    {"multiply_sigmoid", [](ExecContext& ctx, Rows& r) { cpu::multiply_sigmoid(ctx, {.x = r.hidden("x"), .gate = r.hidden("gate"), .y = r.hidden("y")}); }},
    {"add", [](ExecContext& ctx, Rows& r) { cpu::add(ctx, {.x = r.hidden("x"), .y = r.hidden("y")}); }},
    {"attention_residual",
     [](ExecContext& ctx, Rows& r) {
       cpu::attention_residual(ctx, {.sources = r.f32("s", {kSources, r.count(), kHidden}), .w = r.f32("w", {kHidden}), .eps = 1e-5f, .y = r.hidden("y"), .p = {}});
     }},
    {"router",
     [](ExecContext& ctx, Rows& r) {
       cpu::router(ctx, {.logits = r.f32("logits", {r.count(), kExperts}), .bias = r.f32("bias", {kExperts}), .top_k = kTopK,
                         .ids = r.i32("ids", {r.count(), kTopK}), .weights = r.f32("weights", {r.count(), kTopK})});
     }},
    {"embedding",
     [](ExecContext& ctx, Rows& r) {
       cpu::embedding(ctx, {.table = {.dense = r.f32("table", {r.count(), kHidden}), .blocks = {}}, .ids = r.i32("ids", {r.count()}), .out = r.hidden("y")});
     }},
    {"rotary",
     [](ExecContext& ctx, Rows& r) {
       cpu::rotary(ctx, {.x = r.inner("x"), .cos = r.f32("cos", {r.count(), kWidth / 2}), .sin = r.f32("sin", {r.count(), kWidth / 2})});
     }},
};

void register_all() {
  for (const Named& named : kOps) {
    const Op op = named.op;
    benchmark::RegisterBenchmark(named.name, [op](benchmark::State& state) { measure(state, op); })
        ->ArgNames({"rows", "threads"})
        ->ArgsProduct({{1, 64, 512}, {1, 2}})
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace
}  // namespace palimpsest::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  palimpsest::bench::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
