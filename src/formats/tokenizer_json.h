#pragma once

// Reader of tokenizer.json, the file of Hugging Face's `tokenizers` library: a vocabulary with its
// merges, and the steps that text goes through on its way to ids and back.
// https://github.com/huggingface/tokenizers

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace palimpsest::formats {

/// A change of the text before it is cut into pieces.
struct NormalizerStep {
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kPrepend, kReplace };
  Kind kind = Kind::kNfc;
  std::string pattern;  ///< kReplace: a regular expression (literal texts are quoted)
  std::string content;  ///< kPrepend: put in front of a text that is not empty; kReplace: in place
                        ///< of each match
};

/// A cut of each piece into smaller ones.
struct PreTokenizerStep {
  enum class Kind {
    kSplit,      ///< by a regular expression
    kPrefix,     ///< a piece that does not begin with a space gets one in front
    kMetaspace,  ///< spaces become `replacement`, which is also put in front of pieces
  };
  /// What becomes of a match of kSplit.
  enum class Behavior {
    kIsolated,
    kRemoved,
    kMergedWithPrevious,
    kMergedWithNext,
    kContiguous,  ///< matches that touch are one
  };
  enum class Prepend { kNever, kFirst, kAlways };

  Kind kind = Kind::kSplit;
  std::string pattern{};
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  ///< the pattern matches what stands between separators
  std::string replacement{};
  Prepend prepend = Prepend::kAlways;  ///< kMetaspace; kFirst: only at the start of the text
  bool split = true;                   ///< kMetaspace: cut in front of each `replacement`
};

/// A token that is found in the text before anything else happens to it.
struct AddedTokenEntry {
  std::int32_t id = 0;
  std::string text;
  bool special = false;      ///< not part of decoded text for people
  bool single_word = false;  ///< only where no letter, digit or underscore touches it
  bool lstrip = false;       ///< takes the white space in front with it
  bool rstrip = false;       ///< takes the white space behind with it
  bool normalized = true;    ///< looked for in the normalised text
};

struct TokenizerJson {
  static constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
  static constexpr std::size_t kMaxSteps = 64;  ///< of each chain

  struct Merge {
    std::int32_t left, right, merged;
  };

  /// By id; empty where the file has no token. Byte strings where `byte_level`, else UTF-8.
  std::vector<std::string> tokens;
  std::vector<Merge> merges;  ///< the first has the lowest rank
  std::vector<AddedTokenEntry> added;
  bool byte_level = false;  ///< pieces are encoded as bytes, not as characters
  bool byte_fallback =
      false;  ///< a character without a token is written as tokens <0x00> .. <0xFF>
  bool ignore_merges = false;  ///< a piece that is a token stays whole
  bool fuse_unk = false;       ///< unknown characters in a row are one token
  std::optional<std::int32_t> unk;

  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;

  std::string space;          ///< what stands for a space in `tokens`, empty if that is a space
  bool strip_prefix = false;  ///< the first space of a decoded text is not part of it

  /// What the post-processor puts in front of a text and behind it.
  std::vector<std::int32_t> prefix, suffix;

  /// Errors, kInvalidFile: no JSON; a field of the wrong type (named); ids twice, negative or far
  /// beyond the number of tokens; a token twice; a merge whose parts or whose result is no token;
  /// an added token that names another token's id. kUnsupported: a component that this reader does
  /// not know, with the list of those it knows.
  static Result<TokenizerJson> parse(std::string_view text);
  /// parse() of a whole file; errors name the path. kIo when it cannot be read.
  static Result<TokenizerJson> read(const std::filesystem::path& path);
};

/// The bytes that a token in the byte-level alphabet stands for: there, each byte is one printable
/// character (those of GPT-2). Nothing if a character is not in the alphabet.
std::optional<std::string> from_byte_level(std::string_view utf8);

/// The byte N of a token "<0xNN>".
std::optional<std::uint8_t> byte_of_token(std::string_view token);

/// A regular expression that matches exactly `text`.
std::string quote_pattern(std::string_view text);

/// The pattern of GPT-2, which the byte-level pre-tokenizer cuts by.
extern const char* const kGpt2Pattern;

}  // namespace palimpsest::formats
