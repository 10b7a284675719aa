#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "base/cpu_cores.h"

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

std::atomic<bool> held{false}, release_held{false};

/// A signal handler that keeps its thread until told: the thread of a worker that gets no core.
void hold(int) {
  held = true;
  while (!release_held) {
  }
}

TEST(ThreadPool, CallerTakesOverTheSharesOfAWorkerThatGetsNoCore) {
  ThreadPool pool(2);
  const pthread_t caller = pthread_self();
  pthread_t worker{};
  for (bool known = false; !known;) {
    pool.parallel_for(2, 1, [&](std::int64_t begin, std::int64_t, int) {
      if (begin == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the worker gets its share
      else if (pthread_equal(pthread_self(), caller) == 0) worker = pthread_self(), known = true;
    });
  }
  std::signal(SIGUSR1, hold);
  ASSERT_EQ(pthread_kill(worker, SIGUSR1), 0);
  while (!held) std::this_thread::yield();
  for (int task = 0; task < 100; ++task) {
    std::array<std::thread::id, 2> who;
    pool.parallel_for(2, 1, [&](std::int64_t begin, std::int64_t, int share) {
      EXPECT_EQ(begin, share);
      who[static_cast<std::size_t>(share)] = std::this_thread::get_id();
    });
    ASSERT_EQ(who[0], std::this_thread::get_id());
    ASSERT_EQ(who[1], std::this_thread::get_id());
  }
  release_held = true;  // the worker, far behind, finds nothing to do, and then takes part again
  for (bool back = false; !back;) {
    pool.parallel_for(2, 1, [&](std::int64_t begin, std::int64_t, int) {
      if (begin == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      else back = pthread_equal(pthread_self(), caller) == 0;
    });
  }
  std::signal(SIGUSR1, SIG_DFL);
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

TEST(ThreadPool, PinnedWorkersRunWhereTheyWerePut) {
  const std::vector<int> cores = physical_cores();
  EXPECT_EQ(static_cast<int>(cores.size()), ThreadPool::default_size());
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    pin_workers(pool);
    std::atomic<int> begun{0};
    std::vector<int> allowed(static_cast<std::size_t>(threads));
    pool.parallel_for(threads, 1, [&](std::int64_t share, std::int64_t, int) {
      begun.fetch_add(1);
      while (share == 0 && begun.load() < threads) std::this_thread::yield();
      cpu_set_t mask;
      sched_getaffinity(0, sizeof mask, &mask);
      allowed[static_cast<std::size_t>(share)] = CPU_COUNT(&mask) == 1 && CPU_ISSET(cores[static_cast<std::size_t>(share) % cores.size()], &mask);
    });
    for (std::size_t share = 1; share < allowed.size(); ++share) EXPECT_TRUE(allowed[share]) << share;
  }
}

}  // namespace
}  // namespace palimpsest::base
