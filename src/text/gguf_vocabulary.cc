#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/known_pre_tokenizers.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace palimpsest::text {
namespace {

using formats::GgufMetadata;

constexpr const char* kSpaceMark = "\u2581";  // stands for a space in SentencePiece's tokens

/// tokenizer.ggml.token_type
enum TokenType : std::int64_t {
  kUndefined,
  kNormal,
  kUnknown,
  kControlType,
  kUserDefined,
  kUnusedType,
  kByte,
};

class Reader {
 public:
  Reader(const GgufMetadata& metadata, const std::string& file) : metadata_(metadata) {
    out_.file = file;
  }

  Vocabulary run() {
    const std::string_view model = metadata_.string("tokenizer.ggml.model");
    const bool bytes = model == "gpt2";
    if (!bytes && model != "llama") {
      throw make_error(ErrorCode::kUnsupported, "{}: \"{}\" (this build reads gpt2, llama)",
                       metadata_.where("tokenizer.ggml.model"), model);
    }
    names_ = metadata_.strings("tokenizer.ggml.tokens");
    check_counts();
    read_ids();
    read_types();
    if (bytes) {
      read_byte_level();
    } else {
      read_sentence_pieces();
    }
    out_.adds_bos = out_.bos && metadata_.find_boolean("tokenizer.ggml.add_bos_token")
                                    .value_or(bytes ? known_->adds_bos : true);
    add_known_stops(out_);
    return std::move(out_);
  }

 private:
  void check_counts() const {
    const std::string where = metadata_.where("tokenizer.ggml.tokens");
    if (names_.empty() || names_.size() > formats::TokenTable::kMaxTokens) {
      throw make_error(ErrorCode::kInvalidFile, "{}: {} tokens, allowed are 1 to {}", where,
                       names_.size(), formats::TokenTable::kMaxTokens);
    }
    for (std::size_t id = 0; id < names_.size(); ++id) {
      if (names_[id].size() <= formats::TokenTable::kMaxTokenBytes) continue;
      throw make_error(ErrorCode::kInvalidFile, "{}: token {} has {} bytes, the limit is {}", where,
                       id, names_[id].size(), formats::TokenTable::kMaxTokenBytes);
    }
  }

  template <class T>
  void check_length(const char* key, const std::vector<T>& list) const {
    if (list.size() == names_.size()) return;
    throw make_error(ErrorCode::kInvalidFile, "{}: {} values for {} tokens", metadata_.where(key),
                     list.size(), names_.size());
  }

  std::optional<std::int32_t> id(const char* key) const {
    // Writers put 2^32 - 1 (or -1) where a vocabulary has no such token.
    const auto value = metadata_.find_integer(key, {.min = -1});
    if (!value || *value < 0 || *value == 0xffffffff) return std::nullopt;
    if (*value >= static_cast<std::int64_t>(names_.size())) {
      throw make_error(ErrorCode::kInvalidFile, "{}: id {} is outside the vocabulary of {}",
                       metadata_.where(key), *value, names_.size());
    }
    return static_cast<std::int32_t>(*value);
  }

  void read_ids() {
    out_.bos = id("tokenizer.ggml.bos_token_id");
    out_.eos = id("tokenizer.ggml.eos_token_id");
    out_.pad = id("tokenizer.ggml.padding_token_id");
    unknown_ = id("tokenizer.ggml.unknown_token_id");
    if (out_.eos) out_.stop_ids.push_back(*out_.eos);
    for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      if (const auto stop = id(key)) out_.stop_ids.push_back(*stop);
    }
  }

  void read_types() {
    constexpr const char* kKey = "tokenizer.ggml.token_type";
    types_ = metadata_.find_integers(kKey, {.min = kUndefined, .max = kByte});
    if (metadata_.has(kKey)) {
      check_length(kKey, types_);
    } else {
      types_.assign(names_.size(), kNormal);
    }
    // Old files mark the ends of a text as ordinary; their names must still not come from text.
    std::vector<std::int32_t> ends = out_.stop_ids;
    if (out_.bos) ends.push_back(*out_.bos);
    for (const std::int32_t end : ends) {
      const auto i = static_cast<std::size_t>(end);
      if (types_[i] == kNormal && looks_like_marker(names_[i])) types_[i] = kControlType;
    }
  }

  TokenKind kind(std::size_t i) const {
    switch (types_[i]) {
      case kUnknown:
      case kControlType:
        return TokenKind::kSpecial;
      case kUserDefined:
        return looks_like_marker(names_[i]) ? TokenKind::kControl : TokenKind::kOrdinary;
      case kUnusedType:
        return TokenKind::kUnused;
      default:
        return TokenKind::kOrdinary;
    }
  }

  /// Tokens with names that are found in text as a whole. Returns whether token i is one.
  bool add_named(std::size_t i) {
    const TokenKind what = kind(i);
    const bool named =
        types_[i] == kUnknown || types_[i] == kControlType || types_[i] == kUserDefined;
    if (named && !names_[i].empty()) {
      out_.added.push_back({.id = static_cast<std::int32_t>(i),
                            .text = std::string(names_[i]),
                            .special = what == TokenKind::kSpecial,
                            .normalized = false});
    }
    if (!named && what != TokenKind::kUnused) return false;
    out_.tokens.add_hidden(names_[i]);
    out_.kinds.push_back(names_[i].empty() ? TokenKind::kUnused : what);
    return true;
  }

  void check_new(std::size_t i, std::int32_t found) const {
    if (found == static_cast<std::int32_t>(i)) return;
    throw make_error(ErrorCode::kInvalidFile, "{}: token {} \"{}\" is token {} again",
                     metadata_.where("tokenizer.ggml.tokens"), i, names_[i], found);
  }

