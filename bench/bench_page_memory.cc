// Page memory (K = V = 128) against the machine's limits, measured in the same run. Prefill: operations of the recurrence (6KV a token and
// head with the delta rule, 4KV without; the chunk's own terms are overhead) as a share of the multiply-add rate, of_fma. Decode: bytes of
// the pages, read and written once, as a share of what a sweep that reads and writes memory of that size reaches, of_update. Arguments:
// policy (0 KDA: a decay for each channel; 1 Gated DeltaNet: one for each head; 2 DeltaNet: none; 3 linear attention: plain writes), rows of
// the sequence (1: step), heads, threads.

#include "bench_support.h"
#include "kernels/cpu/cpu_kernels.h"

namespace palimpsest::bench {
namespace {

constexpr std::int64_t kWidth = 128;

struct Problem {
  Problem(std::int64_t num_rows, std::int64_t num_heads)
      : rows(num_rows),
        heads(num_heads),
        cu{0, num_rows},
        q(random_floats(rows * heads * kWidth, 1)),
        k(random_floats(rows * heads * kWidth, 2)),
        v(random_floats(rows * heads * kWidth, 3)),
        g(random_floats(rows * heads * kWidth, 4)),
        beta(static_cast<std::size_t>(rows * heads), 0.5f),
        o(v.size()),
        pages(heads * kWidth * kWidth * 4) {
    for (float& x : k) x *= 0.15f;     // keys of about unit norm
    for (float& x : g) x = -1.0f - x;  // log decays in (-2, 0)
  }

  PageMemoryArgs args(int policy) {
    const auto f32 = [this](std::vector<float>& x) {
      return Tensor::contiguous(x.data(), DType::kF32, {rows, heads, kWidth});
    };
    PageMemoryArgs a;
    a.q = f32(q);
    a.k = f32(k);
    a.v = f32(v);
    a.decay = policy == 0 ? PageDecay::kChannel : policy == 1 ? PageDecay::kHead : PageDecay::kNone;
    a.write = policy == 3 ? PageWrite::kPlain : PageWrite::kDelta;
    if (policy == 0) a.g = f32(g);
    if (policy == 1) a.g = Tensor::contiguous(g.data(), DType::kF32, {rows, heads});
    a.beta = Tensor::contiguous(beta.data(), DType::kF32, {rows, heads});
    a.pages = pages.view(DType::kF32, {1, heads, kWidth, kWidth});
    a.rows = {Tensor::contiguous(cu.data(), DType::kI64, {2}),
              Tensor::contiguous(&slot, DType::kI32, {1})};
    a.past = Tensor::contiguous(&past, DType::kI64, {1});
    a.o = f32(o);
    return a;
  }

  std::int64_t rows, heads;
  std::vector<std::int64_t> cu;
  std::int32_t slot = 0;
  std::int64_t past = 0;
  std::vector<float> q, k, v, g, beta, o;
  Buffer pages;
};

void page_memory(benchmark::State& state) {
  const int policy = static_cast<int>(state.range(0)), threads = static_cast<int>(state.range(3));
  const std::int64_t rows = state.range(1), heads = state.range(2);
  Problem problem(rows, heads);
  const PageMemoryArgs args = problem.args(policy);
  ExecContext ctx(threads);
  for (auto _ : state) {
    cpu::page_memory(ctx, args);
    benchmark::ClobberMemory();
  }
  const double products = policy == 3 ? 4.0 : 6.0, iterations = static_cast<double>(state.iterations());
  const double recurrence = products * static_cast<double>(kWidth * kWidth * rows * heads), moved = 2.0 * static_cast<double>(args.pages.bytes());
  using benchmark::Counter;
  state.counters["flops"] = Counter(recurrence * iterations, Counter::kIsRate);
  state.counters["of_fma"] = Counter(recurrence * iterations / fma_limit(threads), Counter::kIsRate);
  state.counters["of_update"] = Counter(moved * iterations / update_limit(args.pages.bytes(), threads), Counter::kIsRate);
  state.SetLabel(std::string(cpu::active_target()));
}

/// Decode with one page in L1/L2, the demonstration model's three, those of Kimi Linear (32) and
/// Kimi K3 (96); prefill.
void shapes(benchmark::internal::Benchmark* b) {
  for (const int threads : {1, 2}) {
    for (const std::int64_t heads : {1, 3, 32, 96}) b->Args({0, 1, heads, threads});
    for (const std::int64_t rows : {2, 4, 16, 64, 512, 4096}) b->Args({0, rows, 3, threads});
    for (const int policy : {1, 2, 3}) b->Args({policy, 1, 96, threads})->Args({policy, 512, 3, threads});
    for (const int policy : {0, 1}) b->Args({policy, 512, 32, threads});
  }
  b->ArgNames({"policy", "rows", "heads", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(page_memory)->Apply(shapes);

}  // namespace
}  // namespace palimpsest::bench

BENCHMARK_MAIN();
