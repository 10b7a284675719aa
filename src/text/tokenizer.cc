#include "palimpsest/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "formats/tiktoken_vocab.h"
#include "text/byte_pair_encoder.h"
#include "text/control_names.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

namespace palimpsest {
namespace {

// The Kimi tokenizers append this many control tokens to the rank file, named or not.
constexpr std::int64_t kControlTokens = 256;

}  // namespace

struct Tokenizer::Impl {
  Impl(formats::TiktokenVocab ordinary_tokens, std::vector<std::string> names,
       std::vector<bool> special_flags)
      : ordinary(std::move(ordinary_tokens)),
        encoder(ordinary),
        pre_tokenizer(text::PreTokenizer::kimi()),
        control_names(std::move(names)),
        special(std::move(special_flags)),
        control_index(ordinary.size(), control_names) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::int64_t vocab_size() const {
    return ordinary.size() + static_cast<std::int64_t>(control_names.size());
  }

  /// Ordinary ids of valid UTF-8 without control tokens.
  void encode_text(std::string_view utf8, std::vector<TokenId>& ids,
                   text::BytePairEncoder::Scratch& scratch) const {
    text::PreTokenizer::Walk walk(pre_tokenizer, utf8);
    for (std::string_view piece = walk.next(); !piece.empty(); piece = walk.next()) {
      encoder.encode(piece, ids, scratch);
    }
  }

