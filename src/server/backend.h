#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/constraint.h"
#include "model/vision/vision_config.h"
#include "palimpsest/chat.h"
#include "palimpsest/engine.h"
#include "palimpsest/tokenizer.h"
#include "server/generation_fields.h"
#include "server/http.h"
#include "server/live_answers.h"

namespace palimpsest::server {

struct ServiceOptions {
  std::string name = "model";          ///< what /v1/models calls it
  std::vector<std::string> keys;       ///< any of them opens; none: no key is asked for
  SamplingParams defaults;             ///< of what requests do not say
  std::shared_ptr<const ChatFormat> format;  ///< null: no chats
  std::function<HttpCounts()> http_counts;   ///< for /metrics; may be empty
  bool web = true;                           ///< serve the web page
  std::optional<VisionConfig> vision;        ///< chats may hold pictures, which are made ready like this
  std::size_t most_pictures = 32;            ///< of a request
  /// The bytes of a picture at an http(s) address; empty: none are fetched. Any thread.
  std::function<Result<std::vector<std::byte>>(const std::string& url)> fetch;
  std::filesystem::path sessions;            ///< folder of session files; empty: no /sessions
};

/// What the endpoints share. Constant but for `stopping`; any number of threads.
struct Backend {
  /// `engine_in` outlives the backend.
  Backend(Engine& engine_in, Tokenizer tokenizer_in, ServiceOptions options_in);

  /// ApiError 400 where the model has no chats.
  const ChatFormat& format() const;
  /// The place of the request's key in the list; nothing if none fits.
  std::optional<std::size_t> key_of(const Request& request) const;
  /// Whom the engine counts the request for: its key, or its address where there are no keys.
  std::uint64_t user_of(const Request& request) const;

  Engine& engine;
  const Tokenizer tokenizer;
  const ServiceOptions options;
  RequestLimits limits;
  std::int64_t started;  ///< seconds since 1970
  mutable grammar::ConstraintMaker constraints;  ///< any thread may call it
  mutable std::mutex decoding;                   ///< of pictures: one at a time
  std::atomic<bool> stopping{false};
  LiveAnswers live;
};

/// A chat, ready but for who asks: what /v1/chat/completions takes, and what other interfaces are
/// turned into.
struct PreparedChat {
  GenerationFields fields;    ///< with prompt, borders and stop ids
  Conversation conversation;  ///< what the answer's parser is made for
};
/// `body` in the form of /v1/chat/completions, made of that of `request`. ApiError 400, or Error
/// naming the field (`format_name`: of read_constraints); GrammarNotMade.
PreparedChat prepare_chat(const Backend& backend, const Request& request, const Json& body,
                          const std::string& format_name = "response_format");

std::int64_t unix_seconds();
void send_json(const std::shared_ptr<Reply>& reply, const Json& json);
/// "chatcmpl-" and the request's id.
std::string answer_id(const Request& request, const char* prefix);

}  // namespace palimpsest::server
