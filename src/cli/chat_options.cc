#include "cli/chat_options.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/io.h"

namespace palimpsest::cli {

std::vector<ToolDefinition> read_tools(const std::string& path) {
  using Json = nlohmann::ordered_json;
  Json document = Json::parse(read_input(path), nullptr, false);
  if (document.is_discarded()) throw make_error(ErrorCode::kInvalidFile, "{}: not JSON", path);
  if (document.is_object() && document.contains("tools")) document = Json(document["tools"]);
  if (!document.is_array())
    throw make_error(ErrorCode::kInvalidFile, "{}: expected a list of tools", path);
  const Json chat = {{"messages", Json::array()}, {"tools", document}};
  try {
    return parse_chat(chat.dump()).tools;
  } catch (Error& error) {
    throw error.add_context(path);
  }
}

void apply_chat_flags(const Options& options, Conversation& conversation) {
  if (options.tools) conversation.tools = read_tools(*options.tools);
  if (options.reasoning_effort)
    conversation.options.set_reasoning_effort(*options.reasoning_effort);
}

}  // namespace palimpsest::cli
