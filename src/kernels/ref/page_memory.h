#pragma once

#include <cmath>

#include "kernels/op_args.h"
#include "kernels/ref/load.h"

namespace palimpsest::ref {

/// One token and one row v of a page (the K numbers that answer for one value channel); rows do not
/// know each other:
///     s <- s * exp(g);   e = v - s.k (delta) or v;   s <- s + beta e k;   o = s.q
template <class T>
PALIMPSEST_HOST_DEVICE T page_row_step(const PageMemoryArgs& a, std::int64_t row, std::int64_t head,
                                       std::int64_t value_head, std::int64_t v,
                                       std::int64_t page_row) {
  const std::int64_t heads = a.q.size(1), width = a.q.size(2), value_heads = a.v.size(1),
                     values = a.v.size(2);
  const std::int64_t qk = (row * heads + head) * width, gate = row * value_heads + value_head;
  const T value = load<T>(a.v, gate * values + v);
  const T beta = a.beta.defined() ? load<T>(a.beta, gate) : T{1};
  T prediction = 0;
  for (std::int64_t d = 0; d < width; ++d) {
    T s = load<T>(a.pages, page_row + d);
    if (a.decay == PageDecay::kHead) s *= std::exp(load<T>(a.g, gate));
    if (a.decay == PageDecay::kChannel) s *= std::exp(load<T>(a.g, gate * width + d));
    store<T>(a.pages, page_row + d, s);
    prediction += s * load<T>(a.k, qk + d);
  }
  const T write = beta * (a.write == PageWrite::kDelta ? value - prediction : value);
  T out = 0;
  for (std::int64_t d = 0; d < width; ++d) {
    const T s = load<T>(a.pages, page_row + d) + write * load<T>(a.k, qk + d);
    store<T>(a.pages, page_row + d, s);
    out += s * load<T>(a.q, qk + d);
  }
  return out;
}

/// Whether the pages are rounded after token `i` of sequence `n`.
PALIMPSEST_HOST_DEVICE inline bool rounds_page_after(const PageMemoryArgs& a, std::int64_t n,
                                                     std::int64_t i) {
  return a.round_every > 0 && (load<std::int64_t>(a.past, n) + i + 1) % a.round_every == 0;
}

/// One row of a page, rounded to BF16.
template <class T>
PALIMPSEST_HOST_DEVICE void round_page_row(const PageMemoryArgs& a, std::int64_t page_row) {
  for (std::int64_t d = 0; d < a.q.sizes[2]; ++d) {
    const auto value = static_cast<float>(load<T>(a.pages, page_row + d));
    store<T>(a.pages, page_row + d, static_cast<T>(bf16_to_float(float_to_bf16(value))));
  }
}

/// PageMemoryArgs, token by token; a.form does not matter.
template <class T>
PALIMPSEST_HOST_DEVICE void page_memory(const PageMemoryArgs& a) {
  const std::int64_t heads = a.q.size(1), value_heads = a.v.size(1), values = a.v.size(2);
  const std::int64_t sequences = a.rows.slots.size(0);
  const std::int64_t* cu = a.rows.cu_seqlens.as<std::int64_t>();
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int64_t slot = a.rows.slots.as<std::int32_t>()[n];
    for (std::int64_t row = cu[n]; row < cu[n + 1]; ++row) {
      for (std::int64_t h = 0; h < value_heads; ++h) {
        for (std::int64_t v = 0; v < values; ++v) {
          const std::int64_t page_row =
              slot * a.pages.stride(0) + h * a.pages.stride(1) + v * a.pages.stride(2);
          const T o = page_row_step<T>(a, row, h / (value_heads / heads), h, v, page_row);
          store<T>(a.o, (row * value_heads + h) * values + v, o);
          if (rounds_page_after(a, n, row - cu[n])) round_page_row<T>(a, page_row);
        }
      }
    }
  }
}

}  // namespace palimpsest::ref
