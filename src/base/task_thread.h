#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

namespace palimpsest::base {

/// One thread that does tasks, one after the other, in the order in which they came: for work that others are not to wait for. Any
/// thread may post. Tasks must not throw.
class TaskThread {
 public:
  using Task = std::function<void()>;
  enum class AtEnd { kFinish, kDrop };  ///< what the destructor does with tasks that have not begun

  explicit TaskThread(AtEnd at_end, std::size_t most = std::numeric_limits<std::size_t>::max())
      : at_end_(at_end), most_(most), thread_([this] { run(); }) {}
  /// Waits for the task that has begun.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  /// False, and `task` is not taken, when `most` wait already.
  [[nodiscard]] bool post(Task task);

 private:
  void run();

  const AtEnd at_end_;
  const std::size_t most_;
  std::mutex mutex_;  ///< of the three below
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace palimpsest::base
