#pragma once

#include <cmath>

#include "kernels/latent_args.h"
#include "kernels/ref/delta_step.h"
#include "kernels/ref/latent_append.h"

/// The truth of the device kernels of latent attention, in the scalar type T, one number at a time. Formulas: kernels/latent_args.h.
namespace palimpsest::ref {

PALIMPSEST_HOST_DEVICE inline std::int64_t list_width(const PagedList& list) { return list.q8.defined() ? list.q8.width() : list.blocks.sizes[2]; }

/// Which sequence a row of the batch belongs to, and how many rows of the list it sees (0: a sequence without a slot).
struct VisibleList {
  std::int64_t n = 0, slot = -1, length = 0;
};
PALIMPSEST_HOST_DEVICE inline VisibleList visible_list(const LatentDecodeArgs& a, std::int64_t row) {
  VisibleList list;
  while (sequence_row(a.cu_seqlens, list.n + 1) <= row) ++list.n;
  list.slot = load<std::int64_t>(a.slots, list.n);
  if (list.slot >= 0) list.length = load<std::int64_t>(a.past, list.n) + row - sequence_row(a.cu_seqlens, list.n) + 1;
  return list;
}

/// Element c of q', c < r + p.
template <class T>
PALIMPSEST_HOST_DEVICE T absorbed_query(const LatentDecodeArgs& a, std::int64_t row, std::int64_t head, std::int64_t c) {
  const std::int64_t r = a.kv_b.sizes[1], dv = a.o.sizes[2], dn = a.kv_b.sizes[0] / a.q.sizes[1] - dv;
  const std::int64_t q = row * a.q.strides[0] + head * a.q.strides[1];
  if (c >= r) return load<T>(a.q, q + dn + c - r);
  T sum = 0;
  for (std::int64_t d = 0; d < dn; ++d) sum += load<T>(a.q, q + d) * load<T>(a.kv_b, (head * (dn + dv) + d) * a.kv_b.strides[0] + c);
  return sum;
}

/// s_t, from the r + p numbers of q'.
template <class T>
PALIMPSEST_HOST_DEVICE T latent_score(const LatentDecodeArgs& a, const VisibleList& list, const T* query, std::int64_t t) {
  const std::int64_t row = list_row_offset(a.list, list.slot, t);
  T sum = 0;
  for (std::int64_t c = 0; c < list_width(a.list); ++c) sum += query[c] * (a.list.q8.defined() ? list_value<T>(a.list, list.slot, t, c) : load<T>(a.list.blocks, row + c));
  return static_cast<T>(a.scale) * sum;
}

/// Scores to weights that sum to one, in place.
template <class T>
PALIMPSEST_HOST_DEVICE void softmax(T* s, std::int64_t n) {
  T largest = 0, total = 0;
  for (std::int64_t t = 0; t < n; ++t) largest = t == 0 || s[t] > largest ? s[t] : largest;
  for (std::int64_t t = 0; t < n; ++t) total += s[t] = std::exp(s[t] - largest);
  for (std::int64_t t = 0; t < n; ++t) s[t] /= total;
}

/// Element c of sum_t w_t latent_t.
template <class T>
PALIMPSEST_HOST_DEVICE T mixed_latent(const LatentDecodeArgs& a, const VisibleList& list, const T* weights, std::int64_t c) {
  T sum = 0;
  for (std::int64_t t = 0; t < list.length; ++t) sum += weights[t] * list_value<T>(a.list, list.slot, t, c);
  return sum;
}

/// Stores o[row, head, j] from the r numbers of the mixed latent.
template <class T>
PALIMPSEST_HOST_DEVICE void latent_output(const LatentDecodeArgs& a, std::int64_t row, std::int64_t head, std::int64_t j, const T* mixed) {
  const std::int64_t heads = a.q.sizes[1], dv = a.o.sizes[2], dn = a.kv_b.sizes[0] / heads - dv;
  T sum = 0;
  for (std::int64_t c = 0; c < a.kv_b.sizes[1]; ++c) sum += load<T>(a.kv_b, (head * (dn + dv) + dn + j) * a.kv_b.strides[0] + c) * mixed[c];
  if (a.gate.defined()) sum *= sigmoid(load<T>(a.gate, row * a.gate.strides[0] + head * a.gate.strides[1] + j));
  store<T>(a.o, (row * heads + head) * dv + j, sum);
}

/// The keys that a row of the batch sees: rows [first, first + seen) of k.
struct VisibleKeys {
  std::int64_t first = 0, seen = 0;
};
PALIMPSEST_HOST_DEVICE inline VisibleKeys visible_keys(const LatentPrefillArgs& a, std::int64_t row) {
  std::int64_t n = 0;
  while (sequence_row(a.cu_seqlens, n + 1) <= row) ++n;
  const Tensor& cu_keys = a.cu_keys.defined() ? a.cu_keys : a.cu_seqlens;
  const std::int64_t first = sequence_row(cu_keys, n), later = sequence_row(a.cu_seqlens, n + 1) - 1 - row;
  return {first, sequence_row(cu_keys, n + 1) - first - later};
}

/// s_j of the j-th key that the row sees.
template <class T>
PALIMPSEST_HOST_DEVICE T prefill_score(const LatentPrefillArgs& a, const VisibleKeys& keys, std::int64_t row, std::int64_t head, std::int64_t j) {
  const std::int64_t dn = a.k.sizes[2], q = row * a.q.strides[0] + head * a.q.strides[1], at = keys.first + j;
  T sum = 0;
  for (std::int64_t d = 0; d < dn; ++d) sum += load<T>(a.q, q + d) * load<T>(a.k, at * a.k.strides[0] + head * a.k.strides[1] + d);
  for (std::int64_t d = 0; d < a.k_pe.sizes[1]; ++d) sum += load<T>(a.q, q + dn + d) * load<T>(a.k_pe, at * a.k_pe.strides[0] + d);
  return static_cast<T>(a.scale) * sum;
}

/// Stores o[row, head, d].
template <class T>
PALIMPSEST_HOST_DEVICE void prefill_output(const LatentPrefillArgs& a, const VisibleKeys& keys, std::int64_t row, std::int64_t head, std::int64_t d,
                                           const T* weights) {
  T sum = 0;
  for (std::int64_t j = 0; j < keys.seen; ++j) {
    sum += weights[j] * load<T>(a.v, (keys.first + j) * a.v.strides[0] + head * a.v.strides[1] + d);
  }
  if (a.gate.defined()) sum *= sigmoid(load<T>(a.gate, row * a.gate.strides[0] + head * a.gate.strides[1] + d));
  store<T>(a.o, (row * a.q.sizes[1] + head) * a.v.sizes[2] + d, sum);
}

}  // namespace palimpsest::ref
