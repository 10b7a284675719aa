#include "server/fan_out.h"

#include <utility>

namespace palimpsest::server {
namespace {

constexpr std::size_t kAtOnce = 16;

}  // namespace

void FanOut::start(Backend& backend, std::vector<EngineRequest> requests, const Request& request,
                   const std::shared_ptr<Reply>& reply, std::shared_ptr<PartsListener> listener,
                   bool stream, std::string name) {
  for (EngineRequest& asked : requests) asked.user = backend.user_of(request);
  const std::shared_ptr<FanOut> all(
      new FanOut(backend, std::move(requests), std::move(listener)));
  {
    const std::lock_guard lock(all->mutex_);  // nothing is heard before all are handed over
    try {
      all->submit_some();
      if (!name.empty()) backend.live.enter(std::move(name), backend.user_of(request), all->ids_.front());
    } catch (...) {
      all->end_all();
      throw;
    }
  }
  if (stream) reply->begin_stream();
  reply->on_gone([all] {
    const std::lock_guard lock(all->mutex_);
    all->end_all();
  });
}

/// Throws when there is none left under way that could take up the rest later.
void FanOut::submit_some() {
  while (next_ < requests_.size() && next_ - ended_ < kAtOnce) {
    const std::size_t part = next_;
    try {
      ids_.push_back(engine_.submit(requests_[part],
                                    [self = shared_from_this(), part](const EngineEvent& event) {
                                      return self->on_event(part, event);
                                    }));
    } catch (const OverloadedError&) {
      if (next_ == ended_ || ended_ == 0) throw;
      return;
    }
    requests_[part] = {};
    ++next_;
  }
}

bool FanOut::on_event(std::size_t part, const EngineEvent& event) noexcept {
  const std::lock_guard lock(mutex_);
  if (over_) return true;  // what is left has been cancelled
  try {
    const bool goes_on = listener_->hear(part, event);
    if (!std::holds_alternative<FinishedEvent>(event)) return goes_on;
    if (part == 0) live_.leave(ids_.front());
    ++ended_;
    if (ended_ < requests_.size()) {
      submit_some();
    } else {
      over_ = true;
      listener_->finished();
    }
    return true;
  } catch (...) {
    end_all();
    listener_->failed(current_error());
    return false;
  }
}

void FanOut::end_all() {
  over_ = true;
  if (!ids_.empty()) live_.leave(ids_.front());
  for (const RequestId id : ids_) engine_.cancel(id);
}

void throw_if_failed(const ChoiceEvent& end) {
  switch (end.reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
    case FinishReason::kContext:
      return;
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
      throw ApiError(503, end.text.empty() ? "the request was cancelled" : end.text);
    case FinishReason::kError:
      throw ApiError(end.code == ErrorCode::kInvalidRequest ? 400 : 500, end.text);
  }
}

}  // namespace palimpsest::server
