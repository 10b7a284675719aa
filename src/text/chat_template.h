#pragma once

// The chat template that comes with a model. Never one that comes with a request.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/chat.h"
#include "text/template/template.h"

namespace palimpsest::text {

struct ChatTemplateSource {
  std::string text;
  std::string with_tools;  ///< for chats with tools; empty: `text` too
  std::string file;        ///< where it was found
};

/// The template of the model at `path`, a folder, a file in it, or a GGUF file. In a folder, the
/// first of chat_template.jinja, chat_template.json and tokenizer_config.json that has one; the
/// latter two as `chat_template`, a string or a list of {"name": ..., "template": ...}. In a GGUF,
/// `tokenizer.chat_template`. Of named templates, "default" and "tool_use" are taken. Errors: kIo,
/// kInvalidFile.
std::optional<ChatTemplateSource> read_chat_template(const std::filesystem::path& path);

/// What a template sees of a chat: messages, tools (null: none), add_generation_prompt, bos_token,
/// eos_token; enable_thinking and thinking where thinking is off or was asked for, and then also
/// reasoning_effort. Arguments that came as the source of a JSON object are objects.
nlohmann::ordered_json template_context(const Conversation& conversation,
                                        const Tokenizer& tokenizer);

/// The strings of a template_context that no user wrote: roles and names of tokens. Views into it.
std::vector<std::string_view> own_strings(const nlohmann::ordered_json& context);

}  // namespace palimpsest::text
