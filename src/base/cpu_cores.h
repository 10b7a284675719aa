#pragma once

#include <vector>

#include "base/thread_pool.h"

namespace palimpsest::base {

/// Of each physical core that this process may run on (its affinity mask), the first hardware thread, ascending; every hardware thread where
/// the system does not tell which share a core. Never empty.
std::vector<int> physical_cores();

/// Binds worker s of the pool to physical core s (modulo their number), so that the memory it touches first stays near it on machines with
/// several nodes. The calling thread is left free. Where the system refuses nothing changes.
void pin_workers(ThreadPool& pool);

}  // namespace palimpsest::base
