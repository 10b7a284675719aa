// Prefill of KDA layers, K = V = 128, F32 state. "random": gates of public benchmarks, about -2.5 nats a token on every channel; "real":
// channels from -0.005 to -5 nats mixed.

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cases.h"
#include "kernels/cuda/delta_kernels.h"

namespace palimpsest::bench {
namespace {

using Fill = DeviceTensor::Fill;
constexpr std::int64_t kWidth = 128;

struct Shape {
  std::int64_t heads;
  std::vector<std::int64_t> lengths;
  bool real_gates;
  double target_us;
  std::int64_t key_heads = 0;  ///< of Gated DeltaNet, with a softplus gate a head; 0: a bounded gate a channel, as many key heads
};

struct Problem {
  std::int64_t rows = 0, sequences;
  bool per_head;
  DeviceTensor q, k, v, f, b, a_log, dt_bias, pages, cu, slots, o, workspace;

  Problem(const Shape& s, std::int64_t workspace_bytes) : sequences(static_cast<std::int64_t>(s.lengths.size())), per_head(s.key_heads > 0) {
    std::vector<std::int32_t> ends = {0}, numbers;
    for (const std::int64_t length : s.lengths) ends.push_back(static_cast<std::int32_t>(rows += length)), numbers.push_back(static_cast<std::int32_t>(numbers.size()));
    const std::int64_t h = s.heads, d = kWidth, keys = per_head ? s.key_heads : h;
    const DType in = DType::kBF16;
    q = {in, {rows, keys, d}, Fill::kNormal, 0, 1, 1};
    k = {in, {rows, keys, d}, Fill::kNormal, 0, 1, 2};
    v = {in, {rows, h, d}, Fill::kNormal, 0, 1, 3};
    if (per_head) f = {in, {rows, h}, Fill::kNormal, 0, 0.5f, 4};
    else f = {in, {rows, h, d}, Fill::kNormal, 0, s.real_gates ? 0.5f : 1.0f, 4};
    b = {in, {rows, h}, Fill::kNormal, 0, 1, 5};
    a_log = {DType::kF32, {h}};
    if (per_head) dt_bias = {DType::kF32, {h}, Fill::kUniform, -5, 1, 7};
    else dt_bias = s.real_gates ? DeviceTensor{DType::kF32, {h * d}, Fill::kUniform, -7, 4, 7} : DeviceTensor{DType::kF32, {h * d}};
    pages = {DType::kF32, {sequences, h, d, d}, Fill::kNormal, 0, 0.3f, 12};
    cu = {DType::kI32, {sequences + 1}};
    slots = {DType::kI32, {sequences}};
    cu.upload(ends.data());
    slots.upload(numbers.data());
    o = {in, {rows, h, d}};
    const auto need = cuda::delta_prefill_workspace(args());
    workspace = {DType::kU8, {std::max({std::int64_t{256}, need.least, std::min(need.all, workspace_bytes)})}};
  }

  DeltaPrefillArgs args() const {
    DeltaPrefillArgs a;
    a.in.q = q, a.in.k = k, a.in.v = v, a.in.f = f, a.in.b = b, a.in.a_log = a_log, a.in.dt_bias = dt_bias;
    a.in.q_scale = 0.08838834764f;
    if (per_head) a.in.gate = DeltaGate::kSoftplus;
    a.pages = pages, a.cu_seqlens = cu, a.slots = slots, a.o = o, a.workspace = workspace;
    return a;
  }
};

constexpr std::int64_t kChecked = 1'000'000;  ///< rows times heads up to which the truth is computed

void run(const Shape& shape, const char* what, std::int64_t workspace_bytes, Report& report) {
  const std::int64_t h = shape.heads, d = kWidth;
  Result result;
  result.name = shape.key_heads > 0 ? "gdn_prefill H=" + std::to_string(shape.key_heads) + "/" + std::to_string(h) + " " + what
                                    : "kda_prefill H=" + std::to_string(h) + " " + what + (shape.real_gates ? " real" : " random");
  if (!wanted(result.name)) return;
  const Problem p(shape, workspace_bytes);
  if (selection().check) {
    const DeviceTensor pages(DType::kF64, {p.sequences, h, d, d}), o(DType::kF64, {p.rows, h, d});
    convert(p.pages, pages);
    DeltaStepArgs truth;
    truth.in = p.args().in;
    truth.pages = pages, truth.cu_seqlens = p.cu, truth.slots = p.slots, truth.o = o;
    if (p.rows * h <= kChecked) cuda::ref_delta_step(truth);
    cuda::delta_prefill(p.args(), nullptr);
    check(cudaDeviceSynchronize(), "delta_prefill");
    if (p.rows * h <= kChecked) {
      result.output = compare(p.o, o);
      result.state = compare(p.pages, pages);
    }
  }
  result.microseconds = time_graph(3, [&](int, cudaStream_t stream) { cuda::delta_prefill(p.args(), stream); });
  const double head_rows = static_cast<double>(p.rows * h);
  const double numbers = p.per_head ? 2.0 * kWidth * (1 + static_cast<double>(shape.key_heads) / static_cast<double>(h)) + 2 : 5 * kWidth + 1;
  result.bytes = head_rows * numbers * 2 + static_cast<double>(p.sequences * h) * 2 * kWidth * kWidth * 4;
  result.flops = head_rows * (6.0 * kWidth * kWidth + 64 * kWidth * 8.0);
  result.target_us = shape.target_us;
  report.add(result);
}

}  // namespace

void delta_prefill_cases(Report& report) {
  const std::vector<std::int64_t> one = {8192}, eight(8, 1024), ragged = {1300, 547, 2048, 963, 271, 3063};
  constexpr std::int64_t kAll = 4ll << 30;
  run({96, one, false, 400}, "T=8192", kAll, report);
  run({96, one, true, 400}, "T=8192", kAll, report);
  run({96, eight, true, 400}, "8 x 1024", kAll, report);
  run({96, ragged, true, 400}, "ragged", kAll, report);
  run({96, {1024}, true, 80}, "T=1024", kAll, report);
  for (const bool real : {false, true}) {
    run({32, one, real, 200}, "T=8192", kAll, report);
    run({12, {2048}, real, real ? 35.0 : 23.0}, "T=2048", kAll, report);
    run({12, one, real, real ? 80.0 : 53.0}, "T=8192", kAll, report);
    run({12, {65536}, real, real ? 750.0 : 550.0}, "T=65536", kAll, report);
    run({96, {65536}, real, 3000}, "T=65536", kAll, report);
  }
}

void scalar_prefill_cases(Report& report) {
  const std::vector<std::int64_t> one = {8192}, eight(8, 1024);
  for (const auto& [keys, heads, target] : {std::tuple<std::int64_t, std::int64_t, double>{16, 64, 300}, {16, 32, 200}, {2, 8, 100}}) {
    run({heads, one, true, target, keys}, "T=8192", std::int64_t{4} << 30, report);
    run({heads, eight, true, 0, keys}, "8 x 1024", std::int64_t{4} << 30, report);
  }
}

}  // namespace palimpsest::bench
