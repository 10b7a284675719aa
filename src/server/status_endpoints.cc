// How the server is.

#include <chrono>
#include <mutex>

#include "server/endpoints.h"

namespace palimpsest::server {
namespace {

/// Whether tokens can be written: one probe serves all who ask while it is under way.
class HealthProbe : public std::enable_shared_from_this<HealthProbe> {
 public:
  explicit HealthProbe(Backend& backend) : backend_(backend) {}

  void ask(const std::shared_ptr<Reply>& reply) {
    if (backend_.stopping) throw ApiError(503, "the server is shutting down", {}, "shutting_down");
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(reply);
      if (waiting_.size() > 1) return;
    }
    try {
      probe();
    } catch (const OverloadedError&) {
      Response busy;
      busy.body = dump({{"status", "busy"}});
      answer(busy);
    } catch (...) {
      answer(error_response(current_error()));
    }
  }

 private:
  /// Writes a token. When no slot comes free in time the server is well if it is at work.
  void probe() {
    constexpr std::chrono::seconds kLongest{5};
    Engine& engine = backend_.engine;
    EngineRequest request;
    request.prompt = {backend_.tokenizer.bos().value_or(0)};
    request.sampling.temperature = 0;
    request.max_tokens = 1;
    request.deadline = std::chrono::steady_clock::now() + kLongest;
    const std::uint64_t passes = engine.metrics().passes;
    engine.submit(std::move(request),
                  [self = shared_from_this(), &engine, passes](const EngineEvent& event) {
                    const auto* end = std::get_if<ChoiceEvent>(&event);
                    if (!end) return true;
                    const bool works = end->reason == FinishReason::kStop ||
                                       end->reason == FinishReason::kLength;
                    const bool busy = end->reason == FinishReason::kDeadline &&
                                      engine.metrics().passes > passes;
                    Response response;
                    response.body = dump({{"status", busy ? "busy" : "ok"}});
                    if (!works && !busy)
                      response = error_response(ApiError(503, "no token could be written: " + end->text));
                    self->answer(response);
                    return true;
                  });
  }

  void answer(const Response& response) {
    std::vector<std::shared_ptr<Reply>> replies;
    {
      const std::lock_guard lock(mutex_);
      replies.swap(waiting_);
    }
    for (const auto& reply : replies) reply->send(response);
  }

  Backend& backend_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Reply>> waiting_;
};

}  // namespace

std::vector<Route> status_routes(Backend& backend) {
  const auto probe = std::make_shared<HealthProbe>(backend);
  const auto health = [probe](const Request&, const std::shared_ptr<Reply>& reply) {
    probe->ask(reply);
  };
  const auto metrics = [&backend](const Request&, const std::shared_ptr<Reply>& reply) {
    Response response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    const auto& http_counts = backend.options.http_counts;
    response.body =
        metrics_text(backend.engine.metrics(), http_counts ? http_counts() : HttpCounts{});
    reply->send(std::move(response));
  };
  return {{.method = "GET", .path = "/health", .action = health, .open = true},
          {.method = "GET", .path = "/metrics", .action = metrics}};
}

}  // namespace palimpsest::server
