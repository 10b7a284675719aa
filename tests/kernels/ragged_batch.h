#pragma once

// Ragged batches for tests of kernels that keep a state per sequence.

#include <cstdint>
#include <vector>

#include "kernels/op_args.h"

namespace palimpsest::test {

/// Sequences of given lengths, one after the other. Sequence n keeps its state in slot 2 (N - 1 -
/// n) + 1 of slots(): never its own number, and with an unused slot beside each.
struct RaggedBatch {
  std::vector<std::int64_t> cu_seqlens{0};
  std::vector<std::int32_t> slot_ids;
  std::vector<std::int64_t> past_lengths;

  explicit RaggedBatch(const std::vector<std::int64_t>& lengths,
                       std::vector<std::int64_t> past = {})
      : past_lengths(std::move(past)) {
    past_lengths.resize(lengths.size());
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      cu_seqlens.push_back(cu_seqlens.back() + lengths[n]);
      slot_ids.push_back(static_cast<std::int32_t>(2 * (lengths.size() - 1 - n) + 1));
    }
  }

  std::int64_t sequences() const { return static_cast<std::int64_t>(slot_ids.size()); }
  std::int64_t rows() const { return cu_seqlens.back(); }
  std::int64_t slots() const { return 2 * sequences() + 1; }

  /// Views of this object's vectors.
  RaggedRows ragged() {
    return {Tensor::contiguous(cu_seqlens.data(), DType::kI64, {sequences() + 1}),
            Tensor::contiguous(slot_ids.data(), DType::kI32, {sequences()})};
  }
  Tensor past() { return Tensor::contiguous(past_lengths.data(), DType::kI64, {sequences()}); }
};

}  // namespace palimpsest::test
