#pragma once

#include "cli/options.h"
#include "palimpsest/chat.h"

namespace palimpsest::cli {

/// The tools of a JSON file: a list of tools in OpenAI's form, or an object with such a list as
/// "tools". Errors name the file.
std::vector<ToolDefinition> read_tools(const std::string& path);

/// Puts --tools, --reasoning-effort and --system, where given, over what the conversation says.
void apply_chat_flags(const Options& options, Conversation& conversation);

/// A chat as parse_chat reads it: messages, tools, and how much to think.
std::string chat_json(const Conversation& conversation);

}  // namespace palimpsest::cli
