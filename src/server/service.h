#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "palimpsest/chat.h"
#include "palimpsest/engine.h"
#include "palimpsest/tokenizer.h"
#include "server/generation_fields.h"
#include "server/http.h"

namespace palimpsest::server {

struct JobSetup;

struct ServiceOptions {
  std::string name = "model";          ///< what /v1/models calls it
  std::vector<std::string> keys;       ///< any of them opens; none: no key is asked for
  SamplingParams defaults;             ///< of what requests do not say
  std::shared_ptr<const ChatFormat> format;  ///< null: no chats
  std::string no_format;               ///< why, for people
  std::function<HttpCounts()> http_counts;   ///< for /metrics; may be empty
};

/// The interface of docs/server.md over an engine: which path does what. Any number of threads.
class Service final : public Handler {
 public:
  /// `engine` outlives the service, and is stopped before the transport goes.
  Service(Engine& engine, Tokenizer tokenizer, ServiceOptions options);

  std::optional<Response> admit(const Request& request) override;
  void handle(Request request, std::shared_ptr<Reply> reply) override;
  /// From here on /health says 503.
  void begin_shutdown() { stopping_ = true; }

 private:
  using Action = void (Service::*)(const Request&, const std::shared_ptr<Reply>&);
  struct Route {
    std::string_view path, method;
    bool open;  ///< no key is needed
    Action action;
  };
  static const Route kRoutes[];
  static const Route* find(std::string_view path);

  void chat_completions(const Request& request, const std::shared_ptr<Reply>& reply);
  void completions(const Request& request, const std::shared_ptr<Reply>& reply);
  void models(const Request& request, const std::shared_ptr<Reply>& reply);
  void health(const Request& request, const std::shared_ptr<Reply>& reply);
  void metrics(const Request& request, const std::shared_ptr<Reply>& reply);
  void tokenize(const Request& request, const std::shared_ptr<Reply>& reply);
  void detokenize(const Request& request, const std::shared_ptr<Reply>& reply);
  void apply_template(const Request& request, const std::shared_ptr<Reply>& reply);

  /// The place of the request's key in the list; nothing if none fits.
  std::optional<std::size_t> key_of(const Request& request) const;
  const ChatFormat& format() const;
  void start(GenerationFields fields, JobSetup setup, const Request& request,
             const std::shared_ptr<Reply>& reply);
  void probe();
  void answer_probes(const Response& response);

  Engine& engine_;
  Tokenizer tokenizer_;
  ServiceOptions options_;
  RequestLimits limits_;
  std::int64_t started_;  ///< seconds since 1970
  std::atomic<bool> stopping_{false};
  std::mutex probe_mutex_;
  std::vector<std::shared_ptr<Reply>> waiting_for_probe_;
};

/// The engine's counters and the transport's, in Prometheus' text format.
std::string metrics_text(const EngineMetrics& engine, const HttpCounts& http);

}  // namespace palimpsest::server
