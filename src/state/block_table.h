#pragma once

#include "state/state_pool.h"

namespace palimpsest {

/// Bytes of the table that says where the blocks of each slot's lists lie: what a pool on a device takes there beside StatePool::bytes().
std::int64_t block_table_bytes(const StateSpec& spec, const StatePoolOptions& options);

}  // namespace palimpsest
