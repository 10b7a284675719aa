#pragma once

// A problem for the fused page-memory kernels: inputs in host memory, the truth in double, and a bound for every number.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/delta_args.h"
#include "kernels/ragged_batch.h"
#include "kernels/ref/delta_step.h"
#include "support/numeric.h"

namespace palimpsest::test {

struct DeltaShape {
  std::int64_t heads = 1, value_heads = 1, width = 64, values = 32;
  DeltaGate gate = DeltaGate::kBounded;
  bool gate_per_channel = true;
  PageWrite write = PageWrite::kDelta;
  DType input = DType::kBF16;
  DType state = DType::kF32;
  DType output = DType::kF32;
  bool conv = true, norm = true;
  std::int64_t gap = 0;  ///< elements between rows of q, k, v and f
  std::vector<std::int64_t> lengths = {1}, past = {};

  std::string text() const {
    return "H " + std::to_string(heads) + " HV " + std::to_string(value_heads) + " K " + std::to_string(width) + " V " + std::to_string(values) +
           " gate " + std::to_string(static_cast<int>(gate)) + " rows " + std::to_string(lengths.size()) + " conv " + std::to_string(conv) +
           " norm " + std::to_string(norm);
  }
};

class DeltaCase {
 public:
  explicit DeltaCase(const DeltaShape& s, std::uint64_t seed = 1) : shape(s), batch(s.lengths, s.past), seed_(seed) {
    const std::int64_t rows = batch.rows(), hk = s.heads * s.width, hv = s.value_heads * s.values, gates = s.gate_per_channel ? s.width : 1;
    args.in.q = input({rows, s.heads, s.width}, random_normal(rows * (hk + s.gap), next()), s.gap);
    args.in.k = input({rows, s.heads, s.width}, random_normal(rows * (hk + s.gap), next()), s.gap);
    args.in.v = input({rows, s.value_heads, s.values}, random_normal(rows * (hv + s.gap), next()), s.gap);
    args.in.b = input({rows, s.value_heads}, random_normal(rows * s.value_heads, next()));
    args.in.gate = s.gate;
    args.in.write = s.write;
    args.in.q_scale = 1 / std::sqrt(static_cast<float>(s.width));
    if (s.gate != DeltaGate::kNone) {
      const bool ready = s.gate == DeltaGate::kLogDecay;
      const std::int64_t row_gap = s.gate_per_channel ? s.gap : 0, count = rows * (s.value_heads * gates + row_gap);
      const auto f = ready ? random_uniform(count, next(), -4, -0.005) : random_normal(count, next());
      args.in.f = s.gate_per_channel ? input({rows, s.value_heads, s.width}, f, row_gap) : input({rows, s.value_heads}, f);
      if (!ready) {
        args.in.a_log = f32({s.value_heads}, random_uniform(s.value_heads, next(), -1, 1));
        args.in.dt_bias = f32({s.value_heads * gates}, random_uniform(s.value_heads * gates, next(), -5, 1));
      }
    }
    if (s.conv) {
      const std::int64_t channels = 2 * hk + hv;
      args.conv.weight = f32({channels, 4}, random_normal(channels * 4, next(), 0.5));
      args.conv.tails = input({batch.slots(), 3, channels}, random_normal(batch.slots() * 3 * channels, next()));
    }
    if (s.norm) {
      args.norm = {f32({s.values}, random_uniform(s.values, next(), 0.5, 1.5)), input({rows, s.value_heads, s.values}, random_normal(rows * hv, next())),
                   Unary::kSigmoid, 1e-5f};
    }
    const std::int64_t page = s.value_heads * s.values * s.width;
    pages_ = random_normal(batch.slots() * page, next(), 0.3);
    args.pages = s.state == DType::kBF16 ? bf16({batch.slots(), s.value_heads, s.values, s.width}, pages_) : f32({batch.slots(), s.value_heads, s.values, s.width}, pages_);
    args.cu_seqlens = batch.ragged().cu_seqlens;
    args.slots = batch.ragged().slots;
    const std::vector<float> zeros(static_cast<std::size_t>(rows * hv));
    args.o = s.output == DType::kBF16 ? bf16({rows, s.value_heads, s.values}, zeros)
             : s.output == DType::kF16 ? f16({rows, s.value_heads, s.values}, zeros) : f32({rows, s.value_heads, s.values}, zeros);
  }

  DeltaShape shape;
  RaggedBatch batch;
  DeltaStepArgs args;

