// What lies between the products, at the sizes of Kimi K3: 96 heads of 128, 36864 channels of q, k and v, depth mixes over ten streams of 7168.

#include <string>
#include <vector>

#include "kernels/cases.h"
#include "kernels/cuda/activation_kernels.h"

namespace palimpsest::bench {
namespace {

using Fill = DeviceTensor::Fill;

void finish(Result result, Report& report, bool large) {
  if (large) result.target_us = result.bytes / (0.85 * ceilings().copy_tbs) * 1e-6;
  report.add(result);
}

void run_norm(std::int64_t rows, std::int64_t heads, Report& report) {
  Result result;
  result.name = "gated_rms_norm T=" + std::to_string(rows) + " H=" + std::to_string(heads);
  if (!wanted(result.name)) return;
  const DType type = DType::kBF16;
  const DeviceTensor x(type, {rows, heads, 128}, Fill::kNormal, 0, 1, 1), gate(type, {rows, heads, 128}, Fill::kNormal, 0, 1, 2), weight(DType::kF32, {128}, Fill::kNormal, 1, 0.1f, 3);
  const DeviceTensor y(type, {rows, heads, 128}), want(DType::kF64, {rows, heads, 128});
  GatedRmsNormArgs args{x, weight, gate, Unary::kSigmoid, 1e-5f, want};
  cuda::ref_gated_rms_norm(args);
  args.y = y;
  cuda::gated_rms_norm(args, nullptr);
  result.output = compare(y, want);
  result.microseconds = time_graph(4, [&](int, cudaStream_t stream) { cuda::gated_rms_norm(args, stream); });
  result.bytes = static_cast<double>(rows * heads * 128) * 3 * 2;
  finish(result, report, rows > 1000);
}

void run_conv(const std::vector<std::int64_t>& lengths, std::int64_t channels, const char* what, Report& report) {
  Result result;
  result.name = std::string("short_conv ") + what + " D=" + std::to_string(channels);
  if (!wanted(result.name)) return;
  std::vector<std::int64_t> ends = {0};
  std::vector<std::int32_t> numbers;
  for (const std::int64_t length : lengths) ends.push_back(ends.back() + length), numbers.push_back(static_cast<std::int32_t>(numbers.size()));
  const std::int64_t rows = ends.back(), sequences = static_cast<std::int64_t>(lengths.size());
  const DType type = DType::kBF16;
  const DeviceTensor x(type, {rows, channels}, Fill::kNormal, 0, 1, 1), weight(DType::kF32, {channels, 4}, Fill::kNormal, 0, 0.5f, 2), tails(type, {sequences, 3, channels}, Fill::kNormal, 0, 1, 3);
  const DeviceTensor y(type, {rows, channels}), want(DType::kF64, {rows, channels}), want_tails(DType::kF64, {sequences, 3, channels});
  const DeviceTensor cu(DType::kI64, {sequences + 1}), slots(DType::kI32, {sequences});
  cu.upload(ends.data());
  slots.upload(numbers.data());
  convert(tails, want_tails);
  ShortConvArgs args;
  args.x = x, args.weight = weight, args.tails = want_tails, args.rows = {cu, slots}, args.y = want;
  cuda::ref_short_conv(args);
  args.tails = tails, args.y = y;
  cuda::short_conv(args, nullptr);
  result.output = compare(y, want);
  result.state = compare(tails, want_tails);
  result.microseconds = time_graph(4, [&](int, cudaStream_t stream) { cuda::short_conv(args, stream); });
  result.bytes = static_cast<double>(rows * channels) * 2 * 2;
  finish(result, report, rows > 1000);
}

void run_residual(std::int64_t sources, std::int64_t rows, Report& report) {
  Result result;
  result.name = "attention_residual M=" + std::to_string(sources) + " T=" + std::to_string(rows) + " W=7168";
  if (!wanted(result.name)) return;
  const std::int64_t width = 7168, checked = std::min<std::int64_t>(rows, 512);
  const DType type = DType::kBF16;
  const DeviceTensor all(type, {sources, rows, width}, Fill::kNormal, 0, 1, 1), w(DType::kF32, {width}, Fill::kNormal, 0, 0.05f, 2), y(type, {rows, width}), want(DType::kF64, {checked, width});
  AttentionResidualArgs args;
  args.sources = all, args.w = w, args.eps = 1e-5f, args.y = want;
  args.sources.sizes[1] = checked;
  cuda::ref_attention_residual(args);
  args.sources = all, args.y = y;
  cuda::attention_residual(args, nullptr);
  result.output = compare(y.get().rows(0, checked), want);
  result.microseconds = time_graph(4, [&](int, cudaStream_t stream) { cuda::attention_residual(args, stream); });
  result.bytes = static_cast<double>((sources + 1) * rows * width) * 2;
  finish(result, report, rows > 1000);
}

}  // namespace

void activation_cases(Report& report) {
  run_norm(8192, 96, report);
  run_norm(64, 96, report);
  run_conv({8192}, 36864, "T=8192", report);
  run_conv({1300, 547, 2048, 963, 271, 3063}, 36864, "ragged", report);
  run_conv({8192}, 4608, "T=8192", report);
  run_residual(10, 8192, report);
  run_residual(9, 8192, report);
  run_residual(2, 8192, report);
  run_residual(10, 64, report);
}

}  // namespace palimpsest::bench
