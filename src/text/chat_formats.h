#pragma once

// The chat formats that ChatFormat::create chooses from.

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

/// Names of the declared tools: of the conversation and of its system messages.
std::vector<std::string> declared_tools(const Conversation& conversation);

/// The declarations as one JSON array, unchanged.
std::string tools_array(const std::vector<ToolDefinition>& tools);

}  // namespace palimpsest::text
