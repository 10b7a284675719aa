#include "text/prompt_builder.h"

#include "base/error.h"

namespace palimpsest::text {
namespace {

std::vector<std::string> control_names(const Tokenizer& tokenizer) {
  std::vector<std::string> names;
  for (TokenId id = 0; tokenizer.is_valid(id); ++id) {
    if (tokenizer.is_control(id)) names.emplace_back(tokenizer.bytes(id));
  }
  return names;
}

}  // namespace

ControlTokens::ControlTokens(const Tokenizer& tokenizer)
    : names_(control_names(tokenizer)), finder_(0, names_) {}

std::vector<ChatSegment> ControlTokens::split(std::string_view text,
                                              std::span<const TextRange> own) const {
  std::vector<ChatSegment> segments;
  std::size_t done = 0;
  for (const TextRange& range : own) {
    const std::string_view until = text.substr(0, range.end);
    for (auto match = finder_.find_first(until, range.begin); match;
         match = finder_.find_first(until, done)) {
      if (match->begin > done)
        segments.push_back({std::string(text.substr(done, match->begin - done)), false});
      segments.push_back({std::string(text.substr(match->begin, match->size)), true});
      done = match->begin + match->size;
    }
  }
  if (done < text.size()) segments.push_back({std::string(text.substr(done)), false});
  return segments;
}

PromptBuilder& PromptBuilder::own(std::string_view words) {
  if (words.empty()) return *this;
  const std::size_t begin = text_.size();
  text_ += words;
  if (!own_.empty() && own_.back().end == begin) {
    own_.back().end = text_.size();
  } else {
    own_.push_back({begin, text_.size()});
  }
  return *this;
}

PromptBuilder& PromptBuilder::user(std::string_view words) {
  text_ += words;
  return *this;
}

std::string text_of(const ChatMessage& message) {
  std::string text;
  for (const ContentPart& part : message.content) {
    if (part.kind == ContentPart::Kind::kImage) {
      throw Error(ErrorCode::kInvalidRequest, "this chat format has no images");
    }
    text += part.text;
  }
  return text;
}

void require_plain_chat(const Conversation& conversation, std::string_view format) {
  const ChatOptions& options = conversation.options;
  if (options.tool_choice == ToolChoice::kRequired ||
      options.response_format != ResponseFormat::kText) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "the {} chat format cannot ask for tool_choice required or a response_format",
                     format);
  }
  for (std::size_t i = 0; i < conversation.messages.size(); ++i) {
    if (!conversation.messages[i].tools.empty()) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "messages[{}]: the {} chat format declares tools for a whole chat, not in a "
                       "message",
                       i, format);
    }
  }
}

}  // namespace palimpsest::text
