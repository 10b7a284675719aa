// OpenAI's /v1/responses: text, reasoning and function calls, whole or as a stream of numbered
// events.

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/block_job.h"
#include "server/endpoints.h"
#include "server/responses_fields.h"

namespace palimpsest::server {
namespace {

/// What a response repeats of its request.
Json echoed_fields(const Json& body, const PreparedChat& chat) {
  const EngineRequest& asked = chat.fields.engine;
  const auto given = [&](const char* name, Json otherwise) {
    const Json* value = field(body, name);
    return value ? *value : std::move(otherwise);
  };
  return {{"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"metadata", given("metadata", Json::object())},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"reasoning", given("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
          {"store", false},
          {"temperature", asked.sampling.temperature},
          {"text", given("text", {{"format", {{"type", "text"}}}})},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", asked.sampling.top_p},
          {"truncation", "disabled"}};
}

class ResponsesJob final : public BlockJob {
 public:
  ResponsesJob(Backend& backend, PreparedChat& chat, const Json& body, const Request& request,
               std::shared_ptr<Reply> reply)
      : BlockJob(backend, chat, std::move(reply)),
        id_(request.id),
        created_(unix_seconds()),
        echoed_(echoed_fields(body, chat)) {}

 private:
  void started() override {
    for (const char* type : {"response.created", "response.in_progress"})
      write(type, {{"response", response("in_progress")}});
  }

  void opened(std::size_t at) override {
    write("response.output_item.added",
          {{"output_index", at}, {"item", item(at, "in_progress", true)}});
    if (blocks_[at].kind == AnswerBlock::Kind::kText)
      write_at("response.content_part.added", at, {{"part", text_part("")}});
  }

  void grew(std::size_t at, const std::string& piece) override {
    Json fields = {{"delta", piece}};
    if (blocks_[at].kind == AnswerBlock::Kind::kText) fields["logprobs"] = Json::array();
    write_at(fmt::format("response.{}.delta", event_name(at)).c_str(), at, fields);
  }

  void closed(std::size_t at) override {
    const AnswerBlock& block = blocks_[at];
    const std::string type = fmt::format("response.{}.done", event_name(at));
    if (block.kind == AnswerBlock::Kind::kCall) {
      write_at(type.c_str(), at, {{"name", block.name}, {"arguments", block.text}});
    } else {
      Json fields = {{"text", block.text}};
      if (block.kind == AnswerBlock::Kind::kText) fields["logprobs"] = Json::array();
      write_at(type.c_str(), at, fields);
    }
    if (block.kind == AnswerBlock::Kind::kText)
      write_at("response.content_part.done", at, {{"part", text_part(block.text)}});
    write("response.output_item.done", {{"output_index", at}, {"item", item(at, "completed")}});
  }

  void ended(End end) override {
    const char* status = end == End::kLength ? "incomplete" : "completed";
    Json whole = response(status);
    if (end == End::kLength) whole["incomplete_details"] = {{"reason", "max_output_tokens"}};
    whole["usage"] = usage();
    if (!stream_) return send_json(reply_, whole);
    write(fmt::format("response.{}", status).c_str(), {{"response", std::move(whole)}});
    reply_->end();
  }

  void failed(const ApiError& error) override {
    if (!stream_) return reply_->send(error_response(error));
    Json whole = response("failed");
    whole["error"] = {{"code", "server_error"}, {"message", error.message}};
    write("response.failed", {{"response", std::move(whole)}});
    reply_->end();
  }

  const char* event_name(std::size_t at) const {
    switch (blocks_[at].kind) {
      case AnswerBlock::Kind::kThinking:
        return "reasoning_text";
      case AnswerBlock::Kind::kCall:
        return "function_call_arguments";
      case AnswerBlock::Kind::kText:
        break;
    }
    return "output_text";
  }

  std::string item_id(std::size_t at) const {
    constexpr const char* kPrefixes[] = {"rs", "msg", "fc"};
    return fmt::format("{}_{}_{}", kPrefixes[static_cast<std::size_t>(blocks_[at].kind)], id_, at);
  }

  static Json text_part(const std::string& text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  /// `empty`: as it is when it begins.
  Json item(std::size_t at, const char* status, bool empty = false) const {
    const AnswerBlock& block = blocks_[at];
    Json json = {{"id", item_id(at)}};
    switch (block.kind) {
      case AnswerBlock::Kind::kThinking:
        json["type"] = "reasoning";
        json["summary"] = Json::array();
        json["content"] = Json::array();
        if (!empty) json["content"].push_back({{"type", "reasoning_text"}, {"text", block.text}});
        break;
      case AnswerBlock::Kind::kText:
        json["type"] = "message";
        json["role"] = "assistant";
        json["content"] = Json::array();
        if (!empty) json["content"].push_back(text_part(block.text));
        break;
      case AnswerBlock::Kind::kCall:
        json["type"] = "function_call";
        json["call_id"] = block.id;
        json["name"] = block.name;
        json["arguments"] = block.text;
        break;
    }
    json["status"] = status;
    return json;
  }

  Json response(const char* status) const {
    Json json = {{"id", "resp_" + id_},
                 {"object", "response"},
                 {"created_at", created_},
                 {"status", status},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"model", model_},
                 {"output", Json::array()}};
    json.update(echoed_);
    for (std::size_t i = 0; i < blocks_.size(); ++i) json["output"].push_back(item(i, "completed"));
    json["usage"] = nullptr;
    return json;
  }

  Json usage() const {
    return {{"input_tokens", usage_.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage_.prompt.cached_tokens}}},
            {"output_tokens", usage_.written_tokens},
            {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens()}}},
            {"total_tokens", usage_.prompt_tokens + usage_.written_tokens}};
  }

  void write(const char* type, const Json& fields) {
    if (!stream_) return;
    Json event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    reply_->write(std::string("event: ") + type + "\ndata: " + dump(event) + "\n\n");
  }
  void write_at(const char* type, std::size_t at, const Json& fields) {
    if (!stream_) return;
    Json all = {{"item_id", item_id(at)}, {"output_index", at}};
    if (blocks_[at].kind != AnswerBlock::Kind::kCall) all["content_index"] = 0;
    all.update(fields);
    write(type, all);
  }

  std::string id_;
  std::int64_t created_;
  Json echoed_;
  std::int64_t sequence_ = 0;
};

void responses(Backend& backend, const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  PreparedChat chat = prepare_chat(backend, request, chat_of_responses(body), "text.format");
  const auto job = make_responses_job(backend, chat, body, request, reply);
  start(backend, std::move(chat), job, answer_id(request, "resp_"), request, reply);
}

}  // namespace

std::shared_ptr<BlockJob> make_responses_job(Backend& backend, PreparedChat& chat, const Json& body,
                                             const Request& request, std::shared_ptr<Reply> reply) {
  return std::make_shared<ResponsesJob>(backend, chat, body, request, std::move(reply));
}

std::vector<Route> responses_routes(Backend& backend) {
  return {{"POST", "/v1/responses", [&backend](const auto& request, const auto& reply) {
             responses(backend, request, reply);
           }}};
}

}  // namespace palimpsest::server
