#include "server/answer_text.h"

namespace palimpsest::server {

AnswerText::AnswerText(Tokenizer tokenizer, std::unique_ptr<ChatParser> parser,
                       std::vector<std::string> stops)
    : tokenizer_(tokenizer), parser_(std::move(parser)), stops_(std::move(stops)) {
  if (!parser_) decoder_.emplace(std::move(tokenizer));
}

bool AnswerText::push(TokenId id, AnswerDelta& delta) {
  if (stops_.found()) return false;
  if (decoder_) {
    if (!tokenizer_.is_valid(id) || tokenizer_.is_control(id) || tokenizer_.is_stop(id)) return true;
    return stops_.push(decoder_->push(id), delta.content);
  }
  std::vector<ChatEvent> events;
  parser_->push(id, events);
  return take(events, delta);
}

bool AnswerText::take(std::vector<ChatEvent>& events, AnswerDelta& delta) {
  bool reasons = false;
  for (ChatEvent& event : events) {
    if (event.kind == ChatEvent::Kind::kContent) {
      if (!stops_.push(event.text, delta.content)) return false;
      continue;
    }
    if (event.kind == ChatEvent::Kind::kToolCallEnd) continue;
    stops_.flush(delta.content);  // a stop string does not reach over anything else
    if (event.kind == ChatEvent::Kind::kReasoning) {
      reasons = true;
      delta.reasoning += event.text;
    } else if (event.kind != ChatEvent::Kind::kMessageEnd) {
      has_calls_ = true;
      delta.calls.push_back(std::move(event));
    }
  }
  if (reasons) ++reasoning_tokens_;
  return true;
}

void AnswerText::finish(AnswerDelta& delta) {
  if (stops_.found()) return;
  if (decoder_) {
    stops_.push(decoder_->finish(), delta.content);
  } else {
    const std::int64_t before = reasoning_tokens_;
    std::vector<ChatEvent> events;
    parser_->finish(events);
    take(events, delta);
    reasoning_tokens_ = before;
  }
  stops_.flush(delta.content);
}

}  // namespace palimpsest::server
