#pragma once

// A ragged batch of latent attention with random contents, in memory that guards its borders: shared by the tests of the list and of
// attention over it.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "kernels/op_args.h"
#include "kernels/ref/latent_attention.h"
#include "support/numeric.h"

namespace palimpsest::test {

enum class WeightForm { kF32, kBF16, kMxfp4, kInt8 };

struct LatentSizes {
  std::int64_t heads = 2, dn = 16, p = 8, dv = 16, r = 32;
  std::int64_t block_tokens = 64;
  DType list = DType::kF32;
  WeightForm kv_b = WeightForm::kF32;
  std::int64_t q8_group = 7;  ///< numbers that share a scale where the list is I8

  Q8Rows q8() const { return list == DType::kI8 ? Q8Rows{r, p, q8_group, q8_group} : Q8Rows{}; }
  /// Elements of `list` a token.
  std::int64_t row_elements() const { return list == DType::kI8 ? q8().row_bytes() : r + p; }
};

struct LatentRows {
  std::int64_t past = 0, rows = 0;
};

/// Owns the tensors of LatentAttentionArgs. A sequence's contents depend on its index `first_sequence + n` alone, so that the same sequence
/// can be put into several batches.
class LatentCase {
 public:
  LatentCase(const LatentSizes& sizes, const std::vector<LatentRows>& batch, std::int64_t first_sequence = 0, double spread = 1)
      : sizes_(sizes), batch_(batch) {
    const std::int64_t sequences = static_cast<std::int64_t>(batch.size());
    cu_.push_back(0);
    for (const auto& s : batch) {
      cu_.push_back(cu_.back() + s.rows);
      past_.push_back(s.past);
      max_blocks_ = std::max(max_blocks_, (s.past + s.rows + sizes.block_tokens - 1) / sizes.block_tokens);
    }
    slots_.resize(batch.size());
    for (std::size_t n = 0; n < batch.size(); ++n) slots_[n] = static_cast<std::int32_t>(batch.size() - 1 - n);
    // Blocks of the sequences interleave, in descending order: nothing may rely on neighbours.
    const std::int64_t blocks = std::max<std::int64_t>(1, sequences * max_blocks_);
    table_.resize(static_cast<std::size_t>(blocks));
    for (std::size_t i = 0; i < table_.size(); ++i) {
      const std::int64_t slot = static_cast<std::int64_t>(i) / max_blocks_, b = static_cast<std::int64_t>(i) % max_blocks_;
      table_[i] = static_cast<std::int32_t>(blocks - 1 - (b * sequences + slot));
    }
    list_ = std::make_unique<GuardedBuffer>(blocks * sizes.block_tokens * sizes.row_elements() * dtype_size(sizes.list), 4);
    fill_list(first_sequence, spread);
    const std::int64_t dq = sizes.dn + sizes.p;
    for (std::int64_t n = 0; n < sequences; ++n) {
      const auto q = random_normal(batch[static_cast<std::size_t>(n)].rows * sizes.heads * dq, seed(first_sequence + n, 1), spread);
      q_.insert(q_.end(), q.begin(), q.end());
    }
    weights_ = random_normal(sizes.heads * (sizes.dn + sizes.dv) * sizes.r, 7, 1 / std::sqrt(static_cast<double>(sizes.r)));
    weights16_ = to_bf16(weights_);
    for (std::int64_t i = 0; i < weight_rows() * sizes.r / 2; ++i) codes_.push_back(static_cast<std::uint8_t>(base::uniform(8, static_cast<std::uint64_t>(i), 0) * 256));
    for (std::int64_t i = 0; i < weight_rows() * sizes.r / 32; ++i) scales_.push_back(static_cast<std::uint8_t>(122 + i % 4));
    for (std::int64_t i = 0; i < weight_rows() * sizes.r; ++i) int8_codes_.push_back(static_cast<std::int8_t>(base::uniform(9, static_cast<std::uint64_t>(i), 0) * 256 - 128));
    int8_scales_ = to_bf16(random_uniform(weight_rows() * sizes.r / 32, 10, 0.001, 0.004));
    o_ = std::make_unique<GuardedBuffer>(rows() * sizes.heads * sizes.dv * 4, 4);
  }

  std::int64_t rows() const { return cu_.back(); }
  std::int64_t weight_rows() const { return sizes_.heads * (sizes_.dn + sizes_.dv); }
  std::vector<float>& q() { return q_; }

