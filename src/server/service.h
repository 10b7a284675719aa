#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>

#include "base/task_thread.h"
#include "server/backend.h"
#include "server/http.h"
#include "server/routes.h"

namespace palimpsest::server {

/// The interface of docs/server.md over an engine: who may ask, and which path does what
/// (endpoints.h). Any number of threads.
class Service final : public Handler {
 public:
  /// `engine` outlives the service, and is stopped before the transport goes.
  Service(Engine& engine, Tokenizer tokenizer, ServiceOptions options);

  std::optional<Response> admit(const Request& request) override;
  void handle(Request request, std::shared_ptr<Reply> reply) override;
  Response refusal(const Request& request, int status, const std::string& text) override;
  /// From here on /health says 503.
  void begin_shutdown() { backend_.stopping = true; }
  const Routes& routes() const { return routes_; }

 private:
  void perform(const Route& route, std::shared_ptr<Request> request,
               const std::shared_ptr<Reply>& reply);
  /// `what`: waits, in the words of the refusal when too many do.
  void prepare(base::TaskThread& thread, const char* what, const Route& route,
               std::shared_ptr<Request> request, const std::shared_ptr<Reply>& reply);
  base::TaskThread& reader(bool remote);
  void warm();

  Backend backend_;
  Routes routes_;
  base::TaskThread preparing_;  ///< makes grammars, and masks ahead
  std::deque<base::TaskThread> reading_;  ///< requests with pictures; all but the first: with pictures to be fetched
  std::atomic<std::size_t> fetches_{0};
};

}  // namespace palimpsest::server
