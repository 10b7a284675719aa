#pragma once

// How models without tokens for the parts of a call write it down.

#include <span>
#include <string_view>

#include "palimpsest/chat.h"
#include "text/event_writer.h"
#include "text/prompt_builder.h"

namespace palimpsest::text {

/// {"name": NAME, "arguments": {...}}, as Hermes, Qwen and Llama models do (Llama's key is
/// "parameters"). Writes the call, or returns false for what is no such object.
bool write_json_call(std::string_view source, EventWriter& writer);

/// <function=NAME> (<parameter=KEY>\nVALUE\n</parameter>)* </function>, as Qwen3.5 does. A value is
/// a string where `tools` declare it as one, or where it is not JSON (or Python's True, False,
/// None). Missing ends are supplied. Writes the call, or returns false for what does not begin so.
bool write_function_call(std::string_view source, std::span<const ToolDefinition> tools,
                         EventWriter& writer);

enum class CallForm : std::uint8_t {
  kNone,       ///< none that is known
  kHermes,     ///< JSON between <tool_call> tags
  kFunctions,  ///< <function=...> between them
  kLlama,      ///< JSON alone, once
};
/// How calls that must be made are written so that the functions above read them. `control` outlives
/// the shape.
void shape_calls(CallForm form, const ControlTokens& control, AnswerShape& shape);

}  // namespace palimpsest::text
