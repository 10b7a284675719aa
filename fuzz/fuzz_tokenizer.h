#pragma once

// A tokenizer for fuzzers: 256 ordinary tokens, one for each byte (id = byte), and the control
// tokens of a chat format.

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include "palimpsest/tokenizer.h"

namespace palimpsest::fuzz {

/// `names` are the control tokens 256, 257, ...; [BOS] and [EOS] follow them.
inline Tokenizer byte_tokenizer(std::initializer_list<const char*> names) {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "palimpsest-fuzz-XXXXXX").string();
  if (!mkdtemp(pattern.data())) __builtin_trap();
  const std::filesystem::path folder = pattern;
  {
    constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::ofstream ranks(folder / "tiktoken.model");
    for (int b = 0; b < 256; ++b) {
      ranks << kAlphabet[b >> 2] << kAlphabet[(b & 3) << 4] << "== " << b << "\n";
    }
    std::ofstream config(folder / "tokenizer_config.json");
    config
        << R"({"tokenizer_class": "TikTokenTokenizer", "eos_token": "[EOS]", "added_tokens_decoder": {)";
    int id = 256;
    for (const char* name : names)
      config << '"' << id++ << R"(": {"content": ")" << name << R"("}, )";
    config << '"' << id << R"(": {"content": "[BOS]"}, ")" << id + 1
           << R"(": {"content": "[EOS]"}}})";
  }
  Tokenizer tokenizer = Tokenizer::load(folder, 512);
  std::filesystem::remove_all(folder);
  return tokenizer;
}

inline Tokenizer k3_byte_tokenizer() {
  return byte_tokenizer({"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"});
}

inline Tokenizer k2_byte_tokenizer() {
  return byte_tokenizer({"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                         "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
                         "<think>", "</think>", "<|im_end|>", "<|im_user|>", "<|im_assistant|>",
                         "<|im_system|>", "<|im_middle|>"});
}

inline Tokenizer qwen_byte_tokenizer() {
  return byte_tokenizer({"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
                         "</tool_call>", "<|endoftext|>"});
}

}  // namespace palimpsest::fuzz
