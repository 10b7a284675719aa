#pragma once

// Reader of tiktoken rank files: one token a line, "base64(token bytes) SPACE rank", as
// `tiktoken.model` holds them.

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "formats/token_table.h"

namespace palimpsest::formats {

/// The tokens of a rank file, found by rank (which is the token's id) and by bytes.
///
/// Ranks are dense: 0 .. size()-1, each once; tokens are distinct and not empty. Immutable after
/// parsing, so it may be read from any thread. Views live as long as the TokenTable behind them.
class TiktokenVocab {
 public:
  static constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
  static constexpr std::size_t kMaxTokenBytes = TokenTable::kMaxTokenBytes;
  static constexpr std::size_t kMaxTokens = TokenTable::kMaxTokens;

  /// Lines may come in any order and end in LF or CRLF; blank lines are skipped.
  /// Errors (kInvalidFile, with the line number): bad base64, a missing or malformed rank, an empty
  /// or oversized token, a rank or token that occurs twice, a rank outside 0 .. lines-1 (that is, a
  /// gap), no token at all.
  static Result<TiktokenVocab> parse(std::string_view text);

  /// parse() of a whole file; errors name the path. kIo when it cannot be read.
  static Result<TiktokenVocab> read(const std::filesystem::path& path);

  std::int32_t size() const { return tokens_.size(); }
  std::size_t max_token_bytes() const { return tokens_.max_token_bytes(); }
  /// Bytes of the token of this rank, 0 <= rank < size().
  std::string_view token(std::int32_t rank) const { return tokens_.token(rank); }
  /// The rank of a token, -1 if there is none.
  std::int32_t find(std::string_view token_bytes) const { return tokens_.find(token_bytes); }

  const TokenTable& tokens() const& { return tokens_; }
  TokenTable tokens() && { return std::move(tokens_); }

 private:
  TiktokenVocab() = default;
  TokenTable tokens_;
};

}  // namespace palimpsest::formats
