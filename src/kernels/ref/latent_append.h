#pragma once

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// Flat offset, in elements, of the row at an absolute `position` of a slot's list.
PALIMPSEST_HOST_DEVICE inline std::int64_t list_row_offset(const PagedList& list, std::int64_t slot,
                                                           std::int64_t position) {
  const std::int64_t block_tokens = list.blocks.sizes[1];
  const auto block = static_cast<const std::int32_t*>(list.table.data)[slot * list.table.strides[0] +
                                                                       position / block_tokens];
  return block * list.blocks.strides[0] + position % block_tokens * list.blocks.strides[1];
}

/// Column `c` of the row at an absolute `position` of a slot's list, whatever the list's type.
template <class T>
PALIMPSEST_HOST_DEVICE T list_value(const PagedList& list, std::int64_t slot, std::int64_t position, std::int64_t c) {
  const std::int64_t row = list_row_offset(list, slot, position);
  if (!list.q8.defined()) return load<T>(list.blocks, row + c);
  const std::int64_t block_tokens = list.blocks.sizes[1], offset = position % block_tokens;
  const auto* block = static_cast<const std::int8_t*>(list.blocks.data) + row - offset * list.blocks.strides[1];
  const std::int64_t group = list.q8.group_of(c);
  const auto* scale = reinterpret_cast<const std::uint16_t*>(q8_scales(list.q8, block, block_tokens, offset)) + group;
  return static_cast<T>(q8_codes(list.q8, block, offset)[c]) * static_cast<T>(bf16_to_float(*scale));
}

/// Writes the row at an absolute `position` of a slot's list from its columns, `column(c)` a T; rounded to the list's type.
template <class T, class Column>
PALIMPSEST_HOST_DEVICE void store_list_row(const PagedList& list, std::int64_t slot, std::int64_t position, Column column) {
  const std::int64_t row = list_row_offset(list, slot, position), block_tokens = list.blocks.sizes[1], offset = position % block_tokens;
  if (list.q8.defined()) {
    auto* block = static_cast<std::int8_t*>(list.blocks.data) + row - offset * list.blocks.strides[1];
    const std::int64_t left = list.q8.left;
    q8_store_row(list.q8, [&column](std::int64_t c) { return static_cast<float>(column(c)); },
                 [&column, left](std::int64_t c) { return static_cast<float>(column(left + c)); }, q8_codes(list.q8, block, offset),
                 reinterpret_cast<std::uint16_t*>(q8_scales(list.q8, block, block_tokens, offset)));
    return;
  }
  for (std::int64_t c = 0; c < list.blocks.sizes[2]; ++c) store<T>(list.blocks, row + c, column(c));
}

/// Writes the list row of row `i` of sequence `n`. T is the type the values pass through.
template <class T>
PALIMPSEST_HOST_DEVICE void latent_append_row(const LatentAppendArgs& args, std::int64_t n, std::int64_t i) {
  const std::int64_t row = load<std::int64_t>(args.rows.cu_seqlens, n) + i, r = args.latent.sizes[1];
  const std::int64_t position = load<std::int64_t>(args.past, n) + i;
  store_list_row<T>(args.list, load<std::int64_t>(args.rows.slots, n), position, [&args, row, r](std::int64_t c) {
    return c < r ? load<T>(args.latent, row * args.latent.strides[0] + c) : load<T>(args.k_pe, row * args.k_pe.strides[0] + c - r);
  });
}

/// list[past[n] + i] = (latent row | k_pe row), rounded to the list's type. Formula and shapes: kernels/op_args.h.
template <class T>
void latent_append(const LatentAppendArgs& args) {
  for (std::int64_t n = 0; n + 1 < args.rows.cu_seqlens.size(0); ++n) {
    const std::int64_t* cu = args.rows.cu_seqlens.as<std::int64_t>();
    for (std::int64_t i = 0; i < cu[n + 1] - cu[n]; ++i) latent_append_row<T>(args, n, i);
  }
}

}  // namespace palimpsest::ref
