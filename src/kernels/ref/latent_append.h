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

/// Writes the list row of row `i` of sequence `n`. T is the type the values pass through.
template <class T>
PALIMPSEST_HOST_DEVICE void latent_append_row(const LatentAppendArgs& args, std::int64_t n, std::int64_t i) {
  const std::int64_t row = load<std::int64_t>(args.rows.cu_seqlens, n) + i;
  const std::int64_t position = load<std::int64_t>(args.past, n) + i;
  const std::int64_t r = args.latent.sizes[1], p = args.list.blocks.sizes[2] - r;
  const std::int64_t out = list_row_offset(args.list, load<std::int64_t>(args.rows.slots, n), position);
  for (std::int64_t c = 0; c < r; ++c) {
    store<T>(args.list.blocks, out + c, load<T>(args.latent, row * args.latent.strides[0] + c));
  }
  for (std::int64_t c = 0; c < p; ++c) {
    store<T>(args.list.blocks, out + r + c, load<T>(args.k_pe, row * args.k_pe.strides[0] + c));
  }
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
