#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "state/state_pool.h"

namespace palimpsest::test {

/// Stands for a model where only its memories matter: fast, and every bit of a state says how it
/// came to be. Page, tail and list rows are hashes of all that a model's would depend on; logits
/// are a hash of the page and of every list row. So a wrong bit anywhere changes the logits.
///
/// With `rounding` the hashes also depend on how the tokens were grouped, as floating-point sums
/// do: on where a pass begins and ends inside a chunk of 16 positions, and on whether it has 1, at
/// most 4, or more rows. Without, only on the tokens.
class FakeModel {
 public:
  static constexpr std::int64_t kVocab = 13, kWidth = 3, kPage = 24;

  /// `short_pages`: only the upper half of a page's bits stays at multiples of kPageBorder.
  explicit FakeModel(bool rounding, bool short_pages = false)
      : rounding_(rounding), short_pages_(short_pages) {}

  static StateSpec spec(bool short_pages = false) {
    const DType at_border = short_pages ? DType::kBF16 : DType::kF32;
    return {
        .entries = {{StateKind::kPage, 0, "page", DType::kF32, {1, 2, kPage / 2}, {}, at_border},
                    {StateKind::kList, 1, "latent", DType::kF32, {kWidth}},
                    {StateKind::kConvTail, 2, "conv_q", DType::kF32, {1, 2}},
                    {StateKind::kList, 3, "latent", DType::kF32, {kWidth}}}};
  }

  /// A sequence's memories outside of any pool: what the pool's must equal.
  struct State {
    std::vector<std::uint32_t> page = std::vector<std::uint32_t>(kPage, 0),
                               tail = std::vector<std::uint32_t>(2, 0);
    std::vector<std::uint32_t> rows;
    std::vector<float> logits;
  };

  void pass(State& state, std::span<const std::int32_t> ids) const {
    const auto past = static_cast<std::int64_t>(state.rows.size()) / (2 * kWidth),
               count = static_cast<std::int64_t>(ids.size());
    const std::uint32_t form = !rounding_ ? 0 : count == 1 ? 1 : count < 5 ? 2 : 3;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t position = past + i;
      const auto token = static_cast<std::uint32_t>(ids[static_cast<std::size_t>(i)]);
      if (rounding_ &&
          (i == 0 ||
           position % 16 == 0)) {  // a chunk begins, of which this pass holds so many tokens
        const auto held = static_cast<std::uint32_t>(std::min(16 - position % 16, count - i));
        for (auto& p : state.page) p = mix(p, held * 4 + form);
      }
      for (std::int64_t e = 0; e < kPage; ++e)
        state.page[static_cast<std::size_t>(e)] = mix(state.page[static_cast<std::size_t>(e)],
                                                      token * 64 + static_cast<std::uint32_t>(e));
      state.tail = {state.tail[1], token + 1};
      for (std::uint32_t c = 0; c < 2 * kWidth; ++c)
        state.rows.push_back(mix(state.page[c] + form, token ^ state.tail[0]));
      if (short_pages_ && (position + 1) % kPageBorder == 0) {
        for (auto& p : state.page) p &= 0xffff0000u;
      }
    }
    std::uint32_t all = 1;
    for (const auto p : state.page) all = mix(all, p);
    for (const auto r : state.rows) all = mix(all, r);
    state.logits.clear();
    for (std::uint32_t v = 0; v < kVocab; ++v)
      state.logits.push_back(static_cast<float>(mix(all, v) >> 8) * 0x1p-24f);
  }

  /// The same over a slot of a pool: reads and writes all of its memories. Returns the logits of
  /// the last row.
  std::vector<float> forward(StatePool& pool, std::int32_t slot,
                             std::span<const std::int32_t> ids) {
    const std::int32_t slots[1] = {slot};
    const std::int64_t cu[2] = {0, static_cast<std::int64_t>(ids.size())};
    const std::int64_t past = *pool.prepare(slots, cu).as<std::int64_t>();
    State state = read(pool, slot, past);
    pass(state, ids);
    std::memcpy(pool.pages(0).rows(slot, 1).data, state.page.data(), kPage * 4);
    std::memcpy(pool.tails(2, 0).rows(slot, 1).data, state.tail.data(), 8);
    for (std::int64_t t = past; t < past + cu[1]; ++t) {
      for (const int list : {0, 1})
        std::memcpy(row(pool, slot, list, t),
                    &state.rows[static_cast<std::size_t>((t * 2 + list) * kWidth)], kWidth * 4);
    }
    pool.advance(slots, cu);
    rows_computed += cu[1];
    return state.logits;
  }

  static State read(StatePool& pool, std::int32_t slot, std::int64_t length) {
    State state;
    std::memcpy(state.page.data(), pool.pages(0).rows(slot, 1).data, kPage * 4);
    std::memcpy(state.tail.data(), pool.tails(2, 0).rows(slot, 1).data, 8);
    state.rows.resize(static_cast<std::size_t>(length * 2 * kWidth));
    for (std::int64_t t = 0; t < length; ++t) {
      for (const int list : {0, 1})
        std::memcpy(&state.rows[static_cast<std::size_t>((t * 2 + list) * kWidth)],
                    row(pool, slot, list, t), kWidth * 4);
    }
    return state;
  }

  static std::int32_t greedy(std::span<const float> logits) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                     logits.begin());
  }

  std::int64_t rows_computed = 0;

 private:
  static std::uint32_t mix(std::uint32_t a, std::uint32_t b) {
    std::uint32_t h = (a ^ (b + 0x9E3779B9u + (a << 6) + (a >> 2))) * 0x85EBCA6Bu;
    return h ^ (h >> 15);
  }
  static std::uint32_t* row(StatePool& pool, std::int32_t slot, int list, std::int64_t position) {
    const PagedList paged = pool.list(list == 0 ? 1 : 3);
    return paged.blocks.at<std::uint32_t>(
        *paged.table.at<std::int32_t>(slot, position / paged.block_tokens()),
        position % paged.block_tokens());
  }

  bool rounding_, short_pages_;
};

}  // namespace palimpsest::test
