// Snapshots against memcpy, look-up in a large prefix tree, and the time to the first token after
// an edit of a long prompt.
//
//     bench_state --benchmark_filter='Snapshot|Restore|Memcpy|LookUp'
//     bench_state --benchmark_filter=FirstToken        (a cold prompt of 32,768 tokens: a minute or
//     so)

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "palimpsest/session.h"
#include "runtime/prefix_tree.h"
#include "state/state_pool.h"

namespace palimpsest {
namespace {

/// Pages of `layers` KDA layers of `heads` heads of 128 x 128 and their tails; one latent list for
/// every three of them.
StateSpec spec(int layers, std::int64_t heads) {
  StateSpec s;
  for (int l = 0; l < layers; ++l) {
    s.entries.push_back({StateKind::kPage, l, "page", DType::kF32, {heads, 128, 128}});
    for (const char* name : {"conv_q", "conv_k", "conv_v"})
      s.entries.push_back({StateKind::kConvTail, l, name, DType::kF32, {3, heads * 128}});
    if (l % 3 == 2) s.entries.push_back({StateKind::kList, l, "latent", DType::kBF16, {576}});
  }
  return s;
}

/// 0: a small model, 4.8 MB of pages and tails; 1: an eighth of Kimi K3's layers, 59 MB.
StateSpec spec_of(std::int64_t size) {
  return size == 0 ? spec(24, 3) : spec(9, 96);
}

struct Pool {
  explicit Pool(std::int64_t size)
      : pool(spec_of(size), {.slots = 1,
                             .tokens = 4096,
                             .max_length = 4096,
                             .cache_bytes = 3 * spec_of(size).bytes_per_sequence()}),
        slot(pool.acquire()) {
    const std::int32_t slots[1] = {slot};
    const std::int64_t cu[2] = {0, 1000};
    pool.prepare(slots, cu);
    pool.advance(slots, cu);
  }
  StatePool pool;
  std::int32_t slot;
};

void Memcpy(benchmark::State& state) {
  const std::int64_t bytes = spec_of(state.range(0)).bytes_per_sequence();
  Buffer from(bytes), to(bytes);
  std::memset(from.data(), 1, static_cast<std::size_t>(bytes));
  std::memset(to.data(), 1, static_cast<std::size_t>(bytes));
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), static_cast<std::size_t>(bytes));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}
BENCHMARK(Memcpy)->Arg(0)->Arg(1);

void Snapshot(benchmark::State& state) {
  Pool p(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(p.pool.snapshot(p.slot));
  state.SetBytesProcessed(state.iterations() * p.pool.fixed_bytes());
}
BENCHMARK(Snapshot)->Arg(0)->Arg(1);

void Restore(benchmark::State& state) {
  Pool p(state.range(0));
  const auto snapshot = p.pool.snapshot(p.slot);
  for (auto _ : state) benchmark::DoNotOptimize(p.pool.restore(p.slot, *snapshot));
  state.SetBytesProcessed(state.iterations() * p.pool.fixed_bytes());
}
BENCHMARK(Restore)->Arg(0)->Arg(1);

/// Two conversations of half a million tokens each that part at 1,000, with a mark every 4,096
/// tokens: looks up one of them.
void LookUp(benchmark::State& state) {
  PrefixTree tree;
  std::vector<std::int32_t> a(1 << 19), b;
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<std::int32_t>(base::uniform(1, 1, i) * 100000);
  b = a;
  for (std::size_t i = 1000; i < b.size(); ++i) b[i] += 1;
  for (std::size_t end = 4096; end <= a.size(); end += 4096) {
    tree.at(std::span(a).first(end));
    tree.at(std::span(b).first(end));
  }
  for (auto _ : state) benchmark::DoNotOptimize(tree.match(b).length);
  state.counters["tokens"] = static_cast<double>(tree.tokens());
}
BENCHMARK(LookUp)->Unit(benchmark::kMicrosecond);

double seconds(const auto& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// 20 tokens changed 100 before the end of a prompt of 32,768, on the model at PALIMPSEST_MODEL
/// (default models/demo).
void FirstToken(benchmark::State& state) {
  const char* path = std::getenv("PALIMPSEST_MODEL");
  const auto model = Model::load(path ? path : "models/demo");
  const std::int64_t length = state.range(0);
  Session session(model, {.context = length + 64, .cache_bytes = 256 << 20});
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  for (std::size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<std::int32_t>(base::uniform(2, 2, i) * 3000);
  for (auto _ : state) {
    session.reset();
    const double cold = seconds([&] { session.resume(prompt); });
    std::vector<double> warm;
    PromptCounts counts;
    for (int edit = 0; edit < 9; ++edit) {
      for (std::size_t i = prompt.size() - 120; i < prompt.size() - 100; ++i)
        prompt[i] = (prompt[i] + 1) % 3000;
      warm.push_back(seconds([&] { counts = session.resume(prompt); }));
    }
    std::nth_element(warm.begin(), warm.begin() + 4, warm.end());
    state.counters["cold_s"] = cold;
    state.counters["warm_s"] = warm[4];
    state.counters["times_sooner"] = cold / warm[4];
    state.counters["cached"] = static_cast<double>(counts.cached_tokens);
    state.counters["replayed"] = static_cast<double>(counts.replayed_tokens);
    state.counters["computed"] = static_cast<double>(counts.computed_tokens);
  }
}
BENCHMARK(FirstToken)->Arg(32768)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace palimpsest

BENCHMARK_MAIN();
