#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "palimpsest/tokenizer.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest::test {

inline const Tokenizer& demo_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(project_path("models/demo"));
  return tokenizer;
}

/// A tokenizer_config.json with the names of `special-tokens.json`: family "k3" or "k2_family", ids
/// moved by `offset`.
inline std::string tokenizer_config_json(const nlohmann::json& names, const std::string& family,
                                         int offset = 0) {
  nlohmann::json config = {{"tokenizer_class", "TikTokenTokenizer"},
                           {"bos_token", "[BOS]"},
                           {"eos_token", "[EOS]"},
                           {"pad_token", "[PAD]"},
                           {"added_tokens_decoder", nlohmann::json::object()}};
  for (const auto& [id, name] : names.at(family).items()) {
    const bool marker = name == "<|open|>" || name == "<|close|>" || name == "<|sep|>";
    config["added_tokens_decoder"][std::to_string(std::stoi(id) + offset)] = {{"content", name},
                                                                              {"special", !marker}};
  }
  return config.dump();
}

/// The demo's ranks with the names of the K2 family.
inline const Tokenizer& k2_demo_tokenizer() {
  static const Tokenizer tokenizer = [] {
    TempFolder folder;
    folder.copy(project_path("models/demo/tiktoken.model"));
    const nlohmann::json names = {{"k2",
                                   {{"3840", "[BOS]"},
                                    {"3841", "[EOS]"},
                                    {"3842", "<|im_end|>"},
                                    {"3843", "<|im_user|>"},
                                    {"3844", "<|im_assistant|>"},
                                    {"3850", "<|im_system|>"},
                                    {"3851", "<|tool_calls_section_begin|>"},
                                    {"3852", "<|tool_calls_section_end|>"},
                                    {"3853", "<|tool_call_begin|>"},
                                    {"3854", "<|tool_call_argument_begin|>"},
                                    {"3855", "<|tool_call_end|>"},
                                    {"3857", "<|im_middle|>"},
                                    {"4095", "[PAD]"}}}};
    folder.write("tokenizer_config.json", tokenizer_config_json(names, "k2"));
    return Tokenizer::load(folder.path());
  }();
  return tokenizer;
}

/// The tokenizer of the shared Kimi rank file; `family` chooses the names of the control tokens.
/// Call only where shared_path("tokenizer/kimi/tiktoken.model") exists.
inline const Tokenizer& kimi_tokenizer(const std::string& family) {
  static const auto load = [](const std::string& which) {
    TempFolder folder;
    folder.copy(shared_path("tokenizer/kimi/tiktoken.model"));
    std::ifstream names(shared_path("tokenizer/kimi/special-tokens.json"));
    folder.write("tokenizer_config.json",
                 tokenizer_config_json(nlohmann::json::parse(names), which));
    return Tokenizer::load(folder.path(), 163840);
  };
  static const Tokenizer k3 = load("k3"), k2 = load("k2_family");
  return family == "k3" ? k3 : k2;
}

/// Ordered: the order of keys matters in chats.
inline std::vector<nlohmann::ordered_json> read_json_lines(const std::filesystem::path& path) {
  std::vector<nlohmann::ordered_json> rows;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    rows.push_back(nlohmann::ordered_json::parse(line));
  return rows;
}

}  // namespace palimpsest::test

#define SKIP_WITHOUT_SHARED(relative)                  \
  if (palimpsest::test::shared_path(relative).empty()) \
  GTEST_SKIP() << "shared data absent: " << (relative)
