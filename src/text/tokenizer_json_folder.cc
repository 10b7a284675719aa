#include <algorithm>

#include "base/error.h"
#include "text/tokenizer_config.h"
#include "text/vocabulary.h"

namespace palimpsest::text {
namespace {

using formats::AddedTokenEntry;
using formats::TokenizerJson;

TokenKind kind_of(const AddedTokenEntry& token) {
  if (token.special) return TokenKind::kSpecial;
  return looks_like_marker(token.text) ? TokenKind::kControl : TokenKind::kOrdinary;
}

void add_tokens(const TokenizerJson& json, Vocabulary& out) {
  std::size_t bytes = 0;
  for (const std::string& token : json.tokens) bytes += token.size();
  out.tokens.reserve(json.tokens.size(), bytes);
  std::vector<TokenKind> kinds(json.tokens.size(), TokenKind::kOrdinary);
  // Words among the added tokens are found before the text is cut, not by merging.
  std::vector<bool> is_word(json.tokens.size(), false);
  for (const AddedTokenEntry& token : json.added) {
    const auto id = static_cast<std::size_t>(token.id);
    kinds[id] = kind_of(token);
    is_word[id] = kinds[id] == TokenKind::kOrdinary;
  }
  for (std::size_t id = 0; id < json.tokens.size(); ++id) {
    const std::string& token = json.tokens[id];
    if (token.empty()) kinds[id] = TokenKind::kUnused;
    if (kinds[id] == TokenKind::kOrdinary && !is_word[id]) {
      out.tokens.add(token);
    } else {
      out.tokens.add_hidden(token);
    }
  }
  out.kinds = std::move(kinds);
}

/// What each token stands for, where spaces and bytes are written in other characters.
void add_decoded(const TokenizerJson& json, Vocabulary& out) {
  if (json.byte_level || (json.space.empty() && !json.byte_fallback)) return;
  std::string text;
  for (std::size_t id = 0; id < json.tokens.size(); ++id) {
    text = json.tokens[id];
    if (out.kinds[id] == TokenKind::kOrdinary) {
      const auto byte = json.byte_fallback ? formats::byte_of_token(text) : std::nullopt;
      text = byte ? std::string(1, static_cast<char>(*byte)) : with_spaces(text, json.space);
    }
    out.decoded.add_hidden(text);
  }
}

BytePairRules rules_of(const TokenizerJson& json, const Vocabulary& vocabulary) {
  BytePairRules rules;
  rules.start = json.byte_level ? BytePairRules::Start::kBytes : BytePairRules::Start::kCharacters;
  rules.join = BytePairRules::Join::kByMerges;
  rules.whole_first = json.ignore_merges;
  rules.unk = json.unk;
  rules.fuse_unk = json.fuse_unk;
  rules.merges = MergeTable(json.merges.size());
  for (std::size_t rank = 0; rank < json.merges.size(); ++rank) {
    const TokenizerJson::Merge& merge = json.merges[rank];
    // Converted vocabularies list merges of control tokens' names, too; text must not reach them.
    if (vocabulary.kinds[static_cast<std::size_t>(merge.merged)] != TokenKind::kOrdinary) continue;
    rules.merges.add(merge.left, merge.right, {static_cast<std::int32_t>(rank), merge.merged});
  }
  for (std::size_t id = 0; json.byte_fallback && id < json.tokens.size(); ++id) {
    if (const auto byte = formats::byte_of_token(json.tokens[id])) {
      rules.byte_ids[*byte] = static_cast<std::int32_t>(id);
    }
  }
  return rules;
}

/// The id of a token that a configuration names.
std::optional<std::int32_t> named_token(const TokenizerJson& json, const std::string& name,
                                        const char* key, const std::string& file) {
  if (name.empty()) return std::nullopt;
  for (const AddedTokenEntry& token : json.added) {
    if (token.text == name) return token.id;
  }
  const auto it = std::find(json.tokens.begin(), json.tokens.end(), name);
  if (it == json.tokens.end()) {
    throw make_error(ErrorCode::kInvalidFile, "{}: {} \"{}\" is not a token of tokenizer.json",
                     file, key, name);
  }
  return static_cast<std::int32_t>(it - json.tokens.begin());
}

}  // namespace

Vocabulary make_vocabulary(const TokenizerJson& json, std::string file) {
  Vocabulary out;
  out.file = std::move(file);
  out.added = json.added;
  add_tokens(json, out);
  add_decoded(json, out);
  out.rules = rules_of(json, out);
  out.normalizer = json.normalizer;
  out.pre_tokenizer = json.pre_tokenizer;
  out.strip_prefix = json.strip_prefix;
  return out;
}

Vocabulary read_tokenizer_json_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  const TokenizerJson json = value_or_throw(TokenizerJson::read(path));
  Vocabulary out = make_vocabulary(json, path.string());
  const TokenizerConfig config = read_tokenizer_configs(folder);
  out.bos = named_token(json, config.bos_token, "bos_token", config.file);
  out.eos = named_token(json, config.eos_token, "eos_token", config.file);
  out.pad = named_token(json, config.pad_token, "pad_token", config.file);
  if (!out.bos && !json.prefix.empty()) out.bos = json.prefix.front();
  const bool in_template = !json.prefix.empty() && out.bos == json.prefix.front();
  out.adds_bos = out.bos.has_value() && config.add_bos_token.value_or(in_template);
  add_known_stops(out);
  return out;
}

}  // namespace palimpsest::text