  formats::TiktokenVocab ordinary;
  text::BytePairEncoder encoder;  ///< refers to `ordinary`
  text::PreTokenizer pre_tokenizer;
  std::vector<std::string> control_names;  ///< by id - ordinary.size()
  std::vector<bool> special;               ///< likewise
  text::ControlNames control_index;        ///< refers to `control_names`
  std::optional<TokenId> bos, eos, pad;
  std::vector<TokenId> stop_ids;
};

namespace {

/// The names of all control tokens: those of the file, and `<|reserved_token_ID|>` for the rest.
void name_control_tokens(const text::TokenizerConfig& config, const std::string& file,
                         std::int64_t first_id, std::vector<std::string>& names,
                         std::vector<bool>& special) {
  for (std::int64_t id = first_id; id < first_id + kControlTokens; ++id) {
    names.push_back(fmt::format("<|reserved_token_{}|>", id));
    special.push_back(true);
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
    names[static_cast<std::size_t>(id - first_id)] = token.name;
    special[static_cast<std::size_t>(id - first_id)] = token.special;
  }
  std::vector<std::string_view> sorted(names.begin(), names.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    throw make_error(ErrorCode::kInvalidFile, "{}: two added tokens are named \"{}\"", file,
                     *twice);
  }
}

std::optional<TokenId> named_token(const text::ControlNames& index, const std::string& name,
                                   const char* key, const std::string& file) {
  if (name.empty()) return std::nullopt;
  const auto id = index.find(name);
  if (!id)
    throw make_error(ErrorCode::kInvalidFile, "{}: {} \"{}\" is not an added token", file, key,
                     name);
  return id;
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::load(const std::filesystem::path& folder,
                          std::optional<std::int64_t> expected_vocab_size) {
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  const std::string file = config_path.string();
  const text::TokenizerConfig config = text::read_tokenizer_config(config_path);
  if (config.tokenizer_class != "TikTokenTokenizer") {
    throw make_error(ErrorCode::kUnsupported,
                     "{}: tokenizer_class \"{}\" (this build reads TikTokenTokenizer)", file,
                     config.tokenizer_class);
  }
  const std::filesystem::path ranks_path = folder / "tiktoken.model";
  formats::TiktokenVocab ordinary = value_or_throw(formats::TiktokenVocab::read(ranks_path));
  const std::int64_t total = ordinary.size() + kControlTokens;
  if (expected_vocab_size && *expected_vocab_size != total) {
    throw make_error(ErrorCode::kInvalidFile,
                     "{}: {} tokens and {} control tokens make {}, but the model has {}",
                     ranks_path.string(), ordinary.size(), kControlTokens, total,
                     *expected_vocab_size);
  }
  std::vector<std::string> names;
  std::vector<bool> special;
  name_control_tokens(config, file, ordinary.size(), names, special);

  std::shared_ptr<Impl> impl;
  try {
    impl = std::make_shared<Impl>(std::move(ordinary), std::move(names), std::move(special));
  } catch (Error& error) {
    error.add_context(ranks_path.string());
    throw;
  }
  impl->bos = named_token(impl->control_index, config.bos_token, "bos_token", file);
  impl->eos = named_token(impl->control_index, config.eos_token, "eos_token", file);
  impl->pad = named_token(impl->control_index, config.pad_token, "pad_token", file);
  for (const std::int64_t id : text::read_eos_ids(folder)) {
    if (id < 0 || id >= total) {
      throw make_error(ErrorCode::kInvalidFile,
                       "{}: eos_token_id {} is outside the vocabulary of {}", folder.string(), id,
                       total);
    }
    impl->stop_ids.push_back(static_cast<TokenId>(id));
  }
  for (const auto id : {impl->eos, impl->control_index.find("<|end_of_msg|>"),
                        impl->control_index.find("<|im_end|>")}) {
    if (id) impl->stop_ids.push_back(*id);
  }
  std::sort(impl->stop_ids.begin(), impl->stop_ids.end());
  impl->stop_ids.erase(std::unique(impl->stop_ids.begin(), impl->stop_ids.end()),
                       impl->stop_ids.end());
  return Tokenizer(std::move(impl));
}

bool Tokenizer::available(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  return std::filesystem::exists((is_folder ? path : path.parent_path()) / "tiktoken.model",
                                 ignored);
}

std::int64_t Tokenizer::vocab_size() const {
  return impl_->vocab_size();
}
std::int64_t Tokenizer::ordinary_size() const {
  return impl_->ordinary.size();
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeMode mode) const {
  std::vector<TokenId> ids;
  encode(text, mode, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, EncodeMode mode, std::vector<TokenId>& ids) const {
  std::string repaired;
  if (!text::is_valid_utf8(text)) text = repaired = text::repair_utf8(text);
  text::BytePairEncoder::Scratch scratch;
  text::KimiSlicer slicer(text);
  for (std::string_view slice = slicer.next(); !slice.empty(); slice = slicer.next()) {
    std::size_t at = 0;
    while (mode == EncodeMode::kControl) {
      const auto match = impl_->control_index.find_first(slice, at);
      if (!match) break;
      impl_->encode_text(slice.substr(at, match->begin - at), ids, scratch);
      ids.push_back(match->id);
      at = match->begin + match->size;
    }
    impl_->encode_text(slice.substr(at), ids, scratch);
  }
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  for (const TokenId id : ids) {
    const std::string_view token = bytes(id);
    if (!skip_special || !is_special(id)) out += token;
  }
  return out;
}

bool Tokenizer::is_valid(TokenId id) const {
  return id >= 0 && id < vocab_size();
}

std::string_view Tokenizer::bytes(TokenId id) const {
  if (!is_valid(id)) {
    throw make_error(ErrorCode::kInvalidRequest, "token id {} is outside the vocabulary of {}", id,
                     vocab_size());
  }
  if (!is_control(id)) return impl_->ordinary.token(id);
  return impl_->control_names[static_cast<std::size_t>(id - impl_->ordinary.size())];
}

bool Tokenizer::is_control(TokenId id) const {
  return id >= impl_->ordinary.size() && is_valid(id);
}

bool Tokenizer::is_special(TokenId id) const {
  return is_control(id) && impl_->special[static_cast<std::size_t>(id - impl_->ordinary.size())];
}

std::optional<TokenId> Tokenizer::control(std::string_view name) const {
  return impl_->control_index.find(name);
}

std::optional<TokenId> Tokenizer::bos() const {
  return impl_->bos;
}
std::optional<TokenId> Tokenizer::eos() const {
  return impl_->eos;
}
std::optional<TokenId> Tokenizer::pad() const {
  return impl_->pad;
}

bool Tokenizer::adds_bos() const {
  return false;
}

const std::vector<TokenId>& Tokenizer::stop_ids() const {
  return impl_->stop_ids;
}
bool Tokenizer::is_stop(TokenId id) const {
  return std::binary_search(impl_->stop_ids.begin(), impl_->stop_ids.end(), id);
}

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string StreamDecoder::push(TokenId id) {
  const std::string_view token = tokenizer_.bytes(id);
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  pending_ += token;
  const std::size_t complete = text::complete_prefix(pending_);
  std::string out = text::repair_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = text::repair_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace palimpsest