  LatentAttentionArgs args(LatentForm form = LatentForm::kAuto) {
    const std::int64_t sequences = static_cast<std::int64_t>(batch_.size()), dq = sizes_.dn + sizes_.p;
    LatentAttentionArgs a;
    a.q = Tensor::contiguous(q_.data(), DType::kF32, {rows(), sizes_.heads, dq});
    if (sizes_.kv_b == WeightForm::kMxfp4) {
      a.kv_b.mx.codes = Tensor::contiguous(codes_.data(), DType::kU8, {weight_rows(), sizes_.r / 2});
      a.kv_b.mx.scales = Tensor::contiguous(scales_.data(), DType::kU8, {weight_rows(), sizes_.r / 32});
    } else if (sizes_.kv_b == WeightForm::kInt8) {
      a.kv_b.int8.codes = Tensor::contiguous(int8_codes_.data(), DType::kI8, {weight_rows(), sizes_.r});
      a.kv_b.int8.scales = Tensor::contiguous(int8_scales_.data(), DType::kBF16, {weight_rows(), sizes_.r / 32});
    } else if (sizes_.kv_b == WeightForm::kBF16) {
      a.kv_b.dense = Tensor::contiguous(weights16_.data(), DType::kBF16, {weight_rows(), sizes_.r});
    } else {
      a.kv_b.dense = Tensor::contiguous(weights_.data(), DType::kF32, {weight_rows(), sizes_.r});
    }
    a.list = list();
    a.rows = {Tensor::contiguous(cu_.data(), DType::kI64, {sequences + 1}), Tensor::contiguous(slots_.data(), DType::kI32, {sequences})};
    a.past = Tensor::contiguous(past_.data(), DType::kI64, {sequences});
    a.scale = 1 / std::sqrt(static_cast<float>(dq));
    a.o = Tensor::contiguous(o_->as<float>(), DType::kF32, {rows(), sizes_.heads, sizes_.dv});
    a.form = form;
    return a;
  }

  PagedList list() {
    const std::int64_t sequences = static_cast<std::int64_t>(batch_.size());
    return {Tensor::contiguous(list_->as<char>(), sizes_.list,
                               {static_cast<std::int64_t>(table_.size()), sizes_.block_tokens, sizes_.row_elements()}),
            Tensor::contiguous(table_.data(), DType::kI32, {sequences, max_blocks_}), sizes_.q8()};
  }

  std::vector<float> output() const {
    const float* o = o_->as<float>();
    return {o, o + rows() * sizes_.heads * sizes_.dv};
  }
  /// Rows of one sequence of the batch.
  std::vector<float> output(std::int64_t n) const {
    const float* o = o_->as<float>();
    const std::int64_t width = sizes_.heads * sizes_.dv;
    return {o + cu_[static_cast<std::size_t>(n)] * width, o + cu_[static_cast<std::size_t>(n) + 1] * width};
  }
  testing::AssertionResult intact() const {
    if (auto result = o_->intact(); !result) return result << " (output)";
    return list_->intact();
  }

 private:
  static std::uint64_t seed(std::int64_t sequence, std::uint64_t what) { return static_cast<std::uint64_t>(sequence) * 16 + what; }

  // Rows of a list exist up to past + rows; memory behind them holds NaN, which nobody may read.
  void fill_list(std::int64_t first_sequence, double spread) {
    std::memset(list_->as<char>(), 0xFF, static_cast<std::size_t>(list().blocks.bytes()));
    const std::int64_t width = sizes_.r + sizes_.p;
    for (std::size_t n = 0; n < batch_.size(); ++n) {
      const std::int64_t length = batch_[n].past + batch_[n].rows;
      const auto values = random_normal(length * width, seed(first_sequence + static_cast<std::int64_t>(n), 0), spread);
      for (std::int64_t t = 0; t < length; ++t) {
        ref::store_list_row<float>(list(), slots_[n], t, [&](std::int64_t c) { return values[static_cast<std::size_t>(t * width + c)]; });
      }
    }
  }

