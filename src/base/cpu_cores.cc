#include "base/cpu_cores.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <string>

namespace palimpsest::base {

std::vector<int> physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    for (unsigned cpu = 0; cpu < std::min(std::thread::hardware_concurrency(), unsigned{CPU_SETSIZE}); ++cpu) CPU_SET(cpu, &allowed);
  }
  std::vector<int> cores;
  std::set<std::string> seen;  // lists of siblings: one a physical core
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = "cpu" + std::to_string(cpu);
    if (seen.insert(siblings).second) cores.push_back(cpu);
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

void pin_workers(ThreadPool& pool) {
  const std::vector<int> cores = physical_cores();
  std::atomic<int> begun{0};
  pool.parallel_for(pool.size(), 1, [&](std::int64_t share, std::int64_t, int) {
    begun.fetch_add(1);
    // The caller, who has share 0, waits here, since it would otherwise take a share that its worker has not begun.
    while (share == 0 && begun.load() < pool.size()) std::this_thread::yield();
    if (share == 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores[static_cast<std::size_t>(share) % cores.size()], &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
  });
}

}  // namespace palimpsest::base
