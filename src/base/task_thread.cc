#include "base/task_thread.h"

#include <utility>

namespace palimpsest::base {

TaskThread::~TaskThread() {
  std::deque<Task> dropped;  // destroyed without the lock: what a task holds may do anything
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (at_end_ == AtEnd::kDrop) dropped.swap(tasks_);
    wake_.notify_one();
  }
  dropped.clear();
  thread_.join();
}

bool TaskThread::post(Task task) {
  const std::lock_guard lock(mutex_);
  if (tasks_.size() >= most_ || closing_) return false;
  tasks_.push_back(std::move(task));
  wake_.notify_one();
  return true;
}

void TaskThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes without the lock, too
    lock.lock();
  }
}

}  // namespace palimpsest::base
