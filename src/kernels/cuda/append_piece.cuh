#pragma once

#include "kernels/cuda/plain/launch.cuh"
#include "kernels/ref/latent_append.h"

namespace palimpsest::cuda {

/// Numbers, or groups of 8-bit codes, of a row of a list: what is written one by one.
__host__ __device__ inline std::int64_t list_pieces(const PagedList& list) { return list.q8.defined() ? list.q8.scales() : list.blocks.sizes[2]; }

/// A piece of the row at an absolute `position` of a slot's list; column(c): the row's numbers.
template <class Column>
__device__ void append_piece(const PagedList& list, std::int64_t slot, std::int64_t position, std::int64_t piece, Column column) {
  const std::int64_t block_tokens = list.blocks.sizes[1], at = ref::list_row_offset(list, slot, position);
  if (!list.q8.defined()) return ref::store<float>(list.blocks, at + piece, column(piece));
  const Q8Rows& q8 = list.q8;
  const std::int64_t offset = position % block_tokens;
  auto* block = plain::as<std::int8_t>(list.blocks) + at - offset * list.blocks.strides[1];
  auto* scales = reinterpret_cast<std::uint16_t*>(q8_scales(q8, block, block_tokens, offset));
  if (piece >= q8.groups()) {
    scales[piece] = 0;
    return;
  }
  const std::int64_t end = q8.group_end(piece), begin = piece == 0 ? 0 : q8.group_end(piece - 1);
  q8_store_part(end - begin, end - begin, [&](std::int64_t c) { return column(begin + c); }, q8_codes(q8, block, offset) + begin, scales + piece);
}

}  // namespace palimpsest::cuda
