#pragma once

// Tokenizers for tests: small ones of our own, and those of the shared data in other forms.

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "formats/gguf_writer.h"
#include "text/text_test_support.h"
#include "text/utf8.h"

namespace palimpsest::test {

/// `bytes` in the byte-level alphabet: printable bytes of Latin-1 stand for themselves, the others
/// are U+0100, U+0101, ... in order.
inline std::string byte_level(std::string_view bytes) {
  static const std::vector<char32_t> alphabet = [] {
    std::vector<char32_t> points;
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
      points.push_back(printable ? b : next++);
    }
    return points;
  }();
  std::string text;
  for (const char c : bytes) text::append_utf8(alphabet[static_cast<unsigned char>(c)], text);
  return text;
}

/// A tokenizer.json with a token for each byte (id = byte), three joined ones, a word, a marker and
/// an end: "he" 256, "ll" 257, "hell" 258, "\n\n" 259 (a word), "<think>" 260, "<|end|>" 261.
inline nlohmann::json byte_level_json() {
  nlohmann::json vocab;
  for (int b = 0; b < 256; ++b) vocab[byte_level(std::string(1, static_cast<char>(b)))] = b;
  vocab["he"] = 256;
  vocab["ll"] = 257;
  vocab["hell"] = 258;
  const auto added = [](int id, const char* text, bool special) {
    return nlohmann::json{{"id", id},           {"content", text}, {"special", special},
                          {"lstrip", false},    {"rstrip", false}, {"single_word", false},
                          {"normalized", false}};
  };
  return {
      {"added_tokens",
       {added(259, "\n\n", false), added(260, "<think>", false), added(261, "<|end|>", true)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", "l l", {"he", "ll"}}}}}};
}

/// A tokenizer.json in the way of Llama 2: "<unk>", "<s>", "</s>", <0x00> .. <0xFF>, then
/// characters and "\u2581a" 262, "ab" 263.
inline nlohmann::json sentence_json() {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = 3 + b;
  vocab["\u2581"] = 259;
  vocab["a"] = 260;
  vocab["b"] = 261;
  vocab["\u2581a"] = 262;
  vocab["ab"] = 263;
  const auto special = [](int id, const char* text) {
    return nlohmann::json{{"id", id}, {"content", text}, {"special", true}, {"normalized", false}};
  };
  const nlohmann::json mark = {{"String", "\u2581"}};
  return {{"added_tokens", {special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", mark}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"byte_fallback", true},
            {"fuse_unk", true},
            {"unk_token", "<unk>"},
            {"vocab", vocab},
            {"merges", {"\u2581 a", "a b"}}}}};
}

inline Tokenizer load_json(const nlohmann::json& json, const std::string& config = "{}") {
  const TempFolder folder;
  folder.write("tokenizer.json", json.dump());
  folder.write("tokenizer_config.json", config);
  return Tokenizer::load(folder.path());
}

/// A GGUF file that holds nothing but a tokenizer.
inline Tokenizer load_gguf(const formats::GgufPairs& pairs) {
  const TempFolder folder;
  formats::GgufWriter(folder / "vocabulary.gguf", pairs, {}).commit();
  return Tokenizer::load(folder / "vocabulary.gguf");
}

/// What `load` throws, or "nothing".
template <class F>
std::string thrown_by(const F& load) {
  try {
    load();
  } catch (const Error& error) {
    return std::string(error_code_name(error.code())) + ": " + error.text();
  }
  return "nothing";
}

/// GPT-2's tokenizer as a tokenizer.json. Needs shared_path("tokenizer/gpt2").
inline Tokenizer gpt2_tokenizer() {
  std::ifstream vocab(shared_path("tokenizer/gpt2/encoder.json"));
  std::ifstream lines(shared_path("tokenizer/gpt2/vocab.bpe"));
  nlohmann::json json = byte_level_json();
  json["added_tokens"] = nlohmann::json::array();
  json["model"]["vocab"] = nlohmann::json::parse(vocab);
  json["model"]["merges"] = nlohmann::json::array();
  std::string line;
  std::getline(lines, line);  // the version
  while (std::getline(lines, line)) {
    if (!line.empty()) json["model"]["merges"].push_back(line);
  }
  return load_json(json);
}

inline const nlohmann::json& qwen_json() {
  static const nlohmann::json json = [] {
    std::ifstream in(shared_path("tokenizer/qwen3/tokenizer.json"));
    return nlohmann::json::parse(in);
  }();
  return json;
}

/// Adds the vocabulary of a tokenizer.json as keys of a GGUF file whose chain is called `pre`.
inline void add_gguf(formats::GgufPairs& pairs, const nlohmann::json& json, const std::string& pre) {
  std::vector<std::string> tokens, merges;
  std::vector<std::int32_t> types;
  const auto put = [&](std::size_t id, const std::string& text, std::int32_t type) {
    tokens.resize(std::max(tokens.size(), id + 1));
    types.resize(tokens.size(), 5);
    tokens[id] = text;
    types[id] = type;
  };
  for (const auto& [text, id] : json["model"]["vocab"].items()) put(id, text, 1);
  for (const auto& token : json["added_tokens"]) {
    put(token["id"], token["content"], token["special"] ? 3 : 4);
  }
  for (const auto& merge : json["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  pairs.add("tokenizer.ggml.model", "gpt2");
  pairs.add("tokenizer.ggml.pre", pre);
  pairs.add("tokenizer.ggml.tokens", std::span<const std::string>(tokens));
  pairs.add("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
  pairs.add("tokenizer.ggml.merges", std::span<const std::string>(merges));
}
inline formats::GgufPairs as_gguf(const nlohmann::json& json, const std::string& pre) {
  formats::GgufPairs pairs;
  add_gguf(pairs, json, pre);
  return pairs;
}

}  // namespace palimpsest::test
