#pragma once

#include "kernels/op_args.h"

namespace palimpsest::ops {

/// A list memory as kernels read it. Whether the table's entries are in range is the state pool's promise.
inline bool is_paged_list(const PagedList& list) {
  const bool stored = list.blocks.dtype == DType::kF32 || list.blocks.dtype == DType::kBF16;
  return stored && list.blocks.rank == 3 && list.blocks.is_contiguous() && list.block_tokens() > 0 &&
         list.table.dtype == DType::kI32 && list.table.rank == 2 && (list.table.size(1) <= 1 || list.table.stride(1) == 1);
}

}  // namespace palimpsest::ops
