// Routed experts against the machine's limits. Bytes: the weights of the experts that the batch
// names. Arguments: weight format (0 BF16, 3 MXFP4), tokens, top_k, experts, width, inter, threads.

#include "bench_support.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/experts.h"

#include <deque>
#include <set>

namespace palimpsest::bench {
namespace {

void experts(benchmark::State& state) {
  const auto format = static_cast<Format>(state.range(0));
  const std::int64_t tokens = state.range(1), top_k = state.range(2), count = state.range(3),
                     width = state.range(4), inter = state.range(5);
  const int threads = static_cast<int>(state.range(6));
  std::deque<Weight> weights;
  std::vector<ExpertMatrices> matrices;
  for (std::int64_t e = 0; e < count; ++e) {
    const Matrix w1 = weights.emplace_back(format, inter, width).matrix(),
                 w3 = weights.emplace_back(format, inter, width).matrix();
    matrices.push_back({w1, w3, weights.emplace_back(format, width, inter).matrix()});
  }
  std::vector<float> x = random_floats(tokens * width, 1), y(x.size()),
                     route_weights(static_cast<std::size_t>(tokens * top_k), 0.5f);
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::set<std::int32_t> chosen;
    for (std::uint64_t draw = 0; static_cast<std::int64_t>(chosen.size()) < top_k; ++draw) {
      chosen.insert(static_cast<std::int32_t>(
          static_cast<double>(count) * base::uniform(2, static_cast<std::uint64_t>(t), draw)));
    }
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  ExecContext ctx(threads);
  ctx.workspace.reserve(cpu::experts_workspace_bytes(tokens, top_k, width, inter, count));
  const ExpertsArgs args{
      .x = Tensor::contiguous(x.data(), DType::kF32, {tokens, width}),
      .ids = Tensor::contiguous(ids.data(), DType::kI32, {tokens, top_k}),
      .weights = Tensor::contiguous(route_weights.data(), DType::kF32, {tokens, top_k}),
      .experts = matrices.data(),
      .num_experts = count,
      .glu = {.kind = Glu::kSitu, .beta = 4, .linear_beta = 25},
      .y = Tensor::contiguous(y.data(), DType::kF32, {tokens, width})};
  for (auto _ : state) {
    cpu::experts(ctx, args);
    benchmark::ClobberMemory();
  }
  const std::int64_t expert_bytes = 2 * matrices[0].w1.bytes() + matrices[0].w2.bytes();
  const std::int64_t bytes =
      expert_bytes *
      static_cast<std::int64_t>(std::set<std::int32_t>(ids.begin(), ids.end()).size());
  report_shares(state, 6.0 * static_cast<double>(tokens * top_k * width * inter),
                static_cast<double>(bytes), bytes, threads);
  state.SetLabel(std::string(format_name(format)) + " " + std::string(cpu::active_target()));
}

void shapes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    for (const int format : {0, 3}) {
      for (const std::int64_t tokens : {1, 64, 512})
        b->Args({format, tokens, 4, 16, 192, 96, threads});
      for (const std::int64_t tokens : {1, 16})
        b->Args({format, tokens, 16, 32, 3584, 3072, threads});
      for (const std::int64_t tokens : {1, 512})
        b->Args({format, tokens, 8, 64, 2304, 1024, threads});
    }
  }
  b->ArgNames({"format", "tokens", "top_k", "experts", "width", "inter", "threads"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}
BENCHMARK(experts)->Apply(shapes);

}  // namespace
}  // namespace palimpsest::bench

BENCHMARK_MAIN();