  LatentSizes sizes_;
  std::vector<LatentRows> batch_;
  std::vector<std::int64_t> cu_, past_;
  std::vector<std::int32_t> slots_, table_;
  std::int64_t max_blocks_ = 1;
  std::vector<float> q_, weights_;
  std::vector<std::uint16_t> weights16_;
  std::vector<std::uint8_t> codes_, scales_;
  std::vector<std::int8_t> int8_codes_;
  std::vector<std::uint16_t> int8_scales_;
  std::unique_ptr<GuardedBuffer> list_, o_;
};

/// What attention should answer, and what its errors are proportional to.
struct LatentTruth {
  std::vector<double> want, magnitude;
  std::vector<double> value_magnitude;  ///< sum_t w_t V^_t: what is left where the weights are certain
  Bound bound;
};

/// In double, with the bound of an F32 computation whose every sum is at most c terms long. With K^ and V^ the keys and values made from
/// absolute values, a score is off by at most c eps D, D = scale |q| K^; the weights of a row by the factor 1 +- (2 c eps max D + c eps); so
///     |o - o64| <= c eps (2 max_t D_t + 2) sum_t w_t V^_t.
/// It holds for both forms: absorbing reorders the same products.
inline LatentTruth latent_truth(const LatentAttentionArgs& args) {
  const std::int64_t heads = args.q.size(1), dq = args.q.size(2), dv = args.o.size(2), r = args.kv_b.cols();
  const std::int64_t dn = dq - (args.list.width() - r);
  LatentTruth truth;
  std::int64_t longest = 0;
  truth.want.resize(static_cast<std::size_t>(args.o.numel()));
  truth.magnitude.resize(truth.want.size());
  truth.value_magnitude.resize(truth.want.size());
  LatentAttentionArgs args64 = args;
  args64.o = Tensor::contiguous(truth.want.data(), DType::kF64, {args.o.size(0), heads, dv});
  const std::int64_t* cu = args.rows.cu_seqlens.as<std::int64_t>();
  for (std::int64_t n = 0; n < args.rows.slots.size(0); ++n) {
    const std::int64_t past = args.past.as<std::int64_t>()[n], rows = cu[n + 1] - cu[n], length = past + rows;
    longest = std::max(longest, length);
    std::vector<double> keys(static_cast<std::size_t>(length * dq)), values(static_cast<std::size_t>(length * dv));
    std::vector<double> abs_keys(keys.size()), abs_values(values.size()), weights(static_cast<std::size_t>(length));
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < length; ++t) {
        ref::latent_key_value(args64, n, h, t, keys.data() + t * dq, values.data() + t * dv);
        const std::int32_t slot = args.rows.slots.as<std::int32_t>()[n];
        for (std::int64_t d = 0; d < dn + dv; ++d) {
          double sum = 0;
          for (std::int64_t c = 0; c < r; ++c) {
            sum += std::abs(ref::load<double>(args.kv_b, h * (dn + dv) + d, c) * ref::list_value<double>(args.list, slot, t, c));
          }
          (d < dn ? abs_keys[static_cast<std::size_t>(t * dq + d)] : abs_values[static_cast<std::size_t>(t * dv + d - dn)]) = sum;
        }
        for (std::int64_t d = dn; d < dq; ++d) abs_keys[static_cast<std::size_t>(t * dq + d)] = std::abs(keys[static_cast<std::size_t>(t * dq + d)]);
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        ref::latent_attention_row(args64, n, i, h, keys.data(), values.data(), weights.data());
        double largest = 0;
        for (std::int64_t t = 0; t <= past + i; ++t) {
          double d_t = 0;
          for (std::int64_t d = 0; d < dq; ++d) {
            d_t += std::abs(args.q.at<float>(cu[n] + i, h)[d]) * abs_keys[static_cast<std::size_t>(t * dq + d)];
          }
          largest = std::max(largest, static_cast<double>(args.scale) * d_t);
        }
        for (std::int64_t j = 0; j < dv; ++j) {
          double sum = 0;
          for (std::int64_t t = 0; t <= past + i; ++t) {
            sum += weights[static_cast<std::size_t>(t)] * abs_values[static_cast<std::size_t>(t * dv + j)];
          }
          const auto element = static_cast<std::size_t>(((cu[n] + i) * heads + h) * dv + j);
          truth.value_magnitude[element] = sum;
          truth.magnitude[element] = sum * (2 * largest + 2);
        }
      }
    }
  }
  truth.bound.c = static_cast<double>(r + dq + longest + 8);
  return truth;
}

}  // namespace palimpsest::test
