#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace palimpsest::base {

/// A fixed set of threads that split index ranges statically: share s of n is always the same contiguous part of a range, so results
/// cannot depend on timing. (They must not depend on n either: that is the kernels' promise, which keep the order of every sum inside
/// one index.)
///
/// Who computes a share does depend on timing: worker s takes share s, unless the caller, done with share 0, found it not begun. So a
/// worker that gets no core (busy neighbours, more threads than cores) costs its help, not its time slice.
///
/// A pool of size 1 starts no threads. Workers poll for a while after a task, then sleep. parallel_for allocates nothing. One caller at
/// a time: a pool belongs to one forward pass. Tasks must not throw.
class ThreadPool {
 public:
  /// threads >= 1 in all, the caller included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  /// Calls f(begin, end, share) for a partition of [0, n) into at most size() shares, each at most once. Shares other than the last are
  /// multiples of `grain`. No two threads are in the same share at a time, so what belongs to one share needs no lock.
  template <class F>
  void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
    using Fn = std::remove_reference_t<F>;
    run(n, grain, [](void* context, std::int64_t begin, std::int64_t end, int share) {
      (*static_cast<Fn*>(context))(begin, end, share);
    }, const_cast<void*>(static_cast<const void*>(std::addressof(f))));
  }

  /// Cores this process may run on (its affinity mask), counting one hardware thread a core where the system tells.
  static int default_size();

 private:
  using TaskFn = void (*)(void* context, std::int64_t begin, std::int64_t end, int share);
  /// The last task in which a share was taken; alone in its cache line.
  struct alignas(64) Taken {
    std::atomic<std::uint64_t> generation{0};
  };
  void run(std::int64_t n, std::int64_t grain, TaskFn fn, void* context);
  bool take(int share, std::uint64_t generation);
  void compute(int share);
  void worker(int share);
  bool wait_for_task(std::uint64_t seen);

  const int size_;
  TaskFn fn_ = nullptr;
  void* context_ = nullptr;
  std::int64_t n_ = 0;
  std::int64_t indices_ = 0;  ///< of a share, a multiple of the grain
  std::atomic<std::uint64_t> generation_{0};
  std::unique_ptr<Taken[]> taken_;  ///< [size_]
  std::atomic<int> pending_{0};     ///< shares that are not computed yet
  std::atomic<bool> stop_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace palimpsest::base
