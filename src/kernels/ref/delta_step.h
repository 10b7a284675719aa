#pragma once

#include <cmath>

#include "kernels/delta_args.h"
#include "kernels/ref/load.h"

/// The truth of the fused page-memory kernels: every step as plainly as possible, in the scalar type T. Pages (and snapshots) are then
/// tensors of that type too.
namespace palimpsest::ref {

template <class T>
PALIMPSEST_HOST_DEVICE T sigmoid(T x) {
  return T{1} / (T{1} + std::exp(-x));
}

inline PALIMPSEST_HOST_DEVICE std::int64_t sequence_row(const Tensor& cu_seqlens, std::int64_t n) {
  return cu_seqlens.defined() ? load<std::int64_t>(cu_seqlens, n) : n;
}

/// Element (row, head, c) of q, k or v after the short convolution. `channel` is its row of the convolution's weight; `first` is the first
/// row of its sequence.
template <class T>
PALIMPSEST_HOST_DEVICE T convolved(const Tensor& x, const DeltaConv& conv, std::int64_t first, std::int64_t row, std::int64_t head,
                                   std::int64_t c, std::int64_t channel, std::int64_t slot) {
  const std::int64_t column = head * x.strides[1] + c * x.strides[2];
  if (!conv.weight.defined()) return load<T>(x, row * x.strides[0] + column);
  const std::int64_t taps = conv.weight.sizes[1];
  T sum = 0;
  for (std::int64_t i = 0; i < taps; ++i) {
    const std::int64_t source = row - taps + 1 + i;
    const T value = source >= first ? load<T>(x, source * x.strides[0] + column)
                                    : load<T>(conv.tails, slot * conv.tails.strides[0] + (source - first + taps - 1) * conv.tails.strides[1] + channel);
    sum += load<T>(conv.weight, channel * taps + i) * value;
  }
  return sum * sigmoid(sum);
}

/// The log decay of (row, value head, channel c).
template <class T>
PALIMPSEST_HOST_DEVICE T log_decay(const DeltaInputs& in, std::int64_t row, std::int64_t head, std::int64_t c) {
  if (in.gate == DeltaGate::kNone) return 0;
  const bool per_channel = in.f.rank == 3;
  const T f = load<T>(in.f, row * in.f.strides[0] + head * in.f.strides[1] + (per_channel ? c * in.f.strides[2] : 0));
  if (in.gate == DeltaGate::kLogDecay) return f;
  const T x = f + load<T>(in.dt_bias, per_channel ? head * in.q.sizes[2] + c : head);
  const T rate = std::exp(load<T>(in.a_log, head));
  if (in.gate == DeltaGate::kBounded) return static_cast<T>(in.lower_bound) * sigmoid(rate * x);
  return -rate * (x > T{30} ? x : std::log1p(std::exp(x)));
}

template <class T>
PALIMPSEST_HOST_DEVICE T beta_of(const DeltaInputs& in, std::int64_t row, std::int64_t head) {
  if (!in.b.defined()) return 1;
  const T b = load<T>(in.b, row * in.b.strides[0] + head * in.b.strides[1]);
  return in.beta_sigmoid ? static_cast<T>(in.beta_scale) * sigmoid(b) : b;
}

/// Row v of the page of value head `head` of sequence n, through all tokens of the sequence; o before the norm. `scratch` holds q, k and
/// the decay of one token: 3 K numbers.
template <class T>
PALIMPSEST_HOST_DEVICE void delta_step_row(const DeltaStepArgs& a, const Tensor& o, std::int64_t n, std::int64_t head, std::int64_t v, T* scratch) {
  const DeltaInputs& in = a.in;
  const std::int64_t width = in.q.sizes[2], heads = in.q.sizes[1], value_heads = in.v.sizes[1], values = in.v.sizes[2];
  const std::int64_t first = sequence_row(a.cu_seqlens, n), end = sequence_row(a.cu_seqlens, n + 1);
  const std::int64_t slot = load<std::int64_t>(a.slots, n), key_head = head / (value_heads / heads);
  const auto o_at = [&](std::int64_t row) { return (row * value_heads + head) * values + v; };
  if (slot < 0) {
    for (std::int64_t row = first; row < end; ++row) store<T>(o, o_at(row), T{0});
    return;
  }
  const std::int64_t page = slot * a.pages.strides[0] + head * a.pages.strides[1] + v * a.pages.strides[2];
  T *q = scratch, *k = scratch + width, *decay = scratch + 2 * width;
  for (std::int64_t row = first; row < end; ++row) {
    T qq = 0, kk = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      q[c] = convolved<T>(in.q, a.conv, first, row, key_head, c, key_head * width + c, slot);
      k[c] = convolved<T>(in.k, a.conv, first, row, key_head, c, (heads + key_head) * width + c, slot);
      decay[c] = std::exp(log_decay<T>(in, row, head, c));
      qq += q[c] * q[c];
      kk += k[c] * k[c];
    }
    const T eps = static_cast<T>(in.l2_eps), q_factor = static_cast<T>(in.q_scale) / (in.l2_norm ? std::sqrt(qq + eps) : T{1}),
            k_factor = T{1} / (in.l2_norm ? std::sqrt(kk + eps) : T{1});
    const T value = convolved<T>(in.v, a.conv, first, row, head, v, 2 * heads * width + head * values + v, slot);
    T prediction = 0;
    for (std::int64_t c = 0; c < width; ++c) prediction += load<T>(a.pages, page + c) * decay[c] * k[c] * k_factor;
    const T write = beta_of<T>(in, row, head) * (in.write == PageWrite::kDelta ? value - prediction : value);
    T sum = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const T s = load<T>(a.pages, page + c) * decay[c] + write * k[c] * k_factor;
      store<T>(a.pages, page + c, s);
      sum += s * q[c] * q_factor;
    }
    store<T>(o, o_at(row), sum);
    if (a.snapshots.defined()) {
      const std::int64_t to = load<std::int64_t>(a.snapshot_slots, row);
      for (std::int64_t c = 0; to >= 0 && c < width; ++c) {
        store<T>(a.snapshots, to * a.snapshots.strides[0] + head * a.snapshots.strides[1] + v * a.snapshots.strides[2] + c, load<T>(a.pages, page + c));
      }
    }
  }
}

