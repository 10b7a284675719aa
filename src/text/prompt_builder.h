#pragma once

// The pieces of a prompt, and how they become segments.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/chat.h"
#include "text/control_names.h"
#include "text/template/template.h"

namespace palimpsest::text {

/// The names of a vocabulary's control tokens, to be found in texts.
class ControlTokens {
 public:
  explicit ControlTokens(const Tokenizer& tokenizer);
  ControlTokens(const ControlTokens&) = delete;
  ControlTokens& operator=(const ControlTokens&) = delete;

  /// The segments of `text`, of which the format itself wrote the ranges `own` (in order, disjoint,
  /// not touching). A name that lies in one of them is a control segment. All text between two of
  /// these is one segment, whoever wrote it, because that is how the model's tokenizer saw it.
  std::vector<ChatSegment> split(std::string_view text, std::span<const TextRange> own) const;

 private:
  std::vector<std::string> names_;
  ControlNames finder_;  ///< refers to `names_`
};

/// A prompt that a native renderer writes.
class PromptBuilder {
 public:
  /// Words of the format: names of control tokens in them become these tokens.
  PromptBuilder& own(std::string_view words);
  /// What a user, a tool or a model wrote.
  PromptBuilder& user(std::string_view words);
  std::vector<ChatSegment> segments(const ControlTokens& control) const {
    return control.split(text_, own_);
  }

 private:
  std::string text_;
  std::vector<TextRange> own_;
};

/// The texts of a message's parts, end to end. Errors: kInvalidRequest for an image.
std::string text_of(const ChatMessage& message);

/// The name of a token, or nothing where the vocabulary has no such token.
inline std::string_view name_of(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? tokenizer.bytes(*id) : std::string_view();
}

/// Refuses, with kInvalidRequest, what has no wording in most formats: tool_choice required, a
/// response format, tools that a message brings along. `format` is named.
void require_plain_chat(const Conversation& conversation, std::string_view format);

/// Whether tools are to be declared: there is no wording for "do not call", so tools that must not
/// be called are left out.
inline bool declares_tools(const Conversation& conversation) {
  return !conversation.tools.empty() && conversation.options.tool_choice != ToolChoice::kNone;
}

}  // namespace palimpsest::text
