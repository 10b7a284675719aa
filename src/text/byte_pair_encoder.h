#pragma once

// Byte-pair encoding by rank, as tiktoken does it.

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/tiktoken_vocab.h"

namespace palimpsest::text {

/// Encodes one piece: the token that equals it if there is one; else start from single bytes and
/// keep merging the adjacent pair whose concatenation has the lowest rank (the leftmost of equals)
/// until no pair is a token. (No merge list is rebuilt from the ranks: that would lose merges which
/// need a pair that no list order reaches.)
class BytePairEncoder {
 public:
  /// `vocab` outlives the encoder. Throws kInvalidFile when one of the 256 single bytes is not a
  /// token, because then some text could not be encoded.
  explicit BytePairEncoder(const formats::TiktokenVocab& vocab);

  /// Buffers that calls reuse; one per thread of work.
  struct Scratch {
    struct Part {
      std::uint32_t begin;  ///< offset of the part in the piece
      std::int32_t
          rank;  ///< rank of this part joined with the next one, kNoRank if that is no token
      std::uint32_t previous, next;
    };
    std::vector<Part> parts;
    std::vector<std::uint64_t> heap;
  };

  /// Appends the ids of `piece` (any bytes, at most 4 GiB). Time O(n log n) in the length of the
  /// piece. Thread-safe with one Scratch per thread.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Scratch& scratch) const;

 private:
  void merge_short(std::string_view piece, std::vector<std::int32_t>& ids, Scratch& scratch) const;
  void merge_long(std::string_view piece, std::vector<std::int32_t>& ids, Scratch& scratch) const;

  const formats::TiktokenVocab* vocab_;
};

}  // namespace palimpsest::text
