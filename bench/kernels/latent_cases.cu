// Latent attention (MLA) of Kimi K3 and Kimi Linear. Decode over a paged BF16 list of 576 numbers a token, blocks of 64 tokens in no order;
// prefill with heads of 192 and 128 channels. Bytes of decode are those of the list alone, flops of prefill those below the diagonal.

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cases.h"
#include "kernels/cuda/latent_kernels.h"

namespace palimpsest::bench {
namespace {

using Fill = DeviceTensor::Fill;
constexpr std::int64_t kRow = 576, kLatent = 512, kKeys = 192, kValues = 128, kBlock = 64;
constexpr float kScale = 0.0721687836f;  // 192^-1/2

struct DecodeShape {
  std::int64_t sequences, heads, length;
  bool gate;
  bool codes = false;  ///< 8-bit
};

/// Random codes and scales.
DeviceTensor make_codes(std::int64_t blocks) {
  DeviceTensor list(DType::kI8, {blocks, kBlock, kRow + 8}, Fill::kUniform, -127.9f, 127.9f, 1);
  const DeviceTensor scales(DType::kBF16, {blocks, kBlock * 4}, Fill::kUniform, 0.005f, 0.02f, 5);
  check(cudaMemcpy2D(static_cast<char*>(list.get().data) + kBlock * kRow, kBlock * (kRow + 8), scales.get().data, kBlock * 8, kBlock * 8, static_cast<std::size_t>(blocks),
                     cudaMemcpyDeviceToDevice),
        "scales");
  return list;
}

void run_decode(const DecodeShape& s, Report& report) {
  Result result;
  result.name = "mla_decode B=" + std::to_string(s.sequences) + " H=" + std::to_string(s.heads) + " L=" + std::to_string(s.length) + (s.gate ? " gate" : "") + (s.codes ? " 8-bit" : "");
  if (!wanted(result.name)) return;
  const std::int64_t blocks = (s.length + kBlock - 1) / kBlock, all = blocks * s.sequences;
  const DeviceTensor list = s.codes ? make_codes(all) : DeviceTensor(DType::kBF16, {all, kBlock, kRow}, Fill::kNormal, 0, 1, 1);
  const DeviceTensor q(DType::kBF16, {s.sequences, s.heads, kKeys}, Fill::kNormal, 0, 1, 2);
  const DeviceTensor kv_b(DType::kBF16, {s.heads * 256, kLatent}, Fill::kNormal, 0, 0.0442f, 3), gate(DType::kBF16, {s.sequences, s.heads, kValues}, Fill::kNormal, 0, 1, 4);
  const DeviceTensor table(DType::kI32, {s.sequences, blocks}), slots(DType::kI32, {s.sequences}), past(DType::kI64, {s.sequences});
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(all)), order(static_cast<std::size_t>(s.sequences));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i * 7919 % numbers.size());
  if (all % 7919 == 0) std::iota(numbers.begin(), numbers.end(), 0);
  std::iota(order.begin(), order.end(), 0);
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(s.sequences), s.length - 1);
  table.upload(numbers.data());
  slots.upload(order.data());
  past.upload(lengths.data());
  const DeviceTensor o(DType::kBF16, {s.sequences, s.heads, kValues}), workspace(DType::kU8, {cuda::latent_decode_workspace(s.sequences, s.heads, s.length)});
  LatentDecodeArgs args;
  args.q = q, args.kv_b = kv_b, args.list = {list, table, s.codes ? q8_latent_rows(kLatent, kRow - kLatent) : Q8Rows{}}, args.slots = slots, args.past = past, args.scale = kScale, args.o = o, args.workspace = workspace;
  if (s.gate) args.gate = gate;
  if (selection().check && s.sequences * s.length < 4'000'000) {
    const DeviceTensor want(DType::kF64, {s.sequences, s.heads, kValues});
    LatentDecodeArgs truth = args;
    truth.o = want;
    cuda::ref_latent_decode(truth, s.length);
    cuda::latent_decode(args, s.length, nullptr);
    check(cudaDeviceSynchronize(), "latent_decode");
    result.output = compare(o, want);
  }
  result.microseconds = time_graph(s.length * s.sequences > 500'000 ? 4 : 32, [&](int, cudaStream_t stream) { cuda::latent_decode(args, s.length, stream); });
  const double tokens = static_cast<double>(s.sequences * s.length);
  result.bytes = tokens * (s.codes ? kRow + 8 : kRow * 2);
  result.flops = tokens * static_cast<double>(s.heads) * 2 * (kRow + kLatent);
  const double copy_us = result.bytes / ceilings().copy_tbs * 1e-6, gemm_us = result.flops / std::max(ceilings().gemm_tflops, 1.0) * 1e-6;
  if (s.length > 100'000) result.target_us = s.heads > 64 ? 1.6 * std::max(copy_us, ceilings().gemm_tflops > 0 ? gemm_us : 0) : copy_us / 0.88;
  report.add(result);
}

struct PrefillShape {
  std::int64_t heads;
  std::vector<std::int64_t> past, rows;
};

void run_prefill(const PrefillShape& s, const char* what, Report& report) {
  Result result;
  result.name = "mla_prefill H=" + std::to_string(s.heads) + " " + what;
  if (!wanted(result.name)) return;
  std::vector<std::int32_t> ends = {0}, key_ends = {0};
  double pairs = 0;
  std::int64_t most_keys = 0;
  for (std::size_t n = 0; n < s.rows.size(); ++n) {
    const std::int64_t rows = s.rows[n], keys = s.past[n] + rows;
    ends.push_back(static_cast<std::int32_t>(ends.back() + rows));
    key_ends.push_back(static_cast<std::int32_t>(key_ends.back() + keys));
    most_keys = std::max(most_keys, keys);
    pairs += static_cast<double>(rows) * (static_cast<double>(s.past[n]) + 0.5 * static_cast<double>(rows + 1));
  }
  const std::int64_t rows = ends.back(), keys = key_ends.back(), count = static_cast<std::int64_t>(ends.size());
  const DType type = DType::kBF16;
  const DeviceTensor q(type, {rows, s.heads, kKeys}, Fill::kNormal, 0, 1, 1), k(type, {keys, s.heads, 128}, Fill::kNormal, 0, 1, 2), k_pe(type, {keys, 64}, Fill::kNormal, 0, 1, 3);
  const DeviceTensor v(type, {keys, s.heads, kValues}, Fill::kNormal, 0, 1, 4), o(type, {rows, s.heads, kValues}), cu(DType::kI32, {count}), cu_keys(DType::kI32, {count});
  cu.upload(ends.data());
  cu_keys.upload(key_ends.data());
  LatentPrefillArgs args;
  args.q = q, args.k = k, args.k_pe = k_pe, args.v = v, args.cu_seqlens = cu, args.cu_keys = cu_keys, args.scale = kScale, args.o = o;
  if (selection().check) {
    const DeviceTensor want(DType::kF64, {rows, s.heads, kValues});
    check(cudaMemset(want.get().data, 0xff, static_cast<std::size_t>(want.get().bytes())), "poison");  // NaN: not compared
    LatentPrefillArgs truth = args;
    truth.o = want;
    cuda::ref_latent_prefill(truth, most_keys, std::max<std::int64_t>(1, rows / 16));  // 16 rows of each head
    cuda::latent_prefill(args, nullptr);
    check(cudaDeviceSynchronize(), "latent_prefill");
    result.output = compare(o, want);
  }
  result.microseconds = time_graph(1, [&](int, cudaStream_t stream) { cuda::latent_prefill(args, stream); });
  result.flops = pairs * static_cast<double>(s.heads) * 2 * (kKeys + kValues);
  result.bytes = static_cast<double>(rows * s.heads * (kKeys + kValues) + keys * s.heads * 256) * 2;
  if (ceilings().gemm_tflops > 0) result.target_us = result.flops / (0.6 * ceilings().gemm_tflops) * 1e-6;
  report.add(result);
}

}  // namespace

