#include "base/task_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

namespace palimpsest::base {
namespace {

TEST(TaskThread, DoesTasksInTheirOrderAndRefusesTooMany) {
  std::vector<int> done;
  std::promise<void> go;
  {
    TaskThread thread(TaskThread::AtEnd::kFinish, 3);
    std::promise<void> begun;
    ASSERT_TRUE(thread.post([&] {
      begun.set_value();
      go.get_future().wait();
    }));
    begun.get_future().wait();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(thread.post([&done, i] { done.push_back(i); }));
    EXPECT_FALSE(thread.post([&done] { done.push_back(99); }));
    go.set_value();
  }
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2}));
}

TEST(TaskThread, DropsWhatHasNotBegunWhereItIsTold) {
  std::promise<void> begun, go;
  const auto held = std::make_shared<int>(0);
  auto thread = std::make_unique<TaskThread>(TaskThread::AtEnd::kDrop);
  ASSERT_TRUE(thread->post([&] {
    begun.set_value();
    go.get_future().wait();
  }));
  ASSERT_TRUE(thread->post([held] { ++*held; }));
  begun.get_future().wait();
  std::thread end([&] { thread.reset(); });
  while (held.use_count() > 1) std::this_thread::yield();  // dropped while the first still runs
  go.set_value();
  end.join();
  EXPECT_EQ(*held, 0);
}

}  // namespace
}  // namespace palimpsest::base
