// Decode of KDA layers: H = 96 heads of K3, K = V = 128. "core": gate, l2norm and beta in the kernel, no convolution and no norm (what FLA's
// fused_recurrent_kda does). "fused": with short convolution, SiLU and gated RMSNorm, the whole layer between two products.

#include <algorithm>
#include <numeric>
#include <string>

#include "kernels/cases.h"
#include "kernels/cuda/delta_kernels.h"

namespace palimpsest::bench {
namespace {

using Fill = DeviceTensor::Fill;
constexpr std::int64_t kWidth = 128, kTaps = 4;

struct Shape {
  std::int64_t sequences, heads, tokens;  ///< tokens a sequence
  DType state;
  bool fused;
  bool in_l2;  ///< the same states every time, instead of more than L2 holds
  double target_us;
  bool snapshots = false;  ///< the page after every token
};

struct Problem {
  Shape shape;
  std::int64_t rows, sets;
  DeviceTensor q, k, v, f, b, a_log, dt_bias, conv, tails, norm, gate, pages, cu, slots, o, snapshots, snapshot_slots;

  explicit Problem(const Shape& s) : shape(s), rows(s.sequences * s.tokens) {
    const std::int64_t h = s.heads, d = kWidth, page = h * d * d * dtype_size(s.state), channels = 3 * h * d;
    sets = s.in_l2 ? 1 : std::max<std::int64_t>(2, (256ll << 20) / (page * s.sequences) + 1);
    const std::int64_t pool = sets * s.sequences;
    const DType in = DType::kBF16;
    q = {in, {rows, h, d}, Fill::kNormal, 0, 1, 1};
    k = {in, {rows, h, d}, Fill::kNormal, 0, 1, 2};
    v = {in, {rows, h, d}, Fill::kNormal, 0, 1, 3};
    f = {in, {rows, h, d}, Fill::kNormal, 0, 1, 4};
    b = {in, {rows, h}, Fill::kNormal, 0, 1, 5};
    a_log = {DType::kF32, {h}, Fill::kUniform, -1, 1, 6};
    dt_bias = {DType::kF32, {h * d}, Fill::kUniform, -4, 1, 7};  // decays from -0.1 to -4 nats a token
    conv = {DType::kF32, {channels, kTaps}, Fill::kNormal, 0, 0.5f, 8};
    tails = {in, {pool, kTaps - 1, channels}, Fill::kNormal, 0, 1, 9};
    norm = {DType::kF32, {d}, Fill::kUniform, 0.5f, 1.5f, 10};
    gate = {in, {rows, h, d}, Fill::kNormal, 0, 1, 11};
    pages = {s.state, {pool, h, d, d}, Fill::kNormal, 0, 0.3f, 12};
    cu = {DType::kI32, {s.sequences + 1}};
    slots = {DType::kI32, {sets, s.sequences}};
    o = {in, {rows, h, d}};
    std::vector<std::int32_t> host;
    for (std::int64_t i = 0; i <= s.sequences; ++i) host.push_back(static_cast<std::int32_t>(i * s.tokens));
    cu.upload(host.data());
    host.clear();
    for (std::int64_t i = 0; i < pool; ++i) host.push_back(static_cast<std::int32_t>(i));
    slots.upload(host.data());
    if (!s.snapshots) return;
    snapshots = {s.state, {rows, h, d, d}};
    snapshot_slots = {DType::kI32, {rows}};
    host.resize(static_cast<std::size_t>(rows));
    std::iota(host.begin(), host.end(), 0);
    snapshot_slots.upload(host.data());
  }

  DeltaStepArgs args(std::int64_t set) const {
    DeltaStepArgs a;
    a.in.q = q, a.in.k = k, a.in.v = v, a.in.f = f, a.in.b = b, a.in.a_log = a_log, a.in.dt_bias = dt_bias;
    a.in.q_scale = 0.08838834764f;
    if (shape.fused) {
      a.conv = {conv, tails};
      a.norm = {norm, gate, Unary::kSigmoid, 1e-5f};
    }
    a.pages = pages;
    if (shape.tokens > 1) a.cu_seqlens = cu;
    a.slots = Tensor::contiguous(static_cast<std::int32_t*>(slots.get().data) + set * shape.sequences, DType::kI32, {shape.sequences}, DeviceKind::kCuda);
    a.o = o;
    if (shape.snapshots) a.snapshots = snapshots, a.snapshot_slots = snapshot_slots;
    return a;
  }

