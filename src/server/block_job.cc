#include "server/block_job.h"

#include <utility>

namespace palimpsest::server {

BlockJob::BlockJob(Backend& backend, PreparedChat& chat, std::shared_ptr<Reply> reply)
    : model_(backend.options.name),
      stream_(chat.fields.stream),
      reply_(std::move(reply)),
      text_(backend.tokenizer, backend.format().make_parser(chat.conversation),
            std::move(chat.fields.stops)) {
  usage_.prompt_tokens = static_cast<std::int64_t>(chat.fields.engine.prompt.size());
}

bool BlockJob::hear_one(const StartedEvent& event) {
  usage_.prompt = event.prompt;
  started();
  return true;
}

bool BlockJob::hear_one(const TokensEvent& event) {
  AnswerDelta delta;
  bool goes_on = true;
  for (const TokenInfo& token : event.tokens) {
    if (!(goes_on = text_.push(token.id, delta))) break;
  }
  show(delta);
  return goes_on;
}

bool BlockJob::hear_one(const ChoiceEvent& event) {
  throw_if_failed(event);
  if (event.reason != FinishReason::kStop) {
    end_ = End::kLength;
  } else if (!text_.stop_text().empty()) {
    end_ = End::kStopText;
  } else {
    end_ = text_.has_calls() ? End::kCalls : End::kModel;
  }
  AnswerDelta delta;
  text_.finish(delta);
  show(delta);
  close();
  return true;
}

bool BlockJob::hear_one(const FinishedEvent& event) {
  usage_ = event.usage;
  return true;
}

void BlockJob::show(const AnswerDelta& delta) {
  append(AnswerBlock::Kind::kThinking, delta.reasoning);
  append(AnswerBlock::Kind::kText, delta.content);
  for (const ChatEvent& event : delta.calls) {
    if (event.kind == ChatEvent::Kind::kToolCallBegin) {
      open({.kind = AnswerBlock::Kind::kCall, .text = {}, .name = event.name, .id = event.id});
    } else {
      append(AnswerBlock::Kind::kCall, event.text);
    }
  }
}

void BlockJob::append(AnswerBlock::Kind kind, const std::string& piece) {
  if (piece.empty()) return;
  if (!open_ || blocks_.back().kind != kind) open({.kind = kind, .text = {}, .name = {}, .id = {}});
  blocks_.back().text += piece;
  grew(blocks_.size() - 1, piece);
}

void BlockJob::open(AnswerBlock block) {
  close();
  blocks_.push_back(std::move(block));
  open_ = true;
  opened(blocks_.size() - 1);
}

void BlockJob::close() {
  if (std::exchange(open_, false)) closed(blocks_.size() - 1);
}

void start(Backend& backend, PreparedChat chat, std::shared_ptr<BlockJob> job, std::string id,
           const Request& request, const std::shared_ptr<Reply>& reply) {
  std::vector<EngineRequest> requests;
  requests.push_back(std::move(chat.fields.engine));
  FanOut::start(backend, std::move(requests), request, reply, std::move(job), chat.fields.stream,
                std::move(id));
}

}  // namespace palimpsest::server
