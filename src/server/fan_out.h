#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "palimpsest/engine.h"
#include "server/api_error.h"
#include "server/backend.h"

namespace palimpsest::server {

/// Makes one answer of the events of one or more engine requests. Is called by one thread at a time.
class PartsListener {
 public:
  virtual ~PartsListener() = default;
  /// As an EventHandler's, of request number `part`. What it throws ends all of them: failed().
  virtual bool hear(std::size_t part, const EngineEvent& event) = 0;
  /// All parts have heard their FinishedEvent. Nothing follows.
  virtual void finished() = 0;
  /// Instead of what would come next. Nothing follows.
  virtual void failed(const ApiError& error) = 0;
};

/// Engine requests that are one request to the client: its leaving, or the failure of one, ends all.
class FanOut : public std::enable_shared_from_this<FanOut> {
 public:
  /// Hands `requests` (at least one) to the engine, a few at a time, so that one client does not
  /// fill the queue. With `stream`, comments keep the connection from looking dead. Throws what
  /// Engine::submit throws for one of the first; then `listener` hears nothing. The first can be watched as `name`, if there is one.
  static void start(Backend& backend, std::vector<EngineRequest> requests, const Request& request,
                    const std::shared_ptr<Reply>& reply, std::shared_ptr<PartsListener> listener,
                    bool stream = false, std::string name = {});

 private:
  FanOut(Backend& backend, std::vector<EngineRequest> requests,
         std::shared_ptr<PartsListener> listener)
      : engine_(backend.engine), live_(backend.live), requests_(std::move(requests)), listener_(std::move(listener)) {}
  void submit_some();
  bool on_event(std::size_t part, const EngineEvent& event) noexcept;
  void end_all();

  Engine& engine_;
  LiveAnswers& live_;
  std::mutex mutex_;  ///< of everything below
  std::vector<EngineRequest> requests_;  ///< those before next_ are gone
  std::shared_ptr<PartsListener> listener_;
  std::vector<RequestId> ids_;
  std::size_t next_ = 0, ended_ = 0;
  bool over_ = false;
};

/// ApiError for a choice that ended without being an answer: cancelled, late, failed.
void throw_if_failed(const ChoiceEvent& end);

}  // namespace palimpsest::server
