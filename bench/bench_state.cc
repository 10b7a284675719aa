// Snapshots against memcpy, a session file against reading its bytes, look-up in a large prefix
// tree, and the time to the first token after an edit of a long prompt.
//
//     bench_state --benchmark_filter='Snapshot|Restore|Memcpy|LookUp'
//     bench_state --benchmark_filter=File                       (files in TMPDIR)
//     bench_state --benchmark_filter=FirstToken        (a cold prompt of 32,768 tokens: a minute or
//     so)

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/rng.h"
#include "palimpsest/session.h"
#include "runtime/prefix_tree.h"
#include "runtime/session_file.h"
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

/// One sequence of 960 tokens, a multiple of kPageBorder: with `rounded` pages its snapshots hold
/// them in BF16.
struct Pool {
  explicit Pool(std::int64_t size, bool rounded = false)
      : pool(with_pages(spec_of(size), rounded),
             {.slots = 1,
              .tokens = 4096,
              .max_length = 4096,
              .cache_bytes = 3 * spec_of(size).bytes_per_sequence()}),
        slot(pool.acquire()) {
    const std::int32_t slots[1] = {slot};
    const std::int64_t cu[2] = {0, 960};
    pool.prepare(slots, cu);
    pool.advance(slots, cu);
  }
  static StateSpec with_pages(StateSpec spec, bool rounded) {
    for (StateEntry& entry : spec.entries) {
      if (rounded && entry.kind == StateKind::kPage) entry.at_border = DType::kBF16;
    }
    return spec;
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

/// Bytes are those of the sequence, whose pages are F32, also where the snapshot holds BF16.
void Snapshot(benchmark::State& state, bool rounded) {
  Pool p(state.range(0), rounded);
  for (auto _ : state) benchmark::DoNotOptimize(p.pool.snapshot(p.slot));
  state.SetBytesProcessed(state.iterations() * p.pool.fixed_bytes());
  state.counters["held"] = static_cast<double>(p.pool.fixed_bytes(p.pool.length(p.slot)));
}
BENCHMARK_CAPTURE(Snapshot, f32, false)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(Snapshot, bf16, true)->Arg(0)->Arg(1);

void Restore(benchmark::State& state, bool rounded) {
  Pool p(state.range(0), rounded);
  const auto snapshot = p.pool.snapshot(p.slot);
  for (auto _ : state) benchmark::DoNotOptimize(p.pool.restore(p.slot, *snapshot));
  state.SetBytesProcessed(state.iterations() * p.pool.fixed_bytes());
}
BENCHMARK_CAPTURE(Restore, f32, false)->Arg(0)->Arg(1);
BENCHMARK_CAPTURE(Restore, bf16, true)->Arg(0)->Arg(1);

/// A saved conversation of 4,096 tokens without snapshots, in a folder for temporary files.
class SavedSession {
 public:
  explicit SavedSession(std::int64_t size)
      : pool_(spec_of(size), {.slots = 1, .tokens = 4096, .max_length = 4096, .vocab_size = 1000}),
        cache_(pool_) {
    std::string name = (std::filesystem::temp_directory_path() / "bench-state-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    if (fd < 0) throw std::runtime_error("no room for temporary files");
    ::close(fd);
    path_ = name;
    const std::vector<std::int32_t> prompt(4096, 1);
    const std::vector<float> logits(1000);
    const std::int32_t slots[1] = {*cache_.open(prompt)};
    for (auto ids = cache_.wanted(slots[0], 512); !ids.empty();
         ids = cache_.wanted(slots[0], 512)) {
      const std::int64_t cu[2] = {0, static_cast<std::int64_t>(ids.size())};
      pool_.prepare(slots, cu);
      pool_.advance(slots, cu);
      cache_.computed(slots[0], cu[1], logits);
    }
    save_session(path_, cache_, slots[0], {}, {}, 0);
    cache_.drop(slots[0]);
  }
  ~SavedSession() { std::filesystem::remove(path_); }
  SavedSession(const SavedSession&) = delete;
  SavedSession& operator=(const SavedSession&) = delete;

  std::int64_t bytes() const {
    return static_cast<std::int64_t>(std::filesystem::file_size(path_));
  }
  const std::filesystem::path& path() const { return path_; }
  /// Drops the file from the system's cache.
  void forget() const {
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
  void restore() {
    const std::int32_t slot = *cache_.open({});
    load_session(path_, cache_, slot, {});
    cache_.drop(slot);
  }

 private:
  StatePool pool_;
  SequenceCache cache_;
  std::filesystem::path path_;
};

/// Mapping, checksums and copies, of a file in the system's cache or on the disk.
void RestoreFile(benchmark::State& state, bool on_disk) {
  SavedSession session(state.range(0));
  for (auto _ : state) {
    state.PauseTiming();
    if (on_disk) session.forget();
    state.ResumeTiming();
    session.restore();
  }
  state.SetBytesProcessed(state.iterations() * session.bytes());
}
BENCHMARK_CAPTURE(RestoreFile, cached, false)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(RestoreFile, disk, true)->Arg(0)->Arg(1)->UseRealTime();

/// read(2) of the same file into memory that is there.
void ReadFile(benchmark::State& state, bool on_disk) {
  SavedSession session(state.range(0));
  std::vector<char> bytes(static_cast<std::size_t>(session.bytes()));
  for (auto _ : state) {
    state.PauseTiming();
    if (on_disk) session.forget();
    state.ResumeTiming();
    std::ifstream file(session.path(), std::ios::binary);
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * session.bytes());
}
BENCHMARK_CAPTURE(ReadFile, cached, false)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK_CAPTURE(ReadFile, disk, true)->Arg(0)->Arg(1)->UseRealTime();

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
