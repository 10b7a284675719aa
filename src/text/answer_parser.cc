#include "text/answer_parser.h"

#include <algorithm>
#include <utility>

#include "text/chat_formats.h"
#include "text/tool_call_text.h"
#include "text/utf8.h"

namespace palimpsest::text {
namespace {

constexpr std::string_view kTurnMarkers[] = {"<|im_start|>", "<|start_header_id|>"};

std::vector<std::string> names_of(const std::vector<ToolDefinition>& tools) {
  std::vector<std::string> names;
  for (const ToolDefinition& tool : tools) names.push_back(tool.name);
  return names;
}

/// How many bytes at the end of `text` begin `tag` without being all of it.
std::size_t begun(std::string_view text, std::string_view tag) {
  for (std::size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size) {
    if (text.ends_with(tag.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

AnswerParser::AnswerParser(Tokenizer tokenizer, std::vector<ToolDefinition> tools,
                           AnswerStyle style)
    : MarkerParser(tokenizer, names_of(tools)),
      tools_(std::move(tools)),
      style_(style),
      python_tag_(tokenizer.control("<|python_tag|>")),
      channel_(style.begins_thinking ? Channel::kThink : Channel::kContent),
      at_front_(style.begins_thinking) {
  for (std::size_t i = 0; i < kTags.size(); ++i) tag_tokens_[i] = tokenizer.control(kTags[i]);
  for (const std::string_view name : kTurnMarkers) {
    if (const auto id = tokenizer.control(name)) turn_tokens_.push_back(*id);
  }
  if (style_.calls == AnswerStyle::Calls::kJson && tools_.empty())
    style_.calls = AnswerStyle::Calls::kNone;
}

bool AnswerParser::is_enabled(Tag tag) const {
  const bool is_call = tag == Tag::kCall || tag == Tag::kCallEnd;
  return is_call ? style_.calls == AnswerStyle::Calls::kTags : style_.thinks;
}

void AnswerParser::on_marker(TokenId id) {
  channel_text(std::exchange(pending_, {}));
  if (tokenizer_.is_stop(id) ||
      std::find(turn_tokens_.begin(), turn_tokens_.end(), id) != turn_tokens_.end()) {
    end_message();
    return;
  }
  for (std::size_t i = 0; i < kTags.size(); ++i) {
    if (id != tag_tokens_[i]) continue;
    if (is_enabled(static_cast<Tag>(i))) on_tag(static_cast<Tag>(i));
    return;
  }
  if (id == python_tag_ && style_.calls == AnswerStyle::Calls::kJson) {
    end_json();
    channel_ = Channel::kJson;
  } else if (!tokenizer_.is_special(id)) {
    channel_text(repair_utf8(tokenizer_.bytes(id)));
  }
}

void AnswerParser::on_text(std::string_view text) {
  pending_ += text;
  while (true) {
    std::size_t first = std::string::npos, held = 0, which = 0;
    for (std::size_t i = 0; i < kTags.size(); ++i) {
      if (tag_tokens_[i] || !is_enabled(static_cast<Tag>(i))) continue;
      const std::size_t at = pending_.find(kTags[i]);
      if (at < first) first = at, which = i;
      held = std::max(held, begun(pending_, kTags[i]));
    }
    if (first == std::string::npos) {
      channel_text(std::string_view(pending_).substr(0, pending_.size() - held));
      pending_.erase(0, pending_.size() - held);
      return;
    }
    channel_text(std::string_view(pending_).substr(0, first));
    pending_.erase(0, first + kTags[which].size());
    on_tag(static_cast<Tag>(which));
  }
}

void AnswerParser::on_tag(Tag tag) {
  // While a model thinks it may talk about calls; only the end of thinking counts then.
  if (channel_ == Channel::kThink && tag != Tag::kThinkEnd) return;
  end_call();
  end_json();
  if (tag == Tag::kThink || tag == Tag::kThinkEnd) {
    if (channel_ == Channel::kThink || tag == Tag::kThink) held_.clear();
    channel_ = tag == Tag::kThink ? Channel::kThink : Channel::kContent;
    at_front_ = true;
  } else if (tag == Tag::kCall) {
    held_.clear();
    writer_.end_stray();
    channel_ = Channel::kCall;
  }
}

void AnswerParser::channel_text(std::string_view text) {
  if (text.empty()) return;
  switch (channel_) {
    case Channel::kThink:
      write(text);
      break;
    case Channel::kContent:
      may_be_json(text) ? hold_json(text) : write(text);
      break;
    case Channel::kAfterCall:
      writer_.stray(text);
      break;
    case Channel::kCall:
    case Channel::kJson:
      body_ += text;
      break;
  }
}

/// Decided by the first character that is not white space.
bool AnswerParser::may_be_json(std::string_view text) {
  if (style_.calls != AnswerStyle::Calls::kJson) return false;
  const std::string_view front = trimmed(text);
  if (front.empty() || front.starts_with('{')) return true;
  style_.calls = AnswerStyle::Calls::kNone;
  return false;
}

void AnswerParser::hold_json(std::string_view text) {
  held_ += text;
  if (trimmed(text).empty()) return;
  channel_ = Channel::kJson;
  body_ = std::exchange(held_, {});
}

void AnswerParser::write(std::string_view text) {
  if (at_front_) {
    text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    if (text.empty()) return;
    at_front_ = false;
  }
  const std::size_t last = text.find_last_not_of('\n');
  if (last == std::string_view::npos) {
    held_ += text;
    return;
  }
  const std::string whole = std::exchange(held_, std::string(text.substr(last + 1))) +
                            std::string(text.substr(0, last + 1));
  channel_ == Channel::kThink ? writer_.reasoning(whole) : writer_.content(whole);
}

void AnswerParser::end_call() {
  if (channel_ != Channel::kCall) return;
  channel_ = Channel::kAfterCall;
  const std::string body = std::exchange(body_, {});
  if (!write_function_call(body, tools_, writer_) && !write_json_call(body, writer_))
    writer_.content(trimmed(body));
}

void AnswerParser::end_json() {
  if (channel_ != Channel::kJson) return;
  channel_ = Channel::kAfterCall;
  const std::string body = std::exchange(body_, {});
  if (!write_json_call(body, writer_)) writer_.content(body);
}

void AnswerParser::on_cut() {
  channel_text(std::exchange(pending_, {}));
  end_call();
  end_json();
  if (channel_ == Channel::kContent) writer_.content(std::exchange(held_, {}));
}

std::vector<ToolDefinition> all_tools(const Conversation& conversation) {
  std::vector<ToolDefinition> tools = conversation.tools;
  for (const ChatMessage& message : conversation.messages) {
    tools.insert(tools.end(), message.tools.begin(), message.tools.end());
  }
  return tools;
}

}  // namespace palimpsest::text
