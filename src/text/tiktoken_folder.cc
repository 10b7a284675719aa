#include <algorithm>

#include "base/error.h"
#include "formats/tiktoken_vocab.h"
#include "text/known_pre_tokenizers.h"
#include "text/tokenizer_config.h"
#include "text/vocabulary.h"

namespace palimpsest::text {
namespace {

// The Kimi tokenizers append this many control tokens to the rank file, named or not.
constexpr std::int64_t kControlTokens = 256;

/// All control tokens: those of the file, and `<|reserved_token_ID|>` for the rest.
std::vector<formats::AddedTokenEntry> control_tokens(const TokenizerConfig& config,
                                                     const std::string& file,
                                                     std::int64_t first_id) {
  std::vector<formats::AddedTokenEntry> tokens;
  for (std::int64_t id = first_id; id < first_id + kControlTokens; ++id) {
    tokens.push_back({.id = static_cast<std::int32_t>(id),
                      .text = fmt::format("<|reserved_token_{}|>", id),
                      .special = true,
                      .normalized = false});
  }
  for (const auto& [id, token] : config.added_tokens) {
    if (id < first_id || id >= first_id + kControlTokens) {
      throw make_error(ErrorCode::kInvalidFile,
                       "{}: added token \"{}\" has id {}, outside the {} control ids from {} that "
                       "follow tiktoken.model",
                       file, token.name, id, kControlTokens, first_id);
    }
    if (token.name.empty()) {
      throw make_error(ErrorCode::kInvalidFile, "{}: added token {} has an empty name", file, id);
    }
    auto& place = tokens[static_cast<std::size_t>(id - first_id)];
    place.text = token.name;
    place.special = token.special;
  }
  std::vector<std::string_view> sorted;
  for (const auto& token : tokens) sorted.push_back(token.text);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw make_error(ErrorCode::kInvalidFile, "{}: two added tokens are named \"{}\"", file,
                     *twice);
  }
  return tokens;
}

/// Without a token for each byte, some text would have no ids.
void check_bytes(const formats::TokenTable& tokens, const std::string& file) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (tokens.find({&c, 1}) >= 0) continue;
    throw make_error(ErrorCode::kInvalidFile,
                     "{}: byte 0x{:02x} is not a token: some text would have no ids", file, byte);
  }
}

std::optional<std::int32_t> named_token(const Vocabulary& vocabulary, const std::string& name,
                                        const char* key, const std::string& file) {
  if (name.empty()) return std::nullopt;
  const auto id = vocabulary.control(name);
  if (!id) {
    throw make_error(ErrorCode::kInvalidFile, "{}: {} \"{}\" is not an added token", file, key,
                     name);
  }
  return id;
}

}  // namespace

Vocabulary read_tiktoken_folder(const std::filesystem::path& folder) {
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  const std::string file = config_path.string();
  const TokenizerConfig config = read_tokenizer_config(config_path);
  if (config.tokenizer_class != "TikTokenTokenizer") {
    throw make_error(ErrorCode::kUnsupported,
                     "{}: tokenizer_class \"{}\" (beside a tiktoken.model this build reads "
                     "TikTokenTokenizer)",
                     file, config.tokenizer_class);
  }
  if (!config.has_added_tokens) {
    throw make_error(ErrorCode::kInvalidFile, "{}: no object added_tokens_decoder", file);
  }
  const std::filesystem::path ranks_path = folder / "tiktoken.model";
  Vocabulary vocabulary;
  vocabulary.file = ranks_path.string();
  vocabulary.tokens = value_or_throw(formats::TiktokenVocab::read(ranks_path)).tokens();
  check_bytes(vocabulary.tokens, vocabulary.file);
  vocabulary.kinds.assign(static_cast<std::size_t>(vocabulary.tokens.size()), TokenKind::kOrdinary);
  vocabulary.added = control_tokens(config, file, vocabulary.tokens.size());
  for (const auto& token : vocabulary.added) {
    vocabulary.add(token.text, token.special ? TokenKind::kSpecial : TokenKind::kControl);
  }
  vocabulary.pre_tokenizer = {{.pattern = kKimiPattern}};
  vocabulary.kimi_slices = true;
  vocabulary.exact_size = true;
  vocabulary.bos = named_token(vocabulary, config.bos_token, "bos_token", file);
  vocabulary.eos = named_token(vocabulary, config.eos_token, "eos_token", file);
  vocabulary.pad = named_token(vocabulary, config.pad_token, "pad_token", file);
  return vocabulary;
}

}  // namespace palimpsest::text
