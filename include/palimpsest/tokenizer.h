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

namespace text {
struct Vocabulary;
}

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
/// Ordinary tokens are byte strings. Control tokens have names; a name is only text for people and
/// chat formats, and no text ever encodes to a control token in kText mode (but characters without
/// a token may become the vocabulary's unknown token, if it has one). Which of the two an id is,
/// is_control() says: in most vocabularies control tokens come last, in some they come first or
/// lie in between. Ids that a model has a row for but the tokenizer has no token for are neither;
/// they decode to nothing.
class Tokenizer {
 public:
  /// `path` is a .gguf file, which holds its own tokenizer (tokenizer.ggml.model gpt2 or llama); or
  /// a folder, or a file in it, with
  ///   tiktoken.model and tokenizer_config.json (added_tokens_decoder, bos_token, eos_token,
  ///   pad_token), or else
  ///   tokenizer.json (byte-pair models of Hugging Face's tokenizers) and, where they exist,
  ///   tokenizer_config.json and special_tokens_map.json;
  /// and the stop ids of generation_config.json and config.json where these exist.
  ///
  /// An added token that its file does not mark as special is a control token if it looks like one
  /// (<think>, [INST]), else a word that text may become.
  ///
  /// `expected_vocab_size` is the number of rows of the model's embedding. A tiktoken.model must
  /// have as many tokens; the others may have fewer, and vocab_size() is then the number of rows.
  /// Errors: kIo for a file that cannot be read, kInvalidFile for one that does not hold what it
  /// should (named, with line or field and numbers), kUnsupported for a tokenizer_class, component
  /// or pre-tokenizer that this build does not know (named, with those it knows).
  static Tokenizer load(const std::filesystem::path& path,
                        std::optional<std::int64_t> expected_vocab_size = std::nullopt);
  /// The same from memory. `vocabulary` is internal to the library (text/vocabulary.h). Errors:
  /// kUnsupported for a pattern that this build cannot run.
  static Tokenizer from_vocabulary(text::Vocabulary vocabulary);
  /// Whether there is a tokenizer where load() would look for one. Does not throw.
  static bool available(const std::filesystem::path& path);

  std::int64_t vocab_size() const;
  /// One past the highest ordinary id: ids from there on are control tokens or unused.
  std::int64_t ordinary_size() const;

  /// The ids of `text`. No bos() or eos() is added (see adds_bos()).
  /// Bytes that are not UTF-8 are first replaced by U+FFFD, one per maximal invalid subpart.
  std::vector<TokenId> encode(std::string_view text, EncodeMode mode = EncodeMode::kText) const;
  /// The same, appended to `ids`.
  void encode(std::string_view text, EncodeMode mode, std::vector<TokenId>& ids) const;

  /// The bytes of `ids`, end to end: not UTF-8 where the ids are not (see StreamDecoder). Control
  /// tokens give their names, or nothing with `skip_special` if is_special(). Vocabularies that put
  /// a space in front of a text when they encode it lose it again here, at the front of `ids`.
  /// Errors: kInvalidRequest for an id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  bool is_valid(TokenId id) const;
  /// Bytes of an ordinary token or name of a control token. Errors: kInvalidRequest for an id
  /// outside the vocabulary.
  std::string_view bytes(TokenId id) const;
  bool is_control(TokenId id) const;
  /// A control token with the `special` flag, or without a name of its own
  /// (`<|reserved_token_N|>` of a tiktoken.model). The markers of the K3 format (<|open|>,
  /// <|close|>, <|sep|>) are control tokens but not special.
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
  /// config.json (top level and text_config), the eos_token of tokenizer_config.json, or the eos,
  /// eot and eom ids of a GGUF file; and the control tokens that end a message in the known chat
  /// formats
  /// (<|end_of_msg|>, <|im_end|>, <|eot_id|>, ...) where the vocabulary has them.
  const std::vector<TokenId>& stop_ids() const;
  bool is_stop(TokenId id) const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Ids to text as they come. What it returns is always valid UTF-8: a character whose bytes are
/// spread over tokens comes out with its last byte, and bytes that can no longer become a character
/// come out as U+FFFD. All pieces together equal the tokens' bytes, end to end, with each maximal
/// invalid subpart replaced by U+FFFD (a space in front stays: ids may continue a text). Not
/// thread-safe; one per sequence.
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
