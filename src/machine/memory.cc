#include "machine/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace palimpsest::machine {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/// The number behind "key:" in files like /proc/meminfo ("MemAvailable:   123 kB"), in bytes.
std::optional<std::int64_t> kilobytes_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) != 0) continue;
    return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return std::nullopt;
}

/// A file that holds one number; nothing for "max", absent or unreadable ones.
std::optional<std::int64_t> number_file(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value && value >= 0) return value;
  return std::nullopt;
}

/// The number behind a word in a cgroup's memory.stat.
std::int64_t stat_field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  for (std::int64_t value = 0; file >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

std::int64_t left_in_cgroup(const std::string& limit, const std::string& usage, const std::string& stat, const char* cache_key) {
  const auto most = number_file(limit), used = number_file(usage);
  if (!most || !used || *most >= kUnlimited / 2) return kUnlimited;
  return std::max<std::int64_t>(0, *most - *used + stat_field(stat, cache_key));
}

}  // namespace

std::int64_t available_memory() {
  const std::int64_t system = kilobytes_field("/proc/meminfo", "MemAvailable").value_or(kUnlimited);
  const std::string v2 = "/sys/fs/cgroup/", v1 = "/sys/fs/cgroup/memory/";
  return std::min({system,
                   left_in_cgroup(v2 + "memory.max", v2 + "memory.current", v2 + "memory.stat", "file"),
                   left_in_cgroup(v1 + "memory.limit_in_bytes", v1 + "memory.usage_in_bytes", v1 + "memory.stat", "total_cache")});
}

std::int64_t peak_resident_memory() { return kilobytes_field("/proc/self/status", "VmHWM").value_or(0); }

}  // namespace palimpsest::machine
