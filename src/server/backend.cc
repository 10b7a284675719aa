#include "server/backend.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "server/api_error.h"
#include "server/constraint_fields.h"
#include "server/picture_fields.h"

namespace palimpsest::server {
namespace {

/// Takes as long for a wrong key as for the right one: only the length given matters.
bool same_key(std::string_view given, std::string_view key) {
  volatile unsigned char differs = given.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    differs = static_cast<unsigned char>(differs | static_cast<unsigned char>(given[i] ^ expected));
  }
  return differs == 0;
}

/// The text of an error about messages[N] where the client calls that message otherwise: what turned its request into a chat has left the name
/// in "where". Nothing for other errors.
std::optional<std::string> in_words_of_the_client(const std::string& text, const Json& body) {
  constexpr std::string_view kFront = "messages[";
  if (!text.starts_with(kFront)) return std::nullopt;
  std::size_t n = 0;
  const auto [end, error] = std::from_chars(text.data() + kFront.size(), text.data() + text.size(), n);
  const Json* messages = field(body, "messages");
  if (error != std::errc{} || *end != ']' || !messages || n >= messages->size()) return std::nullopt;
  const Json* where = field((*messages)[n], "where");
  if (!where || !where->is_string()) return std::nullopt;
  return where->get<std::string>() + (end + 1);
}

}  // namespace

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void send_json(const std::shared_ptr<Reply>& reply, const Json& json) {
  Response response;
  response.body = dump(json);
  reply->send(std::move(response));
}

std::string answer_id(const Request& request, const char* prefix) {
  return std::string(prefix) + request.id;
}

Backend::Backend(Engine& engine_in, Tokenizer tokenizer_in, ServiceOptions options_in)
    : engine(engine_in),
      tokenizer(std::move(tokenizer_in)),
      options(std::move(options_in)),
      started(unix_seconds()),
      constraints(tokenizer) {
  limits.defaults = options.defaults;
  limits.vocab_size = engine.model().config().vocab_size;
  limits.context = engine.context();
  limits.most_choices = engine.options().most_choices;
  limits.most_logprobs = engine.options().most_logprobs;
}

const ChatFormat& Backend::format() const {
  if (!options.format) {
    throw ApiError(400, "this model has no chat format; the server's log says why", {},
                   "no_chat_format");
  }
  return *options.format;
}

std::optional<std::size_t> Backend::key_of(const Request& request) const {
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view given = request.authorization;
  if (!given.starts_with(kScheme)) return std::nullopt;
  given.remove_prefix(kScheme.size());
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < options.keys.size(); ++i) {  // all of them, whichever fits
    if (same_key(given, options.keys[i])) found = i;
  }
  return found;
}

std::uint64_t Backend::user_of(const Request& request) const {
  return options.keys.empty() ? std::hash<std::string>{}(request.peer)
                              : key_of(request).value_or(0) + 1;
}

PreparedChat prepare_chat(const Backend& backend, const Request& request, const Json& body,
                          const std::string& format_name) try {
  PreparedChat chat;
  chat.fields = read_chat_generation(body, backend.limits);
  chat.conversation = read_conversation(body);
  require_time_for_pictures(request, chat.conversation);
  EngineRequest& engine = chat.fields.engine;
  constrain(read_constraints(body, true, format_name), backend.constraints, &backend.format(),
            &chat.conversation, request.may_take_long, engine);
  engine.pictures = read_pictures(backend, body, chat.conversation);
  engine.prompt = encode_chat(backend.tokenizer, backend.format().render(chat.conversation), engine.pictures);
  std::sort(engine.pictures.begin(), engine.pictures.end());
  engine.pictures.erase(std::unique(engine.pictures.begin(), engine.pictures.end()), engine.pictures.end());
  engine.borders = message_borders(backend.tokenizer, engine.prompt);
  engine.stop_ids = backend.tokenizer.stop_ids();
  if (chat.conversation.options.tool_choice == ToolChoice::kNone) {
    // Whatever the model makes of it, nothing is called: calls of no declared tool are content.
    chat.conversation.tools.clear();
    for (ChatMessage& message : chat.conversation.messages) message.tools.clear();
  }
  return chat;
} catch (const Error& error) {
  if (const auto text = in_words_of_the_client(error.text(), body)) throw Error(error.code(), *text);
  throw;
}

}  // namespace palimpsest::server