  double bytes() const {
    const double state = static_cast<double>(shape.sequences * shape.heads) * 2 * kWidth * kWidth * static_cast<double>(dtype_size(shape.state));
    const double head_rows = static_cast<double>(rows * shape.heads), width = kWidth;
    double vectors = head_rows * (5 * width + 1) * 2;
    if (shape.fused) vectors += head_rows * width * 2 + static_cast<double>(shape.sequences * shape.heads) * 2 * 3 * (kTaps - 1) * width * 2;
    if (shape.snapshots) vectors += static_cast<double>(rows * shape.heads) * kWidth * kWidth * static_cast<double>(dtype_size(shape.state));
    return state + vectors;
  }
};

void run(const Shape& shape, Report& report) {
  const std::int64_t h = shape.heads, d = kWidth;
  Result result;
  result.name = std::string("kda_decode ") + (shape.fused ? "fused" : "core ") + (shape.state == DType::kF32 ? " f32 " : " bf16") + " B=" +
                std::to_string(shape.sequences) + " H=" + std::to_string(h) + " T=" + std::to_string(shape.tokens) +
                (shape.snapshots ? " snapshots" : "") + (shape.in_l2 ? " (state in L2)" : "");
  if (!wanted(result.name)) return;
  const Problem p(shape);
  const std::int64_t slots = p.pages.get().sizes[0];
  if (selection().check) {
    const DeviceTensor pages(DType::kF64, {slots, h, d, d}), o(DType::kF64, {p.rows, h, d}), tails(DType::kBF16, {slots, kTaps - 1, 3 * h * d});
    convert(p.pages, pages);
    convert(p.tails, tails);
    DeltaStepArgs truth = p.args(0);
    truth.pages = pages;
    truth.o = o;
    truth.snapshots = {};
    if (shape.fused) truth.conv.tails = tails;
    cuda::ref_delta_step(truth);
    cuda::delta_step(p.args(0), shape.tokens, nullptr);
    check(cudaDeviceSynchronize(), "delta_step");
    result.output = compare(p.o, o);
    result.state = compare(p.pages, pages);
  }
  const int launches = static_cast<int>(std::max<std::int64_t>(p.sets, shape.sequences <= 8 ? 32 : 2));
  result.microseconds = time_graph(launches, [&](int i, cudaStream_t stream) { cuda::delta_step(p.args(i % p.sets), shape.tokens, stream); });
  result.bytes = p.bytes();
  result.target_us = shape.target_us;
  report.add(result);
}

}  // namespace

void delta_step_cases(Report& report) {
  for (const bool fused : {false, true}) {
    run({1, 96, 1, DType::kF32, fused, true, 4}, report);
    run({1, 96, 1, DType::kF32, fused, false, 5.5}, report);
    run({8, 96, 1, DType::kF32, fused, false, 28}, report);
    run({64, 96, 1, DType::kF32, fused, false, 215}, report);
    run({256, 96, 1, DType::kF32, fused, false, 850}, report);
    run({64, 96, 1, DType::kBF16, fused, false, 0}, report);
    run({32, 12, 1, DType::kF32, fused, false, 0}, report);
  }
  run({64, 96, 4, DType::kF32, true, false, 0}, report);
  for (const std::int64_t tokens : {2, 4, 8, 16}) {
    for (const std::int64_t sequences : {1, 8}) {
      for (const DType state : {DType::kF32, DType::kBF16}) run({sequences, 96, tokens, state, true, false, 0}, report);
    }
  }
  for (const std::int64_t sequences : {1, 8}) run({sequences, 96, 4, DType::kF32, true, false, 0, true}, report);
}

}  // namespace palimpsest::bench
