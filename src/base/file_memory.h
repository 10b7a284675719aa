#pragma once

#include <cstddef>
#include <span>

#include "base/error.h"

// What can be done with the bytes of a MappedFile beside reading them.

namespace palimpsest::base {

/// Puts a copy of mapped bytes (a whole mapping) into memory of this process in place of the mapping, at the same addresses, in huge pages
/// where the system grants them: nothing is read from the disk again, nor kept in the system's cache for it. Nobody may read the bytes
/// meanwhile. Error kOutOfMemory.
Result<bool> copy_into_memory(std::span<const std::byte> mapping);

/// Reads bytes and keeps them from ever leaving memory. Error kOutOfMemory, with RLIMIT_MEMLOCK where there is such a limit.
Result<bool> lock_in_memory(std::span<const std::byte> bytes);

}  // namespace palimpsest::base
