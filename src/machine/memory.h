#pragma once

#include <cstdint>

namespace palimpsest::machine {

/// Bytes this process may still take without swapping: what the system calls available, or what is left of a cgroup's limit (v2 or v1)
/// where that is less. Pages of cached files count as available in both.
std::int64_t available_memory();

/// Highest resident size of this process so far, in bytes (VmHWM); 0 where the system does not tell.
std::int64_t peak_resident_memory();

}  // namespace palimpsest::machine