  Tensor f32(std::initializer_list<std::int64_t> sizes, std::vector<float> x) {
    floats_.push_back(std::move(x));
    return Tensor::contiguous(floats_.back().data(), DType::kF32, sizes);
  }
  Tensor bf16(std::initializer_list<std::int64_t> sizes, const std::vector<float>& x) {
    halves_.push_back(to_bf16(x));
    return Tensor::contiguous(halves_.back().data(), DType::kBF16, sizes);
  }
  Tensor f16(std::initializer_list<std::int64_t> sizes, const std::vector<float>& x) {
    auto& halves = halves_.emplace_back(x.size());
    std::transform(x.begin(), x.end(), halves.begin(), [](float y) { return float_to_f16(y); });
    return Tensor::contiguous(halves.data(), DType::kF16, sizes);
  }

 private:
  std::uint64_t next() { return 100 * seed_ + ++count_; }
  Tensor input(std::initializer_list<std::int64_t> sizes, const std::vector<float>& x, std::int64_t gap = 0) {
    Tensor t = shape.input == DType::kBF16 ? bf16(sizes, x) : shape.input == DType::kF16 ? f16(sizes, x) : f32(sizes, x);
    t.strides[0] += gap;
    return t;
  }

  std::uint64_t seed_, count_ = 0;
  std::vector<float> pages_;
  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<std::uint16_t>> halves_;
};

/// Every element of t, in order, as double.
inline std::vector<double> values_of(const Tensor& t) {
  std::vector<double> out(static_cast<std::size_t>(t.numel()));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = ref::load<double>(t, static_cast<std::int64_t>(i));
  return out;
}

struct DeltaTruth {
  std::vector<double> o, pages, o_bound, page_bound;
};

// The bound. Row v of a page is a recurrence of its own. A correct F32 kernel computes at each token the exact step of what it had before
// plus a local error that is proportional to what was added up:
//     |local| <= eps (c + d) (m + |beta| |k| (|v| + |k| m)),    m = |S row| largest decay
// c: roundings on the longest path (convolution, norm, butterfly, write); d: what rounding the gate's argument x does to exp(g),
// |g| (8 + |rate x|). The exact step carries an older error on as rho = largest decay * max(1, |1 - beta k^2|).
// The norm turns the errors of a head's outputs into y: |y| eps c + |factor| (E_v + |o_v| |E| / |o|).
//
// The chunked kernel rounds its operands to BF16: eps is then 2^-8, c counts the roundings of operands on the longest path, and m adds up what
// a row was at its chunk's start and every write since, because the chunked form never holds the row itself.
struct DeltaErrors {
  double c = 64, eps = kEpsF32;
  std::int64_t chunk = 1;
};

inline DeltaTruth delta_truth(const DeltaCase& problem, DeltaErrors errors_of = {}) {
  const DeltaStepArgs& a = problem.args;
  const DeltaShape& s = problem.shape;
  DeltaTruth truth;
  truth.o.assign(static_cast<std::size_t>(a.o.numel()), 0);
  truth.pages = values_of(a.pages);
  truth.o_bound.assign(truth.o.size(), 0);
  truth.page_bound.assign(truth.pages.size(), 0);
  const double c = errors_of.c + (errors_of.chunk == 1 ? static_cast<double>(s.width) / 32 : 0), eps = errors_of.eps;
  const double out_eps = s.output == DType::kBF16 ? kEpsBF16 : s.output == DType::kF16 ? 0x1p-11 : eps, state_eps = s.state == DType::kBF16 ? kEpsBF16 : eps;
  std::vector<double> scratch(static_cast<std::size_t>(3 * s.width));
  for (std::int64_t n = 0; n < problem.batch.sequences(); ++n) {
    const std::int64_t first = problem.batch.cu_seqlens[static_cast<std::size_t>(n)], end = problem.batch.cu_seqlens[static_cast<std::size_t>(n) + 1];
    const std::int64_t slot = a.slots.as<std::int32_t>()[n];
    if (slot < 0) continue;
    const std::int64_t past = problem.batch.past_lengths[static_cast<std::size_t>(n)];
    for (std::int64_t h = 0; h < s.value_heads; ++h) {
      const std::int64_t kh = h / (s.value_heads / s.heads);
      for (std::int64_t v = 0; v < s.values; ++v) {
        double* row = truth.pages.data() + ((slot * s.value_heads + h) * s.values + v) * s.width;
        double error = 0, m = 0;
        for (std::int64_t t = first; t < end; ++t) {
          double qq = 0, kk = 0, norm = 0, largest = 0, gate_error = 0;
          std::vector<double> q(static_cast<std::size_t>(s.width)), k(q.size()), decay(q.size());
          for (std::int64_t d = 0; d < s.width; ++d) {
            const auto i = static_cast<std::size_t>(d);
            q[i] = ref::convolved<double>(a.in.q, a.conv, first, t, kh, d, kh * s.width + d, slot);
            k[i] = ref::convolved<double>(a.in.k, a.conv, first, t, kh, d, (s.heads + kh) * s.width + d, slot);
            const double g = ref::log_decay<double>(a.in, t, h, d);
            double x = 0;
            if (a.in.a_log.defined()) {
              x = std::exp(static_cast<double>(a.in.a_log.as<float>()[h])) *
                  (ref::load<double>(a.in.f, t * a.in.f.strides[0] + h * a.in.f.strides[1] + (s.gate_per_channel ? d : 0)) +
                   static_cast<double>(a.in.dt_bias.as<float>()[s.gate_per_channel ? h * s.width + d : h]));
            }
            gate_error = std::max(gate_error, std::abs(g) * (8 + std::abs(x)));
            decay[i] = std::exp(g);
            largest = std::max(largest, decay[i]);
            qq += q[i] * q[i];
            kk += k[i] * k[i];
            norm += row[d] * row[d];
          }
          const double qf = a.in.q_scale / std::sqrt(qq + a.in.l2_eps), kf = 1 / std::sqrt(kk + a.in.l2_eps);
          const double beta = ref::beta_of<double>(a.in, t, h), key = std::sqrt(kk) * kf, query = std::sqrt(qq) * qf;
          const double value = ref::convolved<double>(a.in.v, a.conv, first, t, h, v, 2 * s.heads * s.width + h * s.values + v, slot);
          double prediction = 0, o = 0;
          for (std::size_t d = 0; d < q.size(); ++d) prediction += row[d] * decay[d] * k[d] * kf;
          const double write = beta * (s.write == PageWrite::kDelta ? value - prediction : value);
          for (std::size_t d = 0; d < q.size(); ++d) {
            row[d] = row[d] * decay[d] + write * k[d] * kf;
            o += row[d] * q[d] * qf;
          }
          if ((t - first + past) % errors_of.chunk == 0 || t == first) m = std::sqrt(norm);
          const double magnitude = m * largest;
          m = magnitude + std::abs(write) * key;
          const double local = (c * eps + gate_error * kEpsF32) * (magnitude + std::abs(beta) * key * (std::abs(value) + key * magnitude));
          error = largest * std::max(1.0, std::abs(1 - beta * key * key)) * error + local;
          const auto at = static_cast<std::size_t>((t * s.value_heads + h) * s.values + v);
          truth.o[at] = o;
          truth.o_bound[at] = query * error + c * eps * query * (magnitude + std::abs(write) * key);
        }
        const auto page = static_cast<std::size_t>(row - truth.pages.data());
        for (std::size_t d = 0; d < static_cast<std::size_t>(s.width); ++d) {
          truth.page_bound[page + d] = first == end ? 0 : error + state_eps * std::abs(row[d]) + 0x1p-126;
        }
      }
    }
  }
  if (!s.norm) {
    for (std::size_t i = 0; i < truth.o.size(); ++i) truth.o_bound[i] += out_eps * std::abs(truth.o[i]) + 0x1p-126;
    return truth;
  }
  for (std::int64_t head = 0; head < problem.batch.rows() * s.value_heads; ++head) {
    double* o = truth.o.data() + head * s.values;
    double* bound = truth.o_bound.data() + head * s.values;
    double squares = 0, errors = 0;
    for (std::int64_t v = 0; v < s.values; ++v) {
      squares += o[v] * o[v];
      errors += bound[v] * bound[v];
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(s.values) + a.norm.eps), relative = squares > 0 ? std::sqrt(errors / squares) : 0;
    for (std::int64_t v = 0; v < s.values; ++v) {
      const double gate = ref::sigmoid(ref::load<double>(a.norm.gate, head * s.values + v));
      const double scale = factor * static_cast<double>(a.norm.weight.as<float>()[v]) * gate;
      bound[v] = std::abs(scale) * (bound[v] + std::abs(o[v]) * relative) + (c * eps + out_eps) * std::abs(o[v] * scale) + 0x1p-126;
      o[v] *= scale;
    }
  }
  return truth;
}

/// |got - want| <= bound, element by element; names the worst.
inline ::testing::AssertionResult within(const std::vector<double>& got, const std::vector<double>& want, const std::vector<double>& bound) {
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want[i]), ratio = error <= bound[i] ? (bound[i] > 0 ? error / bound[i] : 0) : std::max(1.0, error / bound[i]) + 1e-9;
    if (!(ratio <= worst)) worst = std::isfinite(got[i]) ? ratio : INFINITY, at = i;
  }
  if (worst <= 1) return ::testing::AssertionSuccess() << "worst error " << worst << " of its bound";
  return ::testing::AssertionFailure() << "element " << at << ": got " << got[at] << ", want " << want[at] << ", " << worst << " times its bound " << bound[at];
}

}  // namespace palimpsest::test
