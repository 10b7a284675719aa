// OpenAI's chats and completions.

#include <utility>

#include "server/constraint_fields.h"
#include "server/endpoints.h"
#include "server/generation_job.h"

namespace palimpsest::server {
namespace {

void start(Backend& backend, GenerationFields fields, JobSetup setup, const Request& request,
           const std::shared_ptr<Reply>& reply) {
  setup.model = backend.options.name;
  setup.created = unix_seconds();
  setup.stream = fields.stream;
  setup.include_usage = fields.include_usage;
  setup.progress = fields.progress;
  setup.choices = fields.engine.choices;
  setup.logprobs = fields.engine.logprobs >= 0;
  setup.stops = std::move(fields.stops);
  std::vector<EngineRequest> requests;
  for (auto& prompt : setup.prompts) {
    requests.push_back(fields.engine);
    requests.back().prompt = setup.echo ? prompt : std::exchange(prompt, {});
  }
  const bool stream = setup.stream;
  std::string name = setup.id;
  FanOut::start(backend, std::move(requests), request, reply,
                std::make_shared<GenerationJob>(std::move(setup), backend.tokenizer, reply), stream,
                std::move(name));
}

void chat_completions(Backend& backend, const Request& request,
                      const std::shared_ptr<Reply>& reply) {
  PreparedChat chat = prepare_chat(backend, request, parse_object(request.body));
  JobSetup setup;
  setup.chat = true;
  setup.format = &backend.format();
  setup.conversation = std::move(chat.conversation);
  setup.id = answer_id(request, "chatcmpl-");
  setup.prompts.push_back(std::exchange(chat.fields.engine.prompt, {}));
  start(backend, std::move(chat.fields), std::move(setup), request, reply);
}

void completions(Backend& backend, const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  JobSetup setup;
  GenerationFields fields = read_completion_generation(body, backend.limits, setup.echo);
  setup.prompts = read_prompts(body, backend.tokenizer, backend.limits.vocab_size,
                               backend.limits.most_choices / fields.engine.choices);
  constrain(read_constraints(body, false), backend.constraints, nullptr, nullptr,
            request.may_take_long, fields.engine);
  fields.engine.stop_ids = backend.tokenizer.stop_ids();
  setup.id = answer_id(request, "cmpl-");
  start(backend, std::move(fields), std::move(setup), request, reply);
}

}  // namespace

std::vector<Route> completion_routes(Backend& backend) {
  return {{"POST", "/v1/chat/completions",
           [&backend](const auto& request, const auto& reply) {
             chat_completions(backend, request, reply);
           }},
          {"POST", "/v1/completions", [&backend](const auto& request, const auto& reply) {
             completions(backend, request, reply);
           }}};
}

}  // namespace palimpsest::server