/// The output norm of (row, value head) in place.
template <class T>
PALIMPSEST_HOST_DEVICE void delta_norm_row(const DeltaStepArgs& a, const Tensor& o, std::int64_t row, std::int64_t head) {
  if (!a.norm.weight.defined()) return;
  const std::int64_t values = a.in.v.sizes[2], at = (row * a.in.v.sizes[1] + head) * values;
  const Tensor& gate = a.norm.gate;
  T squares = 0;
  for (std::int64_t v = 0; v < values; ++v) squares += load<T>(o, at + v) * load<T>(o, at + v);
  const T factor = T{1} / std::sqrt(squares / static_cast<T>(values) + static_cast<T>(a.norm.eps));
  for (std::int64_t v = 0; v < values; ++v) {
    const T g = load<T>(gate, row * gate.strides[0] + head * gate.strides[1] + v * gate.strides[2]);
    const T gated = a.norm.function == Unary::kSilu ? g * sigmoid(g) : sigmoid(g);
    store<T>(o, at + v, load<T>(o, at + v) * factor * load<T>(a.norm.weight, v) * gated);
  }
}

/// The tail of one channel of sequence n: the last W - 1 rows of (tail, x). After all rows of the sequence.
template <class T>
PALIMPSEST_HOST_DEVICE void delta_tail_channel(const DeltaStepArgs& a, std::int64_t n, std::int64_t channel) {
  const DeltaConv& conv = a.conv;
  const std::int64_t slot = load<std::int64_t>(a.slots, n);
  if (!conv.weight.defined() || slot < 0) return;
  const std::int64_t keys = a.in.q.sizes[1] * a.in.q.sizes[2], width = a.in.q.sizes[2], values = a.in.v.sizes[2];
  const bool is_value = channel >= 2 * keys;
  const Tensor& x = is_value ? a.in.v : channel >= keys ? a.in.k : a.in.q;
  const std::int64_t local = is_value ? channel - 2 * keys : channel % keys, head_width = is_value ? values : width;
  const std::int64_t column = local / head_width * x.strides[1] + local % head_width * x.strides[2];
  const std::int64_t first = sequence_row(a.cu_seqlens, n), end = sequence_row(a.cu_seqlens, n + 1), rows = conv.weight.sizes[1] - 1;
  const auto at = [&](std::int64_t i) { return slot * conv.tails.strides[0] + i * conv.tails.strides[1] + channel; };
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t source = end - rows + i;
    const T value = source >= first ? load<T>(x, source * x.strides[0] + column) : load<T>(conv.tails, at(source - first + rows));
    store<T>(conv.tails, at(i), value);
  }
}

}  // namespace palimpsest::ref
