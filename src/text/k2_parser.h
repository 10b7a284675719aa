#pragma once

// Parser of what Kimi K2 and Kimi-Linear models write.

#include <optional>
#include <string>
#include <vector>

#include "palimpsest/chat.h"
#include "text/marker_parser.h"

namespace palimpsest::text {

/// The control tokens of the format. Vocabularies without tool calls or thinking lack the optional
/// ones.
struct K2Markers {
  explicit K2Markers(const Tokenizer& tokenizer);

  TokenId user, assistant, system, middle, end;
  std::optional<TokenId> section_begin, section_end, call_begin, argument_begin, call_end;
  std::optional<TokenId> think_begin, think_end;
};

/// content [<|tool_calls_section_begin|> (<|tool_call_begin|> id <|tool_call_argument_begin|> JSON
/// <|tool_call_end|>)*
/// <|tool_calls_section_end|>] <|im_end|>, where an id is "functions.NAME:NUMBER". Arguments come
/// in one event at the end of their call, because only then it is known whether they are JSON.
class K2Parser final : public MarkerParser {
 public:
  K2Parser(Tokenizer tokenizer, std::vector<std::string> declared_tools);

 private:
  enum class Channel { kContent, kThink, kSection, kCallId, kArguments };

  void on_marker(TokenId id) override;
  void on_text(std::string_view text) override;
  void on_cut() override { end_call(); }
  /// Ends the call that is being read, if any.
  void end_call();

  K2Markers markers_;
  Channel channel_ = Channel::kContent;
  std::string call_id_, arguments_;
};

}  // namespace palimpsest::text
