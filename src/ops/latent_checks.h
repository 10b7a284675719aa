#pragma once

#include "kernels/op_args.h"

namespace palimpsest::ops {

/// A list memory as kernels read it. Whether the table's entries are in range is the state pool's promise.
inline bool is_paged_list(const PagedList& list) {
  const bool plain = (list.blocks.dtype == DType::kF32 || list.blocks.dtype == DType::kBF16) && !list.q8.defined();
  // Scales lie behind the codes of a block, at an even address.
  const bool q8 = list.blocks.dtype == DType::kI8 && list.q8.defined() && list.blocks.size(2) == list.q8.row_bytes() &&
                  list.block_tokens() * list.q8.width() % 2 == 0;
  return (plain || q8) && list.blocks.rank == 3 && list.blocks.is_contiguous() && list.block_tokens() > 0 &&
         list.table.dtype == DType::kI32 && list.table.rank == 2 && (list.table.size(1) <= 1 || list.table.stride(1) == 1);
}

}  // namespace palimpsest::ops
