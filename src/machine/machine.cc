#include "machine/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/thread_pool.h"
#include "machine/memory.h"
#include "machine/probe_kernels.h"

namespace palimpsest {
namespace {

/// A field of /proc/meminfo in bytes, 0 if absent.
std::int64_t meminfo(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (std::int64_t kib = 0; file >> name >> kib; std::getline(file, unit)) {
    if (name == field + ":") return kib * 1024;
  }
  return 0;
}

/// Memory limit of the control group (version 2) this process runs in; a missing file or "max" is
/// no limit.
std::int64_t cgroup_limit() {
  std::ifstream file("/sys/fs/cgroup/memory.max");
  std::int64_t value = 0;
  return file >> value ? value : std::numeric_limits<std::int64_t>::max();
}

std::int64_t cache_bytes(int name) {
  return std::max<std::int64_t>(0, sysconf(name));
}

}  // namespace

MachineInfo probe_machine() {
  MachineInfo info;
  info.cores = base::ThreadPool::default_size();
  info.l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE);
  info.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE);
  info.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE);
  info.memory_total = std::min(meminfo("MemTotal"), cgroup_limit());
  info.memory_available = std::min(machine::available_memory(), info.memory_total);
  info.target = machine::probe_target();
  return info;
}

}  // namespace palimpsest
