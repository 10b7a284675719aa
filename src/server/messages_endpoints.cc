// Anthropic's /v1/messages: text, thoughts and tools, whole or as a stream.

#include "server/block_job.h"
#include "server/endpoints.h"
#include "server/messages_fields.h"

namespace palimpsest::server {
namespace {

class MessagesJob final : public BlockJob {
 public:
  MessagesJob(Backend& backend, PreparedChat& chat, std::string id, std::shared_ptr<Reply> reply)
      : BlockJob(backend, chat, std::move(reply)), id_(std::move(id)) {}

 private:
  void started() override {
    if (!stream_) return;
    Json message = envelope();
    message["content"] = Json::array();
    message["stop_reason"] = nullptr;
    message["stop_sequence"] = nullptr;
    message["usage"] = usage();
    write("message_start", {{"message", std::move(message)}});
    write("ping", Json::object());
  }

  void opened(std::size_t at) override {
    if (!stream_) return;
    write("content_block_start", {{"index", at}, {"content_block", block_json(blocks_[at])}});
  }

  void grew(std::size_t at, const std::string& piece) override {
    if (!stream_) return;
    switch (blocks_[at].kind) {
      case AnswerBlock::Kind::kThinking:
        return write_delta(at, {{"type", "thinking_delta"}, {"thinking", piece}});
      case AnswerBlock::Kind::kText:
        return write_delta(at, {{"type", "text_delta"}, {"text", piece}});
      case AnswerBlock::Kind::kCall:
        return write_delta(at, {{"type", "input_json_delta"}, {"partial_json", piece}});
    }
  }

  void closed(std::size_t at) override {
    if (stream_) write("content_block_stop", {{"index", at}});
  }

  void ended(End end) override {
    const Json stop = {{"stop_reason", reason(end)},
                       {"stop_sequence", end == End::kStopText ? Json(stop_text()) : Json(nullptr)}};
    if (stream_) {
      write("message_delta", {{"delta", stop}, {"usage", usage()}});
      write("message_stop", Json::object());
      reply_->end();
      return;
    }
    Json message = envelope();
    message["content"] = Json::array();
    for (const AnswerBlock& block : blocks_) message["content"].push_back(block_json(block));
    message.update(stop);
    message["usage"] = usage();
    send_json(reply_, message);
  }

  void failed(const ApiError& error) override {
    if (!stream_) return reply_->send(error_response(error, ErrorForm::kAnthropic));
    reply_->write("event: error\ndata: " + error_body(error, ErrorForm::kAnthropic) + "\n\n");
    reply_->end();
  }

  static const char* reason(End end) {
    switch (end) {
      case End::kStopText:
        return "stop_sequence";
      case End::kCalls:
        return "tool_use";
      case End::kLength:
        return "max_tokens";
      case End::kModel:
        break;
    }
    return "end_turn";
  }

  static Json block_json(const AnswerBlock& block) {
    switch (block.kind) {
      case AnswerBlock::Kind::kThinking:
        return {{"type", "thinking"}, {"thinking", block.text}, {"signature", ""}};
      case AnswerBlock::Kind::kCall:
        break;
      case AnswerBlock::Kind::kText:
        return {{"type", "text"}, {"text", block.text}};
    }
    Json input = Json::parse(block.text, nullptr, false);
    if (!input.is_object()) input = Json::object();
    return {{"type", "tool_use"}, {"id", block.id}, {"name", block.name}, {"input", std::move(input)}};
  }

  Json envelope() const {
    return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", model_}};
  }

  /// What was found computed counts apart from the rest of the input.
  Json usage() const {
    const std::int64_t cached = usage_.prompt.cached_tokens;
    return {{"input_tokens", usage_.prompt_tokens - cached},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached},
            {"output_tokens", usage_.written_tokens}};
  }

  void write(const char* type, const Json& fields) {
    Json event = {{"type", type}};
    event.update(fields);
    reply_->write(std::string("event: ") + type + "\ndata: " + dump(event) + "\n\n");
  }
  void write_delta(std::size_t at, const Json& delta) {
    write("content_block_delta", {{"index", at}, {"delta", delta}});
  }

  std::string id_;
};

void messages(Backend& backend, const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  PreparedChat chat =
      prepare_chat(backend, request, chat_of_messages(body, backend.format().has_thinking(), false));
  const auto job = make_messages_job(backend, chat, request, reply);
  start(backend, std::move(chat), job, answer_id(request, "msg_"), request, reply);
}

void count_tokens(Backend& backend, const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  const PreparedChat chat =
      prepare_chat(backend, request, chat_of_messages(body, backend.format().has_thinking(), true));
  send_json(reply, {{"input_tokens", chat.fields.engine.prompt.size()}});
}

}  // namespace

std::shared_ptr<BlockJob> make_messages_job(Backend& backend, PreparedChat& chat,
                                            const Request& request, std::shared_ptr<Reply> reply) {
  return std::make_shared<MessagesJob>(backend, chat, answer_id(request, "msg_"), std::move(reply));
}

std::vector<Route> messages_routes(Backend& backend) {
  const auto route = [&backend](const char* path, auto* f) {
    return Route{.method = "POST",
                 .path = path,
                 .action = [&backend, f](const Request& request,
                                         const std::shared_ptr<Reply>& reply) {
                   f(backend, request, reply);
                 },
                 .errors = ErrorForm::kAnthropic};
  };
  return {route("/v1/messages", &messages), route("/v1/messages/count_tokens", &count_tokens)};
}

}  // namespace palimpsest::server
