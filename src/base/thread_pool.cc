#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/cpu_cores.h"

namespace palimpsest::base {
namespace {

// Between two ops of a decode step lie a few microseconds, between two tokens some tens: waiting for that long must not cost a wake-up,
// which takes longer than many an op. So a waiting thread polls; after some 100 microseconds it offers its core to whoever else is
// ready, and after two idle milliseconds a worker sleeps. Yielding sooner is worse beside busy neighbours, who keep the core for
// milliseconds: with every core also compiling, two threads decoded 23 tokens/s at 200 polls a yield and 470 at 5000 (measured before
// the caller took over what a worker has not begun).
constexpr int kPollsPerYield = 5000;
constexpr auto kIdleBeforeSleep = std::chrono::milliseconds(2);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Polls kPollsPerYield times, then yields once; true as soon as `ready` is.
template <class Ready>
bool poll(Ready ready) {
  for (int i = 0; i < kPollsPerYield; ++i) {
    if (ready()) return true;
    pause_briefly();
  }
  std::this_thread::yield();
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads), taken_(std::make_unique<Taken[]>(static_cast<std::size_t>(std::max(threads, 1)))) {
  PALIMPSEST_CHECK(threads >= 1, "a pool needs at least the calling thread");
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { worker(t); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::run(std::int64_t n, std::int64_t grain, TaskFn fn, void* context) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t grains = (n + grain - 1) / grain;
  if (size_ == 1 || grains == 1) {
    fn(context, 0, n, 0);
    return;
  }
  fn_ = fn;
  context_ = context;
  n_ = n;
  indices_ = (grains + size_ - 1) / size_ * grain;
  pending_.store(size_ - 1, std::memory_order_relaxed);
  const std::uint64_t generation = generation_.fetch_add(1) + 1;  // publishes the task
  if (sleeping_.load() > 0) {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  compute(0);
  for (int share = 1; share < size_; ++share) {
    if (!take(share, generation)) continue;
    compute(share);
    pending_.fetch_sub(1, std::memory_order_relaxed);
  }
  while (!poll([this] { return pending_.load(std::memory_order_acquire) == 0; })) {
  }
}

bool ThreadPool::take(int share, std::uint64_t generation) {
  // A task ends when all its shares are computed, so whoever took one may rely on the task's fields, and a worker that comes too late
  // finds a newer generation here and touches nothing.
  std::uint64_t expected = generation - 1;
  return taken_[static_cast<std::size_t>(share)].generation.compare_exchange_strong(expected, generation, std::memory_order_acq_rel);
}

void ThreadPool::compute(int share) {
  const std::int64_t begin = indices_ * share;
  const std::int64_t end = std::min(n_, begin + indices_);
  if (begin < end) fn_(context_, begin, end, share);
}

bool ThreadPool::wait_for_task(std::uint64_t seen) {
  const auto sleep_at = std::chrono::steady_clock::now() + kIdleBeforeSleep;
  do {
    if (poll([&] { return generation_.load(std::memory_order_acquire) != seen; })) return !stop_.load();
  } while (std::chrono::steady_clock::now() < sleep_at);
  std::unique_lock lock(mutex_);
  sleeping_.fetch_add(1);
  wake_.wait(lock, [&] { return generation_.load() != seen; });
  sleeping_.fetch_sub(1);
  return !stop_.load();
}

void ThreadPool::worker(int share) {
  // Starting from 0, not from the current value: a task published before this thread got going must not be missed.
  std::uint64_t seen = 0;
  while (wait_for_task(seen)) {
    seen = generation_.load(std::memory_order_acquire);  // tasks in between went on without this worker
    if (stop_.load()) return;                            // what was published is the end
    if (!take(share, seen)) continue;
    compute(share);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

int ThreadPool::default_size() { return static_cast<int>(physical_cores().size()); }

}  // namespace palimpsest::base
