#include "model/gguf/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "formats/quote.h"
#include "formats/tokenizer_listing.h"

namespace palimpsest {
namespace {

using formats::TokenizerListing;

// llama.cpp's token types.
constexpr std::int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

struct Tokens {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;

  /// Ids without a token are called [PADn].
  explicit Tokens(std::int64_t count) : types(static_cast<std::size_t>(count), kUnused) {
    for (std::int64_t id = 0; id < count; ++id) texts.push_back(fmt::format("[PAD{}]", id));
  }
  void set(std::int64_t id, std::string text, std::int32_t type) {
    if (id < 0 || id >= static_cast<std::int64_t>(texts.size())) {
      throw make_error(ErrorCode::kInvalidFile, "token {} has id {}, but the model has {} rows", formats::quote(text), id, texts.size());
    }
    texts[static_cast<std::size_t>(id)] = std::move(text);
    types[static_cast<std::size_t>(id)] = type;
  }
  void set(const std::vector<TokenizerListing::Added>& added) {
    for (const auto& token : added) set(token.id, token.text, token.special ? kControl : kUserDefined);
  }
};

void add_ids(formats::GgufPairs& pairs, const ModelConfig& config) {
  const auto add = [&](std::string_view name, std::int64_t id) {
    pairs.add(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<std::uint32_t>(id));
  };
  if (config.bos_token_id >= 0) add("bos", config.bos_token_id);
  if (config.pad_token_id >= 0) add("padding", config.pad_token_id);
  constexpr std::string_view kEnds[] = {"eos", "eot", "eom"};
  if (config.eos_token_ids.size() > std::size(kEnds)) {
    throw make_error(ErrorCode::kUnsupported, "{} ids that end an answer: GGUF has keys for {}", config.eos_token_ids.size(), std::size(kEnds));
  }
  for (std::size_t i = 0; i < config.eos_token_ids.size(); ++i) add(kEnds[i], config.eos_token_ids[i]);
}

void add_lists(formats::GgufPairs& pairs, std::string_view pre, const Tokens& tokens, const std::vector<std::string>& merges) {
  pairs.add("tokenizer.ggml.model", "gpt2");
  pairs.add("tokenizer.ggml.pre", pre);
  pairs.add("tokenizer.ggml.tokens", std::span(tokens.texts));
  pairs.add("tokenizer.ggml.token_type", std::span(tokens.types));
  pairs.add("tokenizer.ggml.merges", std::span(merges));
}

/// How llama.cpp calls the expressions that text is cut with.
std::string_view pre_name(const TokenizerListing& listing) {
  constexpr std::string_view kHead = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
  constexpr std::string_view kTail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (listing.split_patterns.empty() && listing.byte_level_regex) return listing.splits_digits ? "smollm" : "gpt-2";
  if (listing.split_patterns.size() != 1 || listing.splits_digits || listing.byte_level_regex) return {};
  const std::string& pattern = listing.split_patterns.front();
  if (pattern == fmt::format("{}{{1,3}}{}", kHead, kTail)) return "llama-bpe";
  if (pattern == fmt::format("{}{}", kHead, kTail)) return "qwen2";
  return {};
}

void add_tiktoken(formats::GgufPairs& pairs, const ModelConfig& config, const std::filesystem::path& file, const formats::TokenizerExtras& extras) {
  const auto vocabulary = value_or_throw(formats::TiktokenVocab::read(file));
  Tokens tokens(config.vocab_size);
  for (std::int32_t rank = 0; rank < vocabulary.size(); ++rank) tokens.set(rank, printable_bytes(vocabulary.token(rank)), kNormal);
  for (std::int64_t id = vocabulary.size(); id < config.vocab_size; ++id) tokens.set(id, fmt::format("<|reserved_token_{}|>", id), kControl);
  // Behind the ranks all are control tokens, also those that Hugging Face's file calls not special.
  for (const auto& token : extras.added) tokens.set(token.id, token.text, kControl);
  add_lists(pairs, "kimi-k2", tokens, merges_of_ranks(vocabulary));
}

void add_tokenizer_json(formats::GgufPairs& pairs, const ModelConfig& config, const std::filesystem::path& file, const formats::TokenizerExtras& extras) {
  const auto listing = value_or_throw(formats::read_tokenizer_listing(file));
  const std::string_view pre = pre_name(listing);
  if (listing.model != "BPE" || listing.byte_fallback || pre.empty()) {
    throw make_error(ErrorCode::kUnsupported, "'{}': only byte-level BPE with the pre-tokenizers gpt-2, llama-bpe, qwen2 and smollm can be written to GGUF",
                     file.string());
  }
  Tokens tokens(config.vocab_size);
  for (const auto& [text, id] : listing.vocabulary) tokens.set(id, text, kNormal);
  tokens.set(listing.added);
  tokens.set(extras.added);
  add_lists(pairs, pre, tokens, listing.merges);
}

}  // namespace

std::string printable_bytes(std::string_view bytes) {
  // Latin-1 characters that print stand for themselves; the 68 others follow at U+0100 in the order of their bytes.
  static const std::array<std::string, 256> kPrintable = [] {
    std::array<std::string, 256> table;
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const unsigned c = prints ? byte : next++;
      table[byte] = c < 0x80 ? std::string(1, static_cast<char>(c)) : std::string{static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
    }
    return table;
  }();
  std::string text;
  for (const char byte : bytes) text += kPrintable[static_cast<unsigned char>(byte)];
  return text;
}

std::vector<std::string> merges_of_ranks(const formats::TiktokenVocab& vocabulary) {
  std::vector<std::string> merges;
  for (std::int32_t rank = 0; rank < vocabulary.size(); ++rank) {
    const std::string_view token = vocabulary.token(rank);
    std::vector<std::string_view> parts;
    for (std::size_t i = 0; i < token.size(); ++i) parts.push_back(token.substr(i, 1));
    // Byte-pair encoding with the merges below this rank: what is left are the two parts that its own merge joins.
    while (parts.size() > 2) {
      std::size_t best = parts.size();
      std::int32_t lowest = rank;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const std::int32_t found = vocabulary.find({parts[i].data(), parts[i].size() + parts[i + 1].size()});
        if (found >= 0 && found < lowest) best = i, lowest = found;
      }
      if (best == parts.size()) break;
      parts[best] = {parts[best].data(), parts[best].size() + parts[best + 1].size()};
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    if (parts.size() == 2) merges.push_back(printable_bytes(parts[0]) + " " + printable_bytes(parts[1]));
  }
  return merges;
}

void add_gguf_tokenizer(formats::GgufPairs& pairs, const ModelConfig& config, const std::filesystem::path& folder) {
  add_ids(pairs, config);
  std::error_code ignored;
  const auto ranks = folder / "tiktoken.model", json = folder / "tokenizer.json";
  const bool has_ranks = std::filesystem::exists(ranks, ignored), has_json = std::filesystem::exists(json, ignored);
  if (!has_ranks && !has_json) return;
  const auto extras = value_or_throw(formats::read_tokenizer_extras(folder));
  has_ranks ? add_tiktoken(pairs, config, ranks, extras) : add_tokenizer_json(pairs, config, json, extras);
  if (extras.add_bos) pairs.add("tokenizer.ggml.add_bos_token", *extras.add_bos);
  if (!extras.chat_template.empty()) pairs.add("tokenizer.chat_template", extras.chat_template);
}

}  // namespace palimpsest
