#pragma once

// Byte-pair encoding: by merges, as Hugging Face's tokenizers have them; by the rank of joined
// bytes, as tiktoken does it; by scores, as SentencePiece does it. One loop, three rules of what
// may be joined.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "formats/token_table.h"

namespace palimpsest::text {

/// Which tokens may be joined to which. Immutable after the last add().
class MergeTable {
 public:
  static constexpr std::int32_t kNoRank = 0x7fffffff;
  struct Merge {
    std::int32_t rank = kNoRank;
    std::int32_t merged = -1;
  };

  MergeTable() = default;
  explicit MergeTable(std::size_t expected);

  /// The pair joins to `merged`, before all pairs of higher rank. Of a pair that comes twice the
  /// last one counts.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const;
  bool empty() const { return used_ == 0; }

 private:
  struct Slot {
    std::uint64_t pair = ~std::uint64_t{0};
    Merge merge;
  };
  std::size_t slot_of(std::uint64_t pair) const;
  void grow(std::size_t slots);

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
};

struct BytePairRules {
  enum class Start { kBytes, kCharacters };
  enum class Join {
    kByRank,    ///< what together is a token, the lowest id first
    kByScore,   ///< what together is a token, the lowest of `ranks` first
    kByMerges,  ///< pairs of `merges`
  };
  Start start = Start::kBytes;
  Join join = Join::kByRank;
  bool whole_first = true;            ///< a piece that is a token is not taken apart
  std::vector<std::int32_t> ranks{};  ///< by id
  MergeTable merges{};

  // Characters without a token. Bytes first, where all of a character's have an id here; then
  // `unk`; without either they are left out.
  std::array<std::int32_t, 256> byte_ids = no_bytes();
  std::optional<std::int32_t> unk{};
  bool fuse_unk = false;  ///< unknown characters in a row give one `unk`

  static constexpr std::array<std::int32_t, 256> no_bytes() {
    std::array<std::int32_t, 256> ids{};
    ids.fill(-1);
    return ids;
  }
};

/// Encodes one piece: start from single bytes or characters and keep joining the adjacent pair of
/// lowest rank (the leftmost of equals) until no pair may be joined. (tiktoken's ranks are not
/// turned into a list of merges: that would lose merges which need a pair that no list order
/// reaches.)
class BytePairEncoder {
 public:
  static constexpr std::size_t kMaxPieceBytes = std::size_t{1} << 30;

  /// `tokens` outlives the encoder. The ids in `rules` are ids of `tokens`.
  BytePairEncoder(const formats::TokenTable& tokens, BytePairRules rules);

  /// Buffers that calls reuse; one per thread of work.
  struct Scratch {
    struct Part {
      std::uint32_t begin, end;  ///< of the part in the piece
      std::int32_t id;           ///< -1 if it is no token
      std::int32_t rank;         ///< of joining this part with the next one
      std::int32_t merged;       ///< what that gives
      std::uint32_t previous, next;
    };
    std::vector<Part> parts;
    std::vector<std::uint64_t> heap;
  };

  /// Appends the ids of `piece`: any bytes, or UTF-8 if rules start from characters; at most
  /// kMaxPieceBytes. Time O(n log n) in its length. Thread-safe with one Scratch per thread. Throws
  /// kInvalidRequest for a piece that is too long.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids, Scratch& scratch) const;

 private:
  void start_from_bytes(std::string_view piece, std::vector<Scratch::Part>& parts) const;
  void start_from_characters(std::string_view piece, std::vector<Scratch::Part>& parts) const;
  template <class JoinRule>
  void merge(Scratch& scratch, const JoinRule& join) const;
  void emit(std::string_view piece, const Scratch::Part& part,
            std::vector<std::int32_t>& ids) const;

  const formats::TokenTable* tokens_;
  BytePairRules rules_;
  std::array<std::int32_t, 256> byte_tokens_{};  ///< the token of each single byte, -1 if none
};

}  // namespace palimpsest::text