  void read_byte_level() {
    const std::string_view pre = metadata_.find_string("tokenizer.ggml.pre").value_or("default");
    known_ = find_pre_tokenizer(pre);
    if (!known_) {
      throw make_error(ErrorCode::kUnsupported, "{}: \"{}\" (this build knows {})",
                       metadata_.where("tokenizer.ggml.pre"), pre, known_pre_tokenizer_names());
    }
    for (const char* pattern : known_->patterns) out_.pre_tokenizer.push_back({.pattern = pattern});
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (add_named(i)) continue;
      const auto token = formats::from_byte_level(names_[i]);
      out_.kinds.push_back(names_[i].empty() ? TokenKind::kUnused : TokenKind::kOrdinary);
      if (token) {
        check_new(i, out_.tokens.add(*token));
      } else {
        out_.tokens.add_hidden(names_[i]);
      }
    }
    out_.rules.join = BytePairRules::Join::kByMerges;
    out_.rules.whole_first = known_->whole_first;
    read_merges();
  }

  void read_merges() {
    constexpr const char* kKey = "tokenizer.ggml.merges";
    const auto merges = metadata_.strings(kKey);
    if (merges.size() > formats::TokenTable::kMaxTokens) {
      throw make_error(ErrorCode::kInvalidFile, "{}: {} merges, the limit is {}",
                       metadata_.where(kKey), merges.size(), formats::TokenTable::kMaxTokens);
    }
    out_.rules.merges = MergeTable(merges.size());
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
      const std::string_view merge = merges[rank];
      const std::size_t space = merge.find(' ', 1);
      if (merge.empty() || space == std::string_view::npos) {
        throw make_error(ErrorCode::kInvalidFile, "{}: merge {} \"{}\" is not a pair of tokens",
                         metadata_.where(kKey), rank, merge);
      }
      const auto find = [&](std::string_view part, std::string_view rest) {
        const auto bytes = formats::from_byte_level(std::string(part).append(rest));
        const std::int32_t found = bytes ? out_.tokens.find(*bytes) : -1;
        if (found < 0) {
          throw make_error(ErrorCode::kInvalidFile,
                           "{}: merge {} \"{}\": \"{}{}\" is no token of text",
                           metadata_.where(kKey), rank, merge, part, rest);
        }
        return found;
      };
      const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
      const std::int32_t left_id = find(left, ""), right_id = find(right, "");
      out_.rules.merges.add(left_id, right_id,
                            {static_cast<std::int32_t>(rank), find(left, right)});
    }
  }

  void read_sentence_pieces() {
    constexpr const char* kKey = "tokenizer.ggml.scores";
    const std::vector<float> scores = metadata_.floats(kKey);
    check_length(kKey, scores);
    for (std::size_t i = 0; i < names_.size(); ++i) {
      std::string decoded(names_[i]);
      if (types_[i] == kByte) {
        const auto byte = formats::byte_of_token(names_[i]);
        if (!byte) {
          throw make_error(ErrorCode::kInvalidFile,
                           "{}: token {} \"{}\" is marked as a byte but is not <0x00> .. <0xFF>",
                           metadata_.where("tokenizer.ggml.tokens"), i, names_[i]);
        }
        out_.rules.byte_ids[*byte] = static_cast<std::int32_t>(i);
        decoded = std::string(1, static_cast<char>(*byte));
        out_.tokens.add_hidden(names_[i]);
        out_.kinds.push_back(TokenKind::kOrdinary);
      } else if (!add_named(i)) {
        check_new(i, out_.tokens.add(names_[i]));
        out_.kinds.push_back(names_[i].empty() ? TokenKind::kUnused : TokenKind::kOrdinary);
        decoded = with_spaces(names_[i], kSpaceMark);
      }
      out_.decoded.add_hidden(decoded);
    }
    out_.rules.start = BytePairRules::Start::kCharacters;
    out_.rules.join = BytePairRules::Join::kByScore;
    out_.rules.whole_first = false;
    out_.rules.unk = unknown_;
    out_.rules.ranks = ranks_of(scores);
    out_.strip_prefix = metadata_.find_boolean("tokenizer.ggml.add_space_prefix").value_or(true);
    if (out_.strip_prefix) {
      out_.normalizer.push_back({formats::NormalizerStep::Kind::kPrepend, {}, " "});
    }
    out_.normalizer.push_back({formats::NormalizerStep::Kind::kReplace, " ", kSpaceMark});
  }

  /// 0 for the highest score; equal scores have equal ranks.
  std::vector<std::int32_t> ranks_of(const std::vector<float>& scores) const {
    std::vector<float> sorted = scores;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (std::isnan(scores[i])) {
        throw make_error(ErrorCode::kInvalidFile, "{}: the score of token {} is not a number",
                         metadata_.where("tokenizer.ggml.scores"), i);
      }
    }
    std::sort(sorted.begin(), sorted.end(), std::greater<>{});
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    std::vector<std::int32_t> ranks;
    ranks.reserve(scores.size());
    for (const float score : scores) {
      const auto place = std::lower_bound(sorted.begin(), sorted.end(), score, std::greater<>{});
      ranks.push_back(static_cast<std::int32_t>(place - sorted.begin()));
    }
    return ranks;
  }

  const GgufMetadata& metadata_;
  Vocabulary out_;
  std::vector<std::string_view> names_;
  std::vector<std::int64_t> types_;
  std::optional<std::int32_t> unknown_;
  const KnownPreTokenizer* known_ = nullptr;
};

}  // namespace

Vocabulary read_gguf_vocabulary(const formats::GgufMetadata& metadata, const std::string& file) {
  return Reader(metadata, file).run();
}

}  // namespace palimpsest::text
