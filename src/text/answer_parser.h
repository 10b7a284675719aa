#pragma once

// Parser of answers whose structure is written in tags: <think>, <tool_call>, or JSON alone. Shared
// by the ChatML, Qwen and Llama formats and by models that are known by their template only.

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "text/marker_parser.h"

namespace palimpsest::text {

struct AnswerStyle {
  bool thinks = false;           ///< reasoning stands between <think> and </think>
  bool begins_thinking = false;  ///< the prompt ends inside <think>
  enum class Calls {
    kNone,  ///< there are none
    kTags,  ///< <tool_call> CALL </tool_call>, where CALL is JSON or <function=...>
    kJson,  ///< an answer that is one JSON object is a call; <|python_tag|> may stand before it
  } calls = Calls::kNone;
};

/// A tag is the control token of its name where the vocabulary has that, and its letters otherwise.
/// Line ends around reasoning, after it, and before a call belong to the format and are dropped. A
/// call comes in one piece at its end, because only then is it known to be one; what is none
/// becomes content. Control tokens without the special flag that mean nothing here are text.
class AnswerParser final : public MarkerParser {
 public:
  AnswerParser(Tokenizer tokenizer, std::vector<ToolDefinition> tools, AnswerStyle style);

 private:
  enum class Channel { kThink, kContent, kCall, kAfterCall, kJson };
  enum class Tag { kThink, kThinkEnd, kCall, kCallEnd };
  static constexpr std::array<std::string_view, 4> kTags = {"<think>", "</think>", "<tool_call>",
                                                            "</tool_call>"};

  void on_text(std::string_view text) override;
  void on_marker(TokenId id) override;
  void on_cut() override;
  void on_tag(Tag tag);
  void channel_text(std::string_view text);
  /// `text` without line ends at its front while nothing was written since the channel began, and
  /// with those at its end held back.
  void write(std::string_view text);
  bool may_be_json(std::string_view text);
  void hold_json(std::string_view text);
  void end_call();
  void end_json();
  bool is_enabled(Tag tag) const;

  std::vector<ToolDefinition> tools_;
  AnswerStyle style_;
  std::array<std::optional<TokenId>, 4> tag_tokens_;
  std::optional<TokenId> python_tag_;
  std::vector<TokenId> turn_tokens_;  ///< those that begin another message
  Channel channel_;
  bool at_front_;        ///< line ends here are the format's
  std::string pending_;  ///< may be the beginning of a tag
  std::string held_;     ///< line ends that may turn out to be the format's
  std::string body_;     ///< of a call, or an answer that may be one
};

/// The tools of `conversation`, its messages' included.
std::vector<ToolDefinition> all_tools(const Conversation& conversation);

}  // namespace palimpsest::text
