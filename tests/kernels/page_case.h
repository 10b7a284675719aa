#pragma once

// A page memory problem for tests: inputs in F32, the CPU kernel's answer, and the answer in double
// with a bound for every number.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/op_args.h"
#include "kernels/ragged_batch.h"
#include "kernels/ref/page_memory.h"
#include "ops/page_memory.h"
#include "support/numeric.h"

namespace palimpsest::test {

struct PageShape {
  std::int64_t heads = 1, value_heads = 1, width = 1, values = 1;
};

struct PageProblem {
  PageShape shape;
  PageDecay decay = PageDecay::kChannel;
  PageWrite write = PageWrite::kDelta;
  std::int64_t round_every = 0;
  RaggedBatch batch{{}};
  std::vector<float> q, k, v, g, beta;  ///< beta may be empty: 1
  std::vector<float> pages;             ///< [slots, HV, V, K], the states before

  std::int64_t page_floats() const { return shape.value_heads * shape.values * shape.width; }
};

struct PageResult {
  std::vector<float> o, pages;
  std::vector<float> written;  ///< where PageRun asks for it
};

struct PageRun {
  PageForm form = PageForm::kAuto;
  int threads = 1;
  std::int64_t misalignment = 0;  ///< bytes, of outputs and pages
  bool written = false;           ///< ask for what is written
};

struct PageTruth {
  std::vector<double> o, pages;
  std::vector<double> written;  ///< right where pages are not rounded
  /// |o - o64|, |S - S64| and |u - u64| (what is written) of a correct F32 computation stay below
  /// these. See below.
  std::vector<double> o_bound, page_bound, written_bound;
};

// The bound. Every row s of a page (one value channel) is a recurrence of its own. A correct F32
// kernel computes, at each token, the exact step of what it had before plus a local error. The
// local error is proportional to what was added up: with D = diag(exp(g)),
//
//     |local| <= c eps (m + |beta| |k| (|v| + |k| m)),      c = roundings on the longest path
//
// where m >= |D s| is the sum of the norms that make up s: the page at the start of the chunk and
// what each token since then wrote, decayed; the chunked form never holds s itself. The exact step
// carries an older error E on as |(I - beta k k^T) D E| <= rho |E|, rho = max decay * max(1, |1 -
// beta |k|^2|). So E <- rho E + |local|, and outputs are off by |q| E + c eps |q| m. Where pages
// are rounded to BF16, kernel and truth each move by at most half a step of 2^-7: E <- E + 2^-7
// (|s| + E). What is written is off by what it is read from: |beta| |k| |D E| + c eps |beta| (|v| +
// |k| m).

namespace page_case {

inline constexpr std::int64_t kChunk = 16;

inline double norm(const double* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return std::sqrt(sum);
}

inline Tensor f64(std::vector<double>& x, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(x.data(), DType::kF64, sizes);
}
inline Tensor f32(std::vector<float>& x, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(x.data(), DType::kF32, sizes);
}

inline PageMemoryArgs arguments(PageProblem& p) {
  const std::int64_t rows = p.batch.rows();
  const auto& s = p.shape;
  PageMemoryArgs args;
  args.q = f32(p.q, {rows, s.heads, s.width});
  args.k = f32(p.k, {rows, s.heads, s.width});
  args.v = f32(p.v, {rows, s.value_heads, s.values});
  if (p.decay == PageDecay::kHead) args.g = f32(p.g, {rows, s.value_heads});
  if (p.decay == PageDecay::kChannel) args.g = f32(p.g, {rows, s.value_heads, s.width});
  if (!p.beta.empty()) args.beta = f32(p.beta, {rows, s.value_heads});
  args.rows = p.batch.ragged();
  args.past = p.batch.past();
  args.decay = p.decay;
  args.write = p.write;
  args.round_every = p.round_every;
  return args;
}

/// What one token is to one value head, in double.
struct TokenNorms {
  double q = 0, k = 0, beta = 1, largest_decay = 1;
  std::vector<double> decay;
};

inline TokenNorms token_norms(const PageProblem& p, std::int64_t row, std::int64_t value_head) {
  const auto& s = p.shape;
  const std::int64_t head = value_head / (s.value_heads / s.heads),
                     gate = row * s.value_heads + value_head;
  TokenNorms token;
  token.decay.assign(static_cast<std::size_t>(s.width), 1.0);
  double q = 0, k = 0;
  for (std::int64_t d = 0; d < s.width; ++d) {
    const auto at = static_cast<std::size_t>((row * s.heads + head) * s.width + d);
    q += static_cast<double>(p.q[at]) * p.q[at];
    k += static_cast<double>(p.k[at]) * p.k[at];
    if (p.decay == PageDecay::kHead)
      token.decay[static_cast<std::size_t>(d)] =
          std::exp(static_cast<double>(p.g[static_cast<std::size_t>(gate)]));
    if (p.decay == PageDecay::kChannel)
      token.decay[static_cast<std::size_t>(d)] =
          std::exp(static_cast<double>(p.g[static_cast<std::size_t>(gate * s.width + d)]));
  }
  token.q = std::sqrt(q);
  token.k = std::sqrt(k);
  if (!p.beta.empty()) token.beta = p.beta[static_cast<std::size_t>(gate)];
  token.largest_decay = *std::max_element(token.decay.begin(), token.decay.end());
  return token;
}

/// Error and magnitude of one row of a page, carried from token to token.
struct RowError {
  double error = 0, magnitude = 0;
};

/// Moves `row` over one token that turned `before` into `after` and read v; returns the bound of
/// the output, and in `written_bound` that of what is written.
inline double advance(RowError& row, const TokenNorms& token, PageWrite write, double v,
                      bool chunk_starts, const double* before, const double* after, double c,
                      double& written_bound) {
  const auto width = static_cast<std::int64_t>(token.decay.size());
  if (chunk_starts) row.magnitude = norm(before, width);
  std::vector<double> decayed(token.decay.size()), written(token.decay.size());
  for (std::size_t d = 0; d < decayed.size(); ++d) {
    decayed[d] = token.decay[d] * before[d];
    written[d] = after[d] - decayed[d];
  }
  const double m = row.magnitude * token.largest_decay;
  const double read = write == PageWrite::kDelta ? token.k * m : 0;
  const double least = 0x1.0p-126;  // results below the normal range of F32
  const double local = c * kEpsF32 * (m + std::abs(token.beta) * token.k * (std::abs(v) + read)) +
                       least * (1 + m + token.k);
  written_bound = c * kEpsF32 * std::abs(token.beta) * (std::abs(v) + read) + least * (1 + read);
  if (write == PageWrite::kDelta)
    written_bound += std::abs(token.beta) * token.k * token.largest_decay * row.error;
  const double turned = write == PageWrite::kDelta
                            ? std::max(1.0, std::abs(1 - token.beta * token.k * token.k))
                            : 1.0;
  row.error = token.largest_decay * turned * row.error + local;
  row.magnitude = m + norm(written.data(), width);
  return token.q * (row.error + c * kEpsF32 * row.magnitude) + least * (1 + token.q);
}

/// u of one row of a page from what it did to it: s' = D s + u k, so u = (s' - D s).k / |k|^2.
inline double written_to(const TokenNorms& token, const float* k, const double* before,
                         const double* after) {
  double sum = 0;
  for (std::size_t d = 0; d < token.decay.size(); ++d)
    sum += (after[d] - token.decay[d] * before[d]) * static_cast<double>(k[d]);
  return sum / (token.k * token.k);
}

}  // namespace page_case

/// Unit keys, normal queries and values, beta in (0, 1), log decays in (-5, -0.005), filled pages.
inline PageProblem random_page_problem(const PageShape& shape, PageDecay decay, PageWrite write,
                                       RaggedBatch batch, std::uint64_t seed) {
  PageProblem p;
  p.shape = shape;
  p.decay = decay;
  p.write = write;
  p.batch = std::move(batch);
  const std::int64_t rows = p.batch.rows();
  p.q = random_normal(rows * shape.heads * shape.width, seed,
                      1 / std::sqrt(static_cast<double>(shape.width)));
  p.k = random_normal(rows * shape.heads * shape.width, seed + 1);
  for (std::int64_t i = 0; i < rows * shape.heads; ++i) {
    double sum = 1e-12;
    float* k = p.k.data() + i * shape.width;
    for (std::int64_t d = 0; d < shape.width; ++d) sum += static_cast<double>(k[d]) * k[d];
    for (std::int64_t d = 0; d < shape.width; ++d) k[d] = static_cast<float>(k[d] / std::sqrt(sum));
  }
  p.v = random_normal(rows * shape.value_heads * shape.values, seed + 2);
  // Slow and fast channels alike: uniform in the logarithm.
  if (decay != PageDecay::kNone) {
    p.g =
        random_uniform(rows * shape.value_heads * (decay == PageDecay::kChannel ? shape.width : 1),
                       seed + 3, std::log(0.005), std::log(5.0));
    for (float& g : p.g) g = -std::exp(g);
  }
  p.beta = random_uniform(rows * shape.value_heads, seed + 4, 0, 1);
  p.pages = random_normal(p.batch.slots() * p.page_floats(), seed + 5);
  return p;
}

/// Rows [begin, end) of a problem with one sequence, which then starts at past + begin from
/// `pages`.
inline PageProblem slice_rows(const PageProblem& problem, std::int64_t begin, std::int64_t end,
                              std::vector<float> pages) {
  PageProblem part = problem;
  const std::int64_t rows = problem.batch.rows();
  const auto cut = [&](const std::vector<float>& x) {
    const std::int64_t per_row = rows == 0 ? 0 : static_cast<std::int64_t>(x.size()) / rows;
    return std::vector<float>(x.begin() + begin * per_row, x.begin() + end * per_row);
  };
  part.batch = RaggedBatch({end - begin}, {problem.batch.past_lengths[0] + begin});
  part.q = cut(problem.q);
  part.k = cut(problem.k);
  part.v = cut(problem.v);
  part.g = cut(problem.g);
  part.beta = cut(problem.beta);
  part.pages = std::move(pages);
  return part;
}

/// Runs the front door; checks the guard zones.
inline PageResult run_page_memory(PageProblem p, const PageRun& run = {}) {
  PageMemoryArgs args = page_case::arguments(p);
  const auto& s = p.shape;
  GuardedBuffer o(static_cast<std::int64_t>(p.v.size() * sizeof(float)), run.misalignment);
  GuardedBuffer pages(static_cast<std::int64_t>(p.pages.size() * sizeof(float)), run.misalignment);
  std::copy(p.pages.begin(), p.pages.end(), pages.as<float>());
  args.o =
      Tensor::contiguous(o.as<float>(), DType::kF32, {p.batch.rows(), s.value_heads, s.values});
  args.pages = Tensor::contiguous(pages.as<float>(), DType::kF32,
                                  {p.batch.slots(), s.value_heads, s.values, s.width});
  args.form = run.form;
  ExecContext ctx(run.threads);
  GuardedBuffer written(static_cast<std::int64_t>(run.written ? p.v.size() * sizeof(float) : 0),
                        run.misalignment);
  ops::page_memory(ctx, args,
                   run.written ? Tensor::contiguous(written.as<float>(), DType::kF32,
                                                    {p.batch.rows(), s.value_heads, s.values})
                               : Tensor{});
  EXPECT_TRUE(o.intact());
  EXPECT_TRUE(pages.intact());
  EXPECT_TRUE(written.intact());
  return {{o.as<float>(), o.as<float>() + p.v.size()},
          {pages.as<float>(), pages.as<float>() + p.pages.size()},
          {written.as<float>(), written.as<float>() + (run.written ? p.v.size() : 0)}};
}

/// The reference in double. `input_roundings`: units of roundoff by which q, k, g, beta may differ
/// from those of the truth.
inline PageTruth page_truth(PageProblem p, double input_roundings = 0) {
  const auto& s = p.shape;
  // Longest path: a dot product over K; exp and up to one chunk of decay factors (3 roundings
  // each); a chunk of corrections.
  const double c = static_cast<double>(s.width + 4 * page_case::kChunk) + 8 + input_roundings;
  PageTruth truth;
  truth.o.resize(p.v.size());
  truth.o_bound.resize(p.v.size());
  truth.written.resize(p.v.size());
  truth.written_bound.resize(p.v.size());
  truth.pages = to_double(p.pages);
  truth.page_bound.assign(p.pages.size(), 0.0);
  PageMemoryArgs args = page_case::arguments(p);
  args.pages = page_case::f64(truth.pages, {p.batch.slots(), s.value_heads, s.values, s.width});
  args.o = page_case::f64(truth.o, {p.batch.rows(), s.value_heads, s.values});
  // One token of one sequence at a time, so that pages before and after it can be compared.
  for (std::int64_t n = 0; n < p.batch.sequences(); ++n) {
    const auto sequence = static_cast<std::size_t>(n);
    std::vector<page_case::RowError> errors(static_cast<std::size_t>(s.value_heads * s.values));
    const std::int64_t page = p.batch.slot_ids[sequence] * p.page_floats();
    for (std::int64_t row = p.batch.cu_seqlens[sequence]; row < p.batch.cu_seqlens[sequence + 1];
         ++row) {
      const std::vector<double> before(truth.pages.begin() + page,
                                       truth.pages.begin() + page + p.page_floats());
      std::int64_t one[2] = {row, row + 1};
      std::int64_t position = p.batch.past_lengths[sequence] + row - p.batch.cu_seqlens[sequence];
      args.rows = {Tensor::contiguous(one, DType::kI64, {2}),
                   Tensor::contiguous(&p.batch.slot_ids[sequence], DType::kI32, {1})};
      args.past = Tensor::contiguous(&position, DType::kI64, {1});
      ref::page_memory<double>(args);
      const bool chunk_starts =
          row == p.batch.cu_seqlens[sequence] || position % page_case::kChunk == 0;
      for (std::int64_t h = 0; h < s.value_heads; ++h) {
        const page_case::TokenNorms token = page_case::token_norms(p, row, h);
        for (std::int64_t v = 0; v < s.values; ++v) {
          const std::int64_t at = (row * s.value_heads + h) * s.values + v,
                             page_row = (h * s.values + v) * s.width;
          truth.o_bound[static_cast<std::size_t>(at)] =
              page_case::advance(errors[static_cast<std::size_t>(h * s.values + v)], token, p.write,
                                 p.v[static_cast<std::size_t>(at)], chunk_starts,
                                 before.data() + page_row, truth.pages.data() + page + page_row, c,
                                 truth.written_bound[static_cast<std::size_t>(at)]);
          const float* k = p.k.data() + (row * s.heads + h / (s.value_heads / s.heads)) * s.width;
          truth.written[static_cast<std::size_t>(at)] = page_case::written_to(
              token, k, before.data() + page_row, truth.pages.data() + page + page_row);
          if (p.round_every > 0 && (position + 1) % p.round_every == 0) {
            double& error = errors[static_cast<std::size_t>(h * s.values + v)].error;
            error +=
                0x1p-7 * (page_case::norm(truth.pages.data() + page + page_row, s.width) + error);
          }
        }
      }
    }
    for (std::int64_t i = 0; i < p.page_floats(); ++i) {
      truth.page_bound[static_cast<std::size_t>(page + i)] =
          errors[static_cast<std::size_t>(i / s.width)].error;
    }
  }
  return truth;
}

/// Outputs and pages within their bounds.
inline ::testing::AssertionResult matches(const PageResult& result, const PageTruth& truth) {
  const Bound given{.c = 1, .eps_acc = 1};
  const auto o = within_bound(result.o, truth.o, truth.o_bound, given);
  if (!o) return ::testing::AssertionFailure() << "o: " << o.message();
  const auto pages = within_bound(result.pages, truth.pages, truth.page_bound, given);
  if (!pages) return ::testing::AssertionFailure() << "pages: " << pages.message();
  if (!result.written.empty()) {
    const auto written = within_bound(result.written, truth.written, truth.written_bound, given);
    if (!written) return ::testing::AssertionFailure() << "written: " << written.message();
  }
  return ::testing::AssertionSuccess() << "o: " << o.message() << "; pages: " << pages.message();
}

}  // namespace palimpsest::test