void latent_decode_cases(Report& report) {
  for (const std::int64_t heads : {12, 16, 32, 64, 96, 128}) run_decode({8, heads, 131072, heads == 96}, report);
  run_decode({1, 96, 131072, true}, report);
  run_decode({1, 12, 131072, true}, report);
  run_decode({1, 96, 8192, true}, report);
  run_decode({64, 12, 4096, true}, report);
  run_decode({64, 96, 4096, true}, report);
  for (const std::int64_t heads : {12, 32, 96}) run_decode({8, heads, 131072, heads == 96, true}, report);
  run_decode({64, 12, 4096, true, true}, report);
  run_decode({12, 32, 1'048'560, false}, report);
  run_decode({24, 32, 1'048'560, false, true}, report);
}

void latent_prefill_cases(Report& report) {
  run_prefill({32, {0}, {8192}}, "T=8192", report);
  run_prefill({32, {0}, {65536}}, "T=65536", report);
  run_prefill({32, {0, 0, 0, 0, 0, 0}, {1300, 547, 2048, 963, 271, 3063}}, "ragged", report);
  run_prefill({32, {30000}, {2048}}, "T=2048 after 30000", report);
  run_prefill({96, {0}, {8192}}, "T=8192", report);
  run_prefill({12, {0}, {8192}}, "T=8192", report);
}

}  // namespace palimpsest::bench
