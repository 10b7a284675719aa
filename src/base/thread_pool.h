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

/// A fixed set of threads that split index ranges statically: thread t of n always gets the same contiguous part of a range,
/// so results cannot depend on timing. (They must not depend on n either: that is the kernels' promise, which keep the order of
/// every sum inside one index.)
///
/// The calling thread works too, as thread 0; a pool of size 1 starts no threads. Workers poll for a while after a task,
/// then sleep. parallel_for allocates nothing. One caller at a time: a pool belongs to one forward pass. Tasks must not throw.
class ThreadPool {
 public:
  /// threads >= 1 in all, the caller included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  /// Calls f(begin, end, thread) for a partition of [0, n). Parts other than the last are multiples of `grain`.
  template <class F>
  void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
    using Fn = std::remove_reference_t<F>;
    run(n, grain, [](void* context, std::int64_t begin, std::int64_t end, int thread) {
      (*static_cast<Fn*>(context))(begin, end, thread);
    }, const_cast<void*>(static_cast<const void*>(std::addressof(f))));
  }

  /// Cores this process may run on (its affinity mask), counting one hardware thread a core where the system tells.
  static int default_size();

 private:
  using TaskFn = void (*)(void* context, std::int64_t begin, std::int64_t end, int thread);
  void run(std::int64_t n, std::int64_t grain, TaskFn fn, void* context);
  void work_on_part(int thread);
  void worker(int thread);
  bool wait_for_task(std::uint64_t seen);

  const int size_;
  TaskFn fn_ = nullptr;
  void* context_ = nullptr;
  std::int64_t n_ = 0;
  std::int64_t part_ = 0;  ///< indices per thread, a multiple of the grain
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace palimpsest::base
