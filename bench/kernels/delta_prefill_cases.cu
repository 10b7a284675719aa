// Prefill of KDA layers, K = V = 128, F32 state. "random": gates of public benchmarks, about -2.5 nats a token on every channel; "real":
// channels from -0.005 to -5 nats mixed.

#include <algorithm>
#include <string>
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
};

struct Problem {
  std::int64_t rows = 0, sequences;
  DeviceTensor q, k, v, f, b, a_log, dt_bias, pages, cu, slots, o, workspace;

  Problem(const Shape& s, std::int64_t workspace_bytes) : sequences(static_cast<std::int64_t>(s.lengths.size())) {
    std::vector<std::int32_t> ends = {0}, numbers;
    for (const std::int64_t length : s.lengths) ends.push_back(static_cast<std::int32_t>(rows += length)), numbers.push_back(static_cast<std::int32_t>(numbers.size()));
    const std::int64_t h = s.heads, d = kWidth;
    const DType in = DType::kBF16;
    q = {in, {rows, h, d}, Fill::kNormal, 0, 1, 1};
    k = {in, {rows, h, d}, Fill::kNormal, 0, 1, 2};
    v = {in, {rows, h, d}, Fill::kNormal, 0, 1, 3};
    f = {in, {rows, h, d}, Fill::kNormal, 0, s.real_gates ? 0.5f : 1.0f, 4};
    b = {in, {rows, h}, Fill::kNormal, 0, 1, 5};
    a_log = {DType::kF32, {h}};
    dt_bias = s.real_gates ? DeviceTensor{DType::kF32, {h * d}, Fill::kUniform, -7, 4, 7} : DeviceTensor{DType::kF32, {h * d}};
    pages = {DType::kF32, {sequences, h, d, d}, Fill::kNormal, 0, 0.3f, 12};
    cu = {DType::kI32, {sequences + 1}};
    slots = {DType::kI32, {sequences}};
    cu.upload(ends.data());
    slots.upload(numbers.data());
    o = {in, {rows, h, d}};
    const auto need = cuda::delta_prefill_workspace(rows, sequences, h);
    workspace = {DType::kU8, {std::max(need.least, std::min(need.all, workspace_bytes))}};
  }

  DeltaPrefillArgs args() const {
    DeltaPrefillArgs a;
    a.in.q = q, a.in.k = k, a.in.v = v, a.in.f = f, a.in.b = b, a.in.a_log = a_log, a.in.dt_bias = dt_bias;
    a.in.q_scale = 0.08838834764f;
    a.pages = pages, a.cu_seqlens = cu, a.slots = slots, a.o = o, a.workspace = workspace;
    return a;
  }
};

constexpr std::int64_t kChecked = 1'000'000;  ///< rows times heads up to which the truth is computed

void run(const Shape& shape, const char* what, std::int64_t workspace_bytes, Report& report) {
  const Problem p(shape, workspace_bytes);
  const std::int64_t h = shape.heads, d = kWidth;
  Result result;
  result.name = "kda_prefill H=" + std::to_string(h) + " " + what + (shape.real_gates ? " real" : " random") + " ws " +
                std::to_string(p.workspace.get().bytes() >> 20) + " MiB";
  {
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
  result.bytes = head_rows * (5 * kWidth + 1) * 2 + static_cast<double>(p.sequences * h) * 2 * kWidth * kWidth * 4;
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
  run({32, one, true, 200}, "T=8192", kAll, report);
  run({12, one, true, 80}, "T=8192", kAll, report);
  run({12, {2048}, true, 35}, "T=2048", kAll, report);
  run({96, {65536}, true, 3000}, "T=65536", kAll, report);
}

}  // namespace palimpsest::bench
