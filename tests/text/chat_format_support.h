#pragma once

// Tokenizers with the control tokens of other families, and model folders with a chat template.

#include <string>
#include <vector>

#include "palimpsest/chat.h"
#include "text_test_support.h"

namespace palimpsest::test {

/// The demo's ranks with these names as control tokens 3840, 3841, ...; those without a bar are not
/// special. [BOS], [EOS] and [PAD] follow, unless `bos` and `eos` name others.
inline Tokenizer named_tokenizer(const std::vector<std::string>& names,
                                 const std::string& bos = "[BOS]",
                                 const std::string& eos = "[EOS]") {
  nlohmann::json config = {{"tokenizer_class", "TikTokenTokenizer"},
                           {"bos_token", bos},
                           {"eos_token", eos},
                           {"pad_token", "[PAD]"},
                           {"added_tokens_decoder", nlohmann::json::object()}};
  int id = 3840;
  const auto add = [&](const std::string& name) {
    config["added_tokens_decoder"][std::to_string(id++)] = {
        {"content", name}, {"special", name.find('|') != std::string::npos || name[0] == '['}};
  };
  for (const std::string& name : names) add(name);
  for (const char* name : {"[BOS]", "[EOS]", "[PAD]"}) add(name);
  TempFolder folder;
  folder.copy(project_path("models/demo/tiktoken.model"));
  folder.write("tokenizer_config.json", config.dump());
  return Tokenizer::load(folder.path());
}

inline const Tokenizer& qwen_tokenizer() {
  static const Tokenizer tokenizer =
      named_tokenizer({"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>",
                       "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"});
  return tokenizer;
}

inline const Tokenizer& llama3_tokenizer() {
  static const Tokenizer tokenizer =
      named_tokenizer({"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                       "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"},
                      "<|begin_of_text|>", "<|eot_id|>");
  return tokenizer;
}

/// No token for any tag: `<s>` and `</s>` only.
inline const Tokenizer& plain_tokenizer() {
  static const Tokenizer tokenizer = named_tokenizer({"<s>", "</s>", "[INST]"}, "<s>", "</s>");
  return tokenizer;
}

/// The format of a model whose folder holds nothing but this template.
inline std::unique_ptr<const ChatFormat> template_format(const Tokenizer& tokenizer,
                                                         const std::string& source) {
  TempFolder folder;
  folder.write("chat_template.jinja", source);
  return ChatFormat::create(tokenizer, folder.path());
}

inline Conversation talk(std::initializer_list<std::pair<Role, const char*>> messages) {
  Conversation conversation;
  for (const auto& [role, text] : messages)
    conversation.messages.push_back(ChatMessage::of(role, text));
  return conversation;
}

}  // namespace palimpsest::test
