// Slots, and sessions in files.

#include "server/endpoints.h"
#include "server/fan_out.h"
#include "server/sessions.h"

namespace palimpsest::server {
namespace {

Json entry_json(const Sessions::Entry& entry) {
  return {{"object", "session"},
          {"name", entry.name},
          {"bytes", entry.bytes},
          {"modified", entry.modified}};
}

/// `f` on the sessions' thread, its JSON or what it throws to the client.
template <class F>
void answer_later(Sessions& sessions, const std::shared_ptr<Reply>& reply, F f) {
  sessions.post([reply, f = std::move(f)] {
    try {
      send_json(reply, f());
    } catch (...) {
      reply->send(error_response(current_error()));
    }
  });
}

std::string name_in(const Json& body) {
  const auto name = string(body, "name");
  if (!name) refuse("name", "is missing");
  if (!is_session_name(*name))
    refuse("name", "not 1 to 100 letters, digits, '.', '_' and '-', the first no '.'");
  return *name;
}

/// Waits until the prompt is read, then saves.
class SaveJob final : public PartsListener {
 public:
  SaveJob(Sessions& sessions, std::string name, std::vector<std::int32_t> prompt,
          std::shared_ptr<Reply> reply)
      : sessions_(sessions),
        name_(std::move(name)),
        prompt_(std::move(prompt)),
        reply_(std::move(reply)) {}

  bool hear(std::size_t, const EngineEvent& event) override {
    if (const auto* end = std::get_if<ChoiceEvent>(&event)) throw_if_failed(*end);
    return true;
  }
  void finished() override {
    answer_later(sessions_, reply_,
                 [&sessions = sessions_, name = std::move(name_), prompt = std::move(prompt_)] {
                   Json json = entry_json(sessions.save(name, prompt));
                   json["tokens"] = prompt.size();
                   return json;
                 });
  }
  void failed(const ApiError& error) override { reply_->send(error_response(error)); }

 private:
  Sessions& sessions_;
  std::string name_;
  std::vector<std::int32_t> prompt_;
  std::shared_ptr<Reply> reply_;
};

void save(Backend& backend, Sessions& sessions, const Request& request,
          const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  const std::string name = name_in(body);
  EngineRequest asked;
  if (field(body, "messages")) {
    asked = prepare_chat(backend, request, body).fields.engine;
  } else {
    asked.prompt = read_prompts(body, backend.tokenizer, backend.limits.vocab_size, 1).front();
  }
  asked.max_tokens = 0;
  asked.choices = 1;
  asked.logprobs = -1;
  const auto job = std::make_shared<SaveJob>(sessions, name, asked.prompt, reply);
  std::vector<EngineRequest> requests;
  requests.push_back(std::move(asked));
  FanOut::start(backend, std::move(requests), request, reply, job);
}

void slots(const Backend& backend, const std::shared_ptr<Reply>& reply) {
  Json list = Json::array();
  for (const SlotStatus& slot : backend.engine.slots()) {
    list.push_back({{"id", slot.slot},
                    {"is_processing", slot.request != 0},
                    {"request", slot.request},
                    {"choice", slot.choice},
                    {"n_ctx", backend.limits.context},
                    {"prompt_tokens", slot.prompt_tokens},
                    {"prompt_tokens_done", slot.prompt_done},
                    {"written_tokens", slot.written_tokens}});
  }
  send_json(reply, list);
}

}  // namespace

std::vector<Route> session_routes(Backend& backend) {
  std::vector<Route> routes;
  routes.push_back({"GET", "/slots", [&backend](const Request&, const auto& reply) {
                      slots(backend, reply);
                    }});
  if (backend.options.sessions.empty()) return routes;
  const auto sessions = std::make_shared<Sessions>(backend.engine, backend.options.sessions);
  routes.push_back({"GET", "/sessions", [sessions](const Request&, const auto& reply) {
                      answer_later(*sessions, reply, [&sessions = *sessions] {
                        Json list = Json::array();
                        for (const auto& entry : sessions.list()) list.push_back(entry_json(entry));
                        return Json{{"object", "list"}, {"data", std::move(list)}};
                      });
                    }});
  routes.push_back({"POST", "/sessions/save",
                    [sessions, &backend](const Request& request, const auto& reply) {
                      save(backend, *sessions, request, reply);
                    }});
  routes.push_back({"POST", "/sessions/restore",
                    [sessions](const Request& request, const auto& reply) {
                      const std::string name = name_in(parse_object(request.body));
                      answer_later(*sessions, reply, [&sessions = *sessions, name] {
                        const std::int64_t tokens = sessions.restore(name);
                        return Json{{"object", "session"}, {"name", name}, {"tokens", tokens}};
                      });
                    }});
  routes.push_back({"DELETE", "/sessions/{name}",
                    [sessions](const Request& request, const auto& reply) {
                      answer_later(*sessions, reply, [&sessions = *sessions, name = request.name] {
                        sessions.remove(name);
                        return Json{{"object", "session.deleted"}, {"name", name}, {"deleted", true}};
                      });
                    }});
  return routes;
}

}  // namespace palimpsest::server
