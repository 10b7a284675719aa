// Products with matrices in ggml's block formats against this machine's limits: weight bytes per second as a share of the read bandwidth over
// a buffer of that size (few rows), operations per second as a share of the multiply-add rate (many rows). Arguments: BlockType, rows of x,
// n, k, threads, bits of the activations (32: F32). CPU time beside time: on a machine that is not idle, the least of many repetitions.

#include "bench_support.h"
#include "kernels/cpu/cpu_kernels.h"

namespace palimpsest::bench {
namespace {

void blocks(benchmark::State& state) {
  const auto type = static_cast<BlockType>(state.range(0));
  const std::int64_t rows = state.range(1), n = state.range(2), k = state.range(3);
  const int threads = static_cast<int>(state.range(4));
  Matrix w;
  w.blocks = BlockTensor::contiguous(nullptr, type, n, k);
  // Random codes; every 16-bit word is a small F16 too, so that scales are finite and far from subnormal.
  std::vector<std::uint16_t> bytes(static_cast<std::size_t>((n * w.blocks.row_bytes + 1) / 2));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint16_t>(0x2000 + static_cast<int>(0x1000 * base::uniform(1, i % 65536, 0)));
  }
  w.blocks.data = bytes.data();
  std::vector<float> x = random_floats(rows * k, 1), y(static_cast<std::size_t>(rows * n));
  ExecContext ctx(threads);
  ctx.activations = state.range(5) == 8 ? Activations::kQ8 : state.range(5) == 16 ? Activations::kQ16 : Activations::kF32;
  const MatmulArgs args{.x = Tensor::contiguous(x.data(), DType::kF32, {rows, k}),
                        .w = w,
                        .y = Tensor::contiguous(y.data(), DType::kF32, {rows, n})};
  for (auto _ : state) {
    cpu::matmul(ctx, args);
    benchmark::ClobberMemory();
  }
  report_shares(state, 2.0 * static_cast<double>(rows * n * k), static_cast<double>(w.bytes()), w.bytes(), threads);
  state.SetLabel(std::string(block_type_name(type)) + " " + std::string(cpu::active_target()));
}

void shapes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    for (int type = 0; type < kNumBlockTypes; ++type) {
      for (const int bits : {32, 16, 8}) {
        b->Args({type, 1, 256, 4096, threads, bits});  // from L2
        for (const std::int64_t rows : {1, 4, 512}) b->Args({type, rows, 1024, 7168, threads, bits});
        if (block_columns(static_cast<BlockType>(type)) == 32) {  // rows that are no multiple of 256
          for (const std::int64_t rows : {1, 2, 4, 8, 64}) b->Args({type, rows, 384, 384, threads, bits});
        }
        b->Args({type, 1, 20480, 7168, threads, bits});
      }
    }
  }
  b->ArgNames({"type", "rows", "n", "k", "threads", "bits"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(blocks)->Apply(shapes);

}  // namespace
}  // namespace palimpsest::bench

BENCHMARK_MAIN();
