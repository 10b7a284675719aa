#pragma once

// Reader of tiktoken rank files: one token a line, "base64(token bytes) SPACE rank", as
// `tiktoken.model` holds them.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace palimpsest::formats {

/// The tokens of a rank file, found by rank (which is the token's id) and by bytes.
///
/// Ranks are dense: 0 .. size()-1, each once; tokens are distinct and not empty. Immutable after
/// parsing, so it may be read from any thread. Views point into the object and live as long as it
/// does (moving it keeps them valid, except that views of a moved-from object belong to the new
/// one).
class TiktokenVocab {
 public:
  static constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
  static constexpr std::size_t kMaxTokenBytes = 4096;
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 24;

  /// Lines may come in any order and end in LF or CRLF; blank lines are skipped.
  /// Errors (kInvalidFile, with the line number): bad base64, a missing or malformed rank, an empty
  /// or oversized token, a rank or token that occurs twice, a rank outside 0 .. lines-1 (that is, a
  /// gap), no token at all.
  static Result<TiktokenVocab> parse(std::string_view text);

  /// parse() of a whole file; errors name the path. kIo when it cannot be read.
  static Result<TiktokenVocab> read(const std::filesystem::path& path);

  std::int32_t size() const { return static_cast<std::int32_t>(begins_.size()) - 1; }
  std::size_t max_token_bytes() const { return max_token_bytes_; }

  /// Bytes of the token of this rank, 0 <= rank < size().
  std::string_view token(std::int32_t rank) const {
    const auto i = static_cast<std::size_t>(rank);
    return {bytes_.data() + begins_[i], begins_[i + 1] - begins_[i]};
  }

  /// The rank of a token, -1 if there is none.
  std::int32_t find(std::string_view token_bytes) const;

 private:
  TiktokenVocab() = default;
  /// The slot that holds `token_bytes`, or the free slot where it would go.
  std::size_t slot_of(std::string_view token_bytes) const;

  std::string bytes_;                  ///< all tokens in rank order, end to end
  std::vector<std::uint32_t> begins_;  ///< size()+1 offsets into bytes_
  std::vector<std::int32_t> slots_;    ///< open addressing, a power of two of entries, -1 = free
  std::size_t max_token_bytes_ = 0;
};

}  // namespace palimpsest::formats
