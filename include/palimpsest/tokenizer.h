#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/error.h"

namespace palimpsest {

using TokenId = std::int32_t;

/// What a string may turn into.
enum class EncodeMode {
  kText,     ///< ordinary text: the names of control tokens are letters like any others. For
             ///< everything a user wrote
  kControl,  ///< text of the chat format itself: the names of control tokens become those tokens
};

/// Text to ids and back, as the model's folder defines it.
///
/// A handle: copies share one immutable tokenizer, and every const member may be called from any
/// thread at once.
///
/// The vocabulary has two parts. Ordinary tokens 0 .. ordinary_size()-1 are byte strings. Control
/// tokens ordinary_size() .. vocab_size()-1 have names; a name is only text for people and chat
/// formats, and no ordinary text ever encodes to a control token in kText mode.
class Tokenizer {
 public:
  /// Reads `tiktoken.model` and `tokenizer_config.json` (added_tokens_decoder, bos_token,
  /// eos_token, pad_token), and the stop ids of `generation_config.json` and `config.json` where
  /// these exist.
  ///
  /// `expected_vocab_size` is the number of rows of the model's embedding; it must equal
  /// vocab_size(). Errors: kIo for a file that cannot be read, kInvalidFile for one that does not
  /// hold what it should (named, with line, field and numbers), kUnsupported for a tokenizer_class
  /// other than TikTokenTokenizer.
  static Tokenizer load(const std::filesystem::path& folder,
                        std::optional<std::int64_t> expected_vocab_size = std::nullopt);
  /// Whether there is a tokenizer where load() would look for one. Reads nothing but names.
  static bool available(const std::filesystem::path& path);

  std::int64_t vocab_size() const;
  std::int64_t ordinary_size() const;

  /// The ids of `text`. Nothing is added in front or behind (the Kimi models prepend no [BOS]).
  /// Bytes that are not UTF-8 are first replaced by U+FFFD, one per maximal invalid subpart.
  std::vector<TokenId> encode(std::string_view text, EncodeMode mode = EncodeMode::kText) const;
  /// The same, appended to `ids`.
  void encode(std::string_view text, EncodeMode mode, std::vector<TokenId>& ids) const;

  /// The bytes of `ids`, end to end: not UTF-8 where the ids are not (see StreamDecoder). Control
  /// tokens give their names, or nothing with `skip_special` if is_special(). Errors:
  /// kInvalidRequest for an id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  bool is_valid(TokenId id) const;
  /// Bytes of an ordinary token or name of a control token. Errors: kInvalidRequest for an id
  /// outside the vocabulary.
  std::string_view bytes(TokenId id) const;
  bool is_control(TokenId id) const;
  /// A control token with the `special` flag, or without a name of its own
  /// (`<|reserved_token_N|>`). The markers of the K3 format (<|open|>, <|close|>, <|sep|>) are
  /// control tokens but not special.
  bool is_special(TokenId id) const;
  /// The control token of this name.
  std::optional<TokenId> control(std::string_view name) const;

  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  std::optional<TokenId> pad() const;
  /// Whether this model wants bos() in front of a text. encode() never puts it there; false where
  /// there is no bos().
  bool adds_bos() const;

  /// Ids after which generation ends, ascending: eos_token_id of generation_config.json and of
  /// config.json (top level and text_config), the eos_token of tokenizer_config.json, and
  /// <|end_of_msg|> or <|im_end|> where the vocabulary has them: the Kimi chat formats end a
  /// message with those and never emit [EOS].
  const std::vector<TokenId>& stop_ids() const;
  bool is_stop(TokenId id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Ids to text as they come. What it returns is always valid UTF-8: a character whose bytes are
/// spread over tokens comes out with its last byte, and bytes that can no longer become a character
/// come out as U+FFFD. All pieces together equal the decoded bytes with each maximal invalid
/// subpart replaced by U+FFFD. Not thread-safe; one per sequence.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = false);

  /// Errors: kInvalidRequest for an id outside the vocabulary; the decoder is then unchanged.
  std::string push(TokenId id);
  /// The rest: U+FFFD if a character was left unfinished. The decoder may be used again afterwards.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::string pending_;  ///< the start of a character, at most three bytes
};

}  // namespace palimpsest
