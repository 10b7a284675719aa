// Text to token ids and back; no model runs.

#include "server/constraint_fields.h"
#include "server/endpoints.h"
#include "server/picture_fields.h"

namespace palimpsest::server {
namespace {

void tokenize(const Backend& backend, const Request& request, const std::shared_ptr<Reply>& reply) {
  const Tokenizer& tokenizer = backend.tokenizer;
  const Json body = parse_object(request.body);
  const auto content = string(body, "content");
  if (!content) refuse("content", "is missing");
  const bool control = boolean(body, "parse_special").value_or(false);
  std::vector<std::int32_t> out;
  if (boolean(body, "add_special").value_or(false) && tokenizer.adds_bos())
    out.push_back(*tokenizer.bos());
  tokenizer.encode(*content, control ? EncodeMode::kControl : EncodeMode::kText, out);
  if (!boolean(body, "with_pieces").value_or(false)) return send_json(reply, {{"tokens", out}});
  Json tokens = Json::array();
  for (const std::int32_t id : out) {
    const std::span one(&id, 1);
    tokens.push_back({{"id", id}, {"piece", tokenizer.decode(one)}});
  }
  send_json(reply, {{"tokens", std::move(tokens)}});
}

void detokenize(const Backend& backend, const Request& request,
                const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  const Json* tokens = field(body, "tokens");
  if (!tokens) refuse("tokens", "is missing");
  const auto list = ids(*tokens, "tokens", backend.limits.vocab_size);
  send_json(reply, {{"content", backend.tokenizer.decode(list)}});
}

void apply_template(const Backend& backend, const Request& request,
                    const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  Conversation conversation = read_conversation(body);
  require_time_for_pictures(request, conversation);
  EngineRequest unused;
  constrain(read_constraints(body, true), backend.constraints, &backend.format(), &conversation,
            request.may_take_long, unused);
  read_pictures(backend, body, conversation);
  send_json(reply, {{"prompt", join(backend.format().render(conversation))}});
}

}  // namespace

std::vector<Route> text_routes(Backend& backend) {
  const auto with = [&backend](auto* f) {
    return [&backend, f](const Request& request, const std::shared_ptr<Reply>& reply) {
      f(backend, request, reply);
    };
  };
  return {{"POST", "/tokenize", with(&tokenize)},
          {"POST", "/detokenize", with(&detokenize)},
          {"POST", "/apply-template", with(&apply_template)}};
}

}  // namespace palimpsest::server
