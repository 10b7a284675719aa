#pragma once

// The chat formats that ChatFormat::create chooses from.

#include <filesystem>
#include <memory>

#include "palimpsest/chat.h"

namespace palimpsest::text {

/// Kimi K3's XTML. `tokenizer` has the control tokens <|open|>, <|close|>, <|sep|> and
/// <|end_of_msg|>.
std::unique_ptr<const ChatFormat> make_k3_format(Tokenizer tokenizer);

/// The format of Kimi K2 and Kimi-Linear. `tokenizer` has the control tokens <|im_user|>,
/// <|im_assistant|>, <|im_system|>,
/// <|im_middle|> and <|im_end|>; those of tool calls and of thinking are used where they exist.
std::unique_ptr<const ChatFormat> make_k2_format(Tokenizer tokenizer);

enum class QwenDialect : std::uint8_t {
  kChatMl,  ///< messages and nothing else
  kQwen25,  ///< a default system message, tools
  kQwen3,   ///< tools, reasoning that the model begins by itself
  kQwen35,  ///< calls as <function=...>, reasoning that the prompt begins
};
/// ChatML and what Qwen made of it. `tokenizer` has the control tokens <|im_start|> and <|im_end|>.
std::unique_ptr<const ChatFormat> make_qwen_format(Tokenizer tokenizer, QwenDialect dialect);

enum class LlamaDialect : std::uint8_t { kLlama2, kLlama3, kLlama31 };
/// `tokenizer` has bos() and eos(), and for Llama 3 the control tokens <|start_header_id|>,
/// <|end_header_id|> and <|eot_id|>.
std::unique_ptr<const ChatFormat> make_llama_format(Tokenizer tokenizer, LlamaDialect dialect);

/// What the model's own template says (text/chat_template.h): natively where one of the formats
/// above renders a few probe chats exactly as the template does, through the interpreter otherwise.
/// Nothing where the model has no template. Errors: those of Template::parse; kUnsupported for a
/// template that composes the names of control tokens from pieces whose origin cannot be told.
std::unique_ptr<const ChatFormat> make_template_format(Tokenizer tokenizer,
                                                       const std::filesystem::path& model);

/// Names of the declared tools: of the conversation and of its system messages.
std::vector<std::string> declared_tools(const Conversation& conversation);

/// The declarations as one JSON array, unchanged.
std::string tools_array(const std::vector<ToolDefinition>& tools);

}  // namespace palimpsest::text
