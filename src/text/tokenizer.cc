#include "palimpsest/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "formats/gguf.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_finder.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace palimpsest {
namespace {

using formats::AddedTokenEntry;
using text::TokenKind;
using text::Vocabulary;

/// The tokens that a mode finds in the text as it was written (`raw`), or as it was normalised.
std::vector<AddedTokenEntry> found_tokens(const Vocabulary& vocabulary, EncodeMode mode,
                                          bool normalized) {
  std::vector<AddedTokenEntry> tokens;
  for (const AddedTokenEntry& token : vocabulary.added) {
    const bool ordinary =
        vocabulary.kinds[static_cast<std::size_t>(token.id)] == TokenKind::kOrdinary;
    // Without a normaliser the two passes are the same text.
    const bool late = token.normalized && !vocabulary.normalizer.empty();
    if (late == normalized && (ordinary || mode == EncodeMode::kControl)) tokens.push_back(token);
  }
  return tokens;
}

struct Finders {
  Finders(const Vocabulary& vocabulary, EncodeMode mode)
      : raw(found_tokens(vocabulary, mode, false)),
        normalized(found_tokens(vocabulary, mode, true)) {}
  text::TokenFinder raw, normalized;
};

/// The folder itself, or the one around a file.
std::filesystem::path folder_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return path;
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? "." : parent;
}

Vocabulary read_vocabulary(const std::filesystem::path& path) {
  if (formats::is_gguf(path)) {
    const formats::Gguf gguf = value_or_throw(formats::Gguf::open(path));
    return text::read_gguf_vocabulary(gguf.metadata(), path.string());
  }
  const std::filesystem::path folder = folder_of(path);
  std::error_code ignored;
  const bool is_json = !std::filesystem::exists(folder / "tiktoken.model", ignored) &&
                       std::filesystem::exists(folder / "tokenizer.json", ignored);
  Vocabulary vocabulary =
      is_json ? text::read_tokenizer_json_folder(folder) : text::read_tiktoken_folder(folder);
  for (const std::int64_t id : text::read_eos_ids(folder)) {
    if (id < 0 || id >= vocabulary.size()) {
      throw make_error(ErrorCode::kInvalidFile,
                       "{}: eos_token_id {} is outside the vocabulary of {}", folder.string(), id,
                       vocabulary.size());
    }
    vocabulary.stop_ids.push_back(static_cast<TokenId>(id));
  }
  if (vocabulary.eos) vocabulary.stop_ids.push_back(*vocabulary.eos);
  text::add_known_stops(vocabulary);
  return vocabulary;
}

/// Unknown characters of a text must not begin or end it, whatever a file calls its unknown token:
/// they are left out then.
void keep_unknown_harmless(Vocabulary& vocabulary) {
  auto& unk = vocabulary.rules.unk;
  const auto& stops = vocabulary.stop_ids;
  if (unk && (unk == vocabulary.bos || unk == vocabulary.eos || unk == vocabulary.pad ||
              std::find(stops.begin(), stops.end(), *unk) != stops.end())) {
    unk.reset();
  }
}

