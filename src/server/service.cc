#include "server/service.h"

#include <algorithm>
#include <chrono>

#include "server/api_error.h"
#include "server/generation_job.h"

namespace palimpsest::server {
namespace {

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Takes as long for a wrong key as for the right one: only the length given matters.
bool same_key(std::string_view given, std::string_view key) {
  volatile unsigned char differs = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    differs = static_cast<unsigned char>(differs | static_cast<unsigned char>(given[i] ^ expected));
  }
  return differs == 0;
}

bool is_json_type(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  std::string lower(type);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower.empty() || lower == "application/json";
}

void send_json(const std::shared_ptr<Reply>& reply, const Json& json) {
  Response response;
  response.body = dump(json);
  reply->send(std::move(response));
}

std::string answer_id(const Request& request, const char* prefix) {
  return std::string(prefix) + request.id;
}

}  // namespace

constinit const Service::Route Service::kRoutes[] = {
    {"/v1/chat/completions", "POST", false, &Service::chat_completions},
    {"/v1/completions", "POST", false, &Service::completions},
    {"/v1/models", "GET", false, &Service::models},
    {"/health", "GET", true, &Service::health},
    {"/metrics", "GET", false, &Service::metrics},
    {"/tokenize", "POST", false, &Service::tokenize},
    {"/detokenize", "POST", false, &Service::detokenize},
    {"/apply-template", "POST", false, &Service::apply_template},
};

Service::Service(Engine& engine, Tokenizer tokenizer, ServiceOptions options)
    : engine_(engine),
      tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      started_(unix_seconds()) {
  limits_.defaults = options_.defaults;
  limits_.vocab_size = engine.model().config().vocab_size;
  limits_.context = engine.context();
  limits_.most_choices = engine.options().most_choices;
  limits_.most_logprobs = engine.options().most_logprobs;
}

const Service::Route* Service::find(std::string_view path) {
  const auto end = std::end(kRoutes);
  const auto found =
      std::find_if(std::begin(kRoutes), end, [&](const Route& r) { return r.path == path; });
  return found == end ? nullptr : found;
}

std::optional<std::size_t> Service::key_of(const Request& request) const {
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view given = request.authorization;
  if (!given.starts_with(kScheme)) return std::nullopt;
  given.remove_prefix(kScheme.size());
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < options_.keys.size(); ++i) {  // all of them, whichever fits
    if (same_key(given, options_.keys[i])) found = i;
  }
  return found;
}

