// Softmax attention with grouped keys and values against this machine's floors: multiply-adds of the pairs that a causal row sees as a share
// of the multiply-add rate, bytes of the list as a share of the read bandwidth over a buffer of that size. Heads of 128. Arguments: query
// heads, key heads, tokens before, rows, threads.

#include <cmath>
#include <numeric>

#include "bench_support.h"
#include "kernels/cpu/cpu_kernels.h"

namespace palimpsest::bench {
namespace {

constexpr std::int64_t kHead = 128, kBlock = 64;

void softmax_attention(benchmark::State& state) {
  const std::int64_t heads = state.range(0), kv_heads = state.range(1), rows = state.range(3);
  std::int64_t past = state.range(2);
  const int threads = static_cast<int>(state.range(4));
  const std::int64_t width = 2 * kHead * kv_heads, blocks = (past + rows + kBlock - 1) / kBlock;
  std::vector<std::uint16_t> list(static_cast<std::size_t>(blocks * kBlock * width));
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = float_to_bf16(static_cast<float>(base::uniform(1, i % 65536, 0) - 0.5));
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  std::vector<float> q = random_floats(rows * heads * kHead, 2), o(q.size());
  std::vector<std::int64_t> cu = {0, rows};
  std::int32_t slot = 0;

  SoftmaxAttentionArgs args;
  args.q = Tensor::contiguous(q.data(), DType::kF32, {rows, heads, kHead});
  args.list = {Tensor::contiguous(list.data(), DType::kBF16, {blocks, kBlock, width}), Tensor::contiguous(table.data(), DType::kI32, {1, blocks})};
  args.rows = {Tensor::contiguous(cu.data(), DType::kI64, {2}), Tensor::contiguous(&slot, DType::kI32, {1})};
  args.past = Tensor::contiguous(&past, DType::kI64, {1});
  args.num_kv_heads = kv_heads;
  args.scale = 1 / std::sqrt(static_cast<float>(kHead));
  args.o = Tensor::contiguous(o.data(), DType::kF32, {rows, heads, kHead});

  ExecContext ctx(threads);
  for (auto _ : state) {
    cpu::softmax_attention(ctx, args);
    benchmark::ClobberMemory();
  }
  const double pairs = static_cast<double>(rows * past + rows * (rows + 1) / 2);
  const std::int64_t bytes = 2 * (past + rows) * width;
  report_shares(state, 4.0 * pairs * static_cast<double>(heads * kHead), static_cast<double>(bytes), bytes, threads);
  state.SetLabel(std::string(cpu::active_target()));
}

/// Decode after a short and a long past, with and without grouping; prefill.
void shapes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    for (const std::int64_t kv_heads : {4, 16}) {
      for (const std::int64_t past : {1023, 16383}) b->Args({16, kv_heads, past, 1, threads});
      for (const std::int64_t rows : {512, 4096}) b->Args({16, kv_heads, 0, rows, threads});
    }
  }
  b->ArgNames({"heads", "kv", "past", "rows", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(softmax_attention)->Apply(shapes);

}  // namespace
}  // namespace palimpsest::bench

BENCHMARK_MAIN();