/// Models often have more rows than there are tokens: those ids are unused.
void fit_to_model(Vocabulary& vocabulary, std::int64_t rows) {
  if (vocabulary.size() > rows || (vocabulary.exact_size && vocabulary.size() != rows)) {
    throw make_error(ErrorCode::kInvalidFile,
                     "{}: the vocabulary has {} tokens, control tokens included, but the model has "
                     "{}",
                     vocabulary.file, vocabulary.size(), rows);
  }
  if (rows > static_cast<std::int64_t>(formats::TokenTable::kMaxTokens)) {
    throw make_error(ErrorCode::kInvalidFile, "{}: a model of {} rows, the limit is {}",
                     vocabulary.file, rows, formats::TokenTable::kMaxTokens);
  }
  const bool has_decoded = vocabulary.decoded.size() != 0;
  while (vocabulary.size() < rows) {
    vocabulary.add({}, TokenKind::kUnused);
    if (has_decoded) vocabulary.decoded.add_hidden({});
  }
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(Vocabulary read)
      : vocabulary(std::move(read)),
        encoder(vocabulary.tokens, std::move(vocabulary.rules)),
        normalizer(vocabulary.normalizer),
        pre_tokenizer(vocabulary.pre_tokenizer),
        in_text(vocabulary, EncodeMode::kText),
        in_control(vocabulary, EncodeMode::kControl) {
    auto& stops = vocabulary.stop_ids;
    std::sort(stops.begin(), stops.end());
    stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
    ordinary_size = vocabulary.size();
    while (ordinary_size > 0 &&
           kind(static_cast<TokenId>(ordinary_size - 1)) != TokenKind::kOrdinary)
      --ordinary_size;
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  TokenKind kind(TokenId id) const { return vocabulary.kinds[static_cast<std::size_t>(id)]; }

  /// Memory of one call.
  struct Work {
    std::vector<TokenId>& ids;
    text::Regex::Search search{};
    text::BytePairEncoder::Scratch scratch{};
  };

  /// Ids of valid UTF-8. `is_start`: nothing of the whole text comes before.
  void encode(std::string_view utf8, const Finders& finders, bool is_start, Work& work) const {
    for (const auto& segment : finders.raw.split(utf8)) {
      if (segment.id >= 0) {
        work.ids.push_back(segment.id);
      } else if (normalizer.empty()) {
        encode_text(segment.text, is_start && segment.text.data() == utf8.data(), work);
      } else {
        const std::string normal = normalizer.run(segment.text, work.search);
        for (const auto& part : finders.normalized.split(normal)) {
          if (part.id >= 0) {
            work.ids.push_back(part.id);
          } else {
            encode_text(
                part.text,
                is_start && segment.text.data() == utf8.data() && part.text.data() == normal.data(),
                work);
          }
        }
      }
    }
  }

  void encode_text(std::string_view text, bool is_start, Work& work) const {
    pre_tokenizer.split(text, is_start, work.search, [&](std::string_view piece) {
      encoder.encode(piece, work.ids, work.scratch);
    });
  }

  Vocabulary vocabulary;
  text::BytePairEncoder encoder;  ///< refers to vocabulary.tokens
  text::Normalizer normalizer;
  text::PreTokenizer pre_tokenizer;
  Finders in_text, in_control;
  std::int64_t ordinary_size = 0;
};

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::load(const std::filesystem::path& path,
                          std::optional<std::int64_t> expected_vocab_size) {
  Vocabulary vocabulary = read_vocabulary(path);
  if (expected_vocab_size) fit_to_model(vocabulary, *expected_vocab_size);
  return from_vocabulary(std::move(vocabulary));
}

Tokenizer Tokenizer::from_vocabulary(Vocabulary vocabulary) {
  keep_unknown_harmless(vocabulary);
  const std::string file = vocabulary.file;
  try {
    return Tokenizer(std::make_shared<const Impl>(std::move(vocabulary)));
  } catch (Error& error) {
    error.add_context(file);
    throw;
  }
}

bool Tokenizer::available(const std::filesystem::path& path) {
  if (formats::is_gguf(path)) {
    const auto gguf = formats::Gguf::open(path);
    return gguf && gguf->metadata().has("tokenizer.ggml.model");
  }
  const std::filesystem::path folder = folder_of(path);
  std::error_code ignored;
  return std::filesystem::exists(folder / "tiktoken.model", ignored) ||
         std::filesystem::exists(folder / "tokenizer.json", ignored);
}

std::int64_t Tokenizer::vocab_size() const {
  return impl_->vocabulary.size();
}
std::int64_t Tokenizer::ordinary_size() const {
  return impl_->ordinary_size;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeMode mode) const {
  std::vector<TokenId> ids;
  encode(text, mode, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, EncodeMode mode, std::vector<TokenId>& ids) const {
  std::string repaired;
  if (!text::is_valid_utf8(text)) text = repaired = text::repair_utf8(text);
  const Finders& finders = mode == EncodeMode::kControl ? impl_->in_control : impl_->in_text;
  Impl::Work work{ids};
  if (!impl_->vocabulary.kimi_slices) return impl_->encode(text, finders, true, work);
  text::KimiSlicer slicer(text);
  for (std::string_view slice = slicer.next(); !slice.empty(); slice = slicer.next()) {
    impl_->encode(slice, finders, slice.data() == text.data(), work);
  }
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  for (const TokenId id : ids) {
    const std::string_view token = bytes(id);
    if (!skip_special || !is_special(id)) out += token;
  }
  if (impl_->vocabulary.strip_prefix && out.starts_with(' ')) out.erase(0, 1);
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
  const Vocabulary& vocabulary = impl_->vocabulary;
  return (vocabulary.decoded.size() != 0 ? vocabulary.decoded : vocabulary.tokens).token(id);
}

bool Tokenizer::is_control(TokenId id) const {
  if (!is_valid(id)) return false;
  const TokenKind kind = impl_->kind(id);
  return kind == TokenKind::kControl || kind == TokenKind::kSpecial;
}

bool Tokenizer::is_special(TokenId id) const {
  return is_valid(id) && impl_->kind(id) == TokenKind::kSpecial;
}

std::optional<TokenId> Tokenizer::control(std::string_view name) const {
  return impl_->vocabulary.control(name);
}

std::optional<TokenId> Tokenizer::bos() const {
  return impl_->vocabulary.bos;
}
std::optional<TokenId> Tokenizer::eos() const {
  return impl_->vocabulary.eos;
}
std::optional<TokenId> Tokenizer::pad() const {
  return impl_->vocabulary.pad;
}
bool Tokenizer::adds_bos() const {
  return impl_->vocabulary.adds_bos;
}

const std::vector<TokenId>& Tokenizer::stop_ids() const {
  return impl_->vocabulary.stop_ids;
}
bool Tokenizer::is_stop(TokenId id) const {
  return std::binary_search(impl_->vocabulary.stop_ids.begin(), impl_->vocabulary.stop_ids.end(),
                            id);
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
