#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <vector>

namespace palimpsest::base {
namespace {

TEST(ThreadPool, CoversEveryIndexOnceAtEveryWidth) {
  for (int threads : {1, 2, 3, 5, 8}) {
    ThreadPool pool(threads);
    for (std::int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (std::int64_t grain : {1, 3, 16}) {
        std::vector<int> hits(static_cast<std::size_t>(n), 0);
        pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int) {
          for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
        });
        EXPECT_EQ(hits, std::vector<int>(static_cast<std::size_t>(n), 1)) << threads << " threads, n " << n << ", grain " << grain;
      }
    }
  }
}

TEST(ThreadPool, SplitsTheSameWayEveryTimeAndOnGrainBorders) {
  ThreadPool pool(3);
  std::vector<int> first;
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<int> owner(100, -1);
    pool.parallel_for(100, 8, [&](std::int64_t begin, std::int64_t end, int thread) {
      EXPECT_EQ(begin % 8, 0);
      for (std::int64_t i = begin; i < end; ++i) owner[static_cast<std::size_t>(i)] = thread;
    });
    if (repeat == 0) first = owner;
    EXPECT_EQ(owner, first);
  }
}

TEST(ThreadPool, SurvivesManyShortTasksAndSleepsBetweenThem) {
  ThreadPool pool(4);
  std::int64_t total = 0;
  for (int task = 0; task < 2000; ++task) {
    std::vector<std::int64_t> partial(4, 0);
    pool.parallel_for(16, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      partial[static_cast<std::size_t>(thread)] += end - begin;
    });
    total += std::accumulate(partial.begin(), partial.end(), std::int64_t{0});
    if (task % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // long enough for the workers to park
  }
  EXPECT_EQ(total, 2000 * 16);
}

TEST(ThreadPool, DefaultSizeIsAtLeastOne) { EXPECT_GE(ThreadPool::default_size(), 1); }

}  // namespace
}  // namespace palimpsest::base