std::optional<Response> Service::admit(const Request& request) {
  const Route* route = find(request.path);
  if (!options_.keys.empty() && !(route && route->open) && !key_of(request)) {
    Response response = error_response(
        401, "the header \"Authorization: Bearer KEY\" is missing or its key is not known", {},
        "invalid_api_key");
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (!route) return error_response(404, "no such path", {}, "unknown_path");
  if (request.method != route->method) {
    Response response =
        error_response(405, "this path takes " + std::string(route->method) + " only", {}, "method_not_allowed");
    response.headers.emplace_back("Allow", route->method);
    return response;
  }
  // Forms of other sites' pages cannot send JSON without asking first.
  if (route->method == "POST" && !is_json_type(request.content_type))
    return error_response(415, "the body must be application/json", {}, "unsupported_media_type");
  return std::nullopt;
}

void Service::handle(Request request, std::shared_ptr<Reply> reply) {
  try {
    const Route* route = find(request.path);  // admit() has seen to it that there is one
    (this->*route->action)(request, reply);
  } catch (...) {
    reply->send(error_response(current_error()));
  }
}

const ChatFormat& Service::format() const {
  if (!options_.format)
    throw ApiError(400, "this model has no chat format: " + options_.no_format, {}, "no_chat_format");
  return *options_.format;
}

void Service::chat_completions(const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  GenerationFields fields = read_chat_generation(body, limits_);
  JobSetup setup;
  setup.chat = true;
  setup.format = &format();
  setup.conversation = read_conversation(body);
  setup.id = answer_id(request, "chatcmpl-");
  fields.engine.prompt = encode(tokenizer_, setup.format->render(setup.conversation));
  fields.engine.borders = message_borders(tokenizer_, fields.engine.prompt);
  if (setup.conversation.options.tool_choice == ToolChoice::kNone) {
    // Whatever the model makes of it, nothing is called: calls of no declared tool are content.
    setup.conversation.tools.clear();
    for (ChatMessage& message : setup.conversation.messages) message.tools.clear();
  }
  start(std::move(fields), std::move(setup), request, reply);
}

void Service::completions(const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  JobSetup setup;
  GenerationFields fields = read_completion_generation(body, limits_, setup.echo);
  fields.engine.prompt = read_prompt(body, tokenizer_, limits_.vocab_size);
  if (setup.echo) setup.prompt = fields.engine.prompt;
  setup.id = answer_id(request, "cmpl-");
  start(std::move(fields), std::move(setup), request, reply);
}

void Service::start(GenerationFields fields, JobSetup setup, const Request& request,
                    const std::shared_ptr<Reply>& reply) {
  setup.model = options_.name;
  setup.created = unix_seconds();
  setup.stream = fields.stream;
  setup.include_usage = fields.include_usage;
  setup.choices = fields.engine.choices;
  setup.logprobs = fields.engine.logprobs >= 0;
  setup.stops = std::move(fields.stops);
  fields.engine.stop_ids = tokenizer_.stop_ids();
  fields.engine.user = options_.keys.empty() ? std::hash<std::string>{}(request.peer)
                                             : key_of(request).value_or(0) + 1;
  const bool stream = setup.stream;
  const auto job = std::make_shared<GenerationJob>(std::move(setup), tokenizer_, reply);
  const RequestId id = engine_.submit(
      std::move(fields.engine), [job](const EngineEvent& event) { return job->on_event(event); });
  if (stream) reply->begin_stream();
  reply->on_gone([&engine = engine_, id] { engine.cancel(id); });
}

void Service::models(const Request&, const std::shared_ptr<Reply>& reply) {
  Json list = Json::array();
  list.push_back({{"id", options_.name},
                  {"object", "model"},
                  {"created", started_},
                  {"owned_by", "palimpsest"},
                  {"context_length", limits_.context},
                  {"vocab_size", limits_.vocab_size}});
  send_json(reply, {{"object", "list"}, {"data", std::move(list)}});
}

/// One probe serves all who ask while it is under way.
void Service::health(const Request&, const std::shared_ptr<Reply>& reply) {
  if (stopping_) throw ApiError(503, "the server is shutting down", {}, "shutting_down");
  {
    const std::lock_guard lock(probe_mutex_);
    waiting_for_probe_.push_back(reply);
    if (waiting_for_probe_.size() > 1) return;
  }
  try {
    probe();
  } catch (const OverloadedError&) {
    Response busy;
    busy.body = dump({{"status", "busy"}});
    answer_probes(busy);
  } catch (...) {
    answer_probes(error_response(current_error()));
  }
}

/// Writes a token. When no slot comes free in time the server is well if it is at work.
void Service::probe() {
  constexpr std::chrono::seconds kLongest{5};
  EngineRequest request;
  request.prompt = {tokenizer_.bos().value_or(0)};
  request.sampling.temperature = 0;
  request.max_tokens = 1;
  request.deadline = std::chrono::steady_clock::now() + kLongest;
  const std::uint64_t passes = engine_.metrics().passes;
  engine_.submit(std::move(request), [this, passes](const EngineEvent& event) {
    if (const auto* end = std::get_if<ChoiceEvent>(&event)) {
      const bool works = end->reason == FinishReason::kStop || end->reason == FinishReason::kLength;
      const bool busy = end->reason == FinishReason::kDeadline && engine_.metrics().passes > passes;
      Response response;
      response.body = dump({{"status", busy ? "busy" : "ok"}});
      if (!works && !busy) response = error_response(503, "no token could be written: " + end->text);
      answer_probes(response);
    }
    return true;
  });
}

void Service::answer_probes(const Response& response) {
  std::vector<std::shared_ptr<Reply>> replies;
  {
    const std::lock_guard lock(probe_mutex_);
    replies.swap(waiting_for_probe_);
  }
  for (const auto& reply : replies) reply->send(response);
}

void Service::metrics(const Request&, const std::shared_ptr<Reply>& reply) {
  Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_text(engine_.metrics(),
                               options_.http_counts ? options_.http_counts() : HttpCounts{});
  reply->send(std::move(response));
}

void Service::tokenize(const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  const auto content = string(body, "content");
  if (!content) refuse("content", "is missing");
  const bool control = boolean(body, "parse_special").value_or(false);
  std::vector<std::int32_t> out;
  if (boolean(body, "add_special").value_or(false) && tokenizer_.adds_bos())
    out.push_back(*tokenizer_.bos());
  tokenizer_.encode(*content, control ? EncodeMode::kControl : EncodeMode::kText, out);
  if (!boolean(body, "with_pieces").value_or(false)) return send_json(reply, {{"tokens", out}});
  Json tokens = Json::array();
  for (const std::int32_t id : out) {
    const std::span one(&id, 1);
    tokens.push_back({{"id", id}, {"piece", tokenizer_.decode(one)}});
  }
  send_json(reply, {{"tokens", std::move(tokens)}});
}

void Service::detokenize(const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  const Json* tokens = field(body, "tokens");
  if (!tokens) refuse("tokens", "is missing");
  send_json(reply, {{"content", tokenizer_.decode(ids(*tokens, "tokens", limits_.vocab_size))}});
}

void Service::apply_template(const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  send_json(reply, {{"prompt", join(format().render(read_conversation(body)))}});
}

}  // namespace palimpsest::server
