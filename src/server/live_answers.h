#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "palimpsest/engine.h"

namespace palimpsest::server {

/// The answers that are being computed, by the id that their client knows, so that it can watch
/// them. Any number of threads.
class LiveAnswers {
 public:
  /// Answers may share a name.
  void enter(std::string name, std::uint64_t user, RequestId request) {
    const std::lock_guard lock(mutex_);
    answers_.push_back({request, std::move(name), user});
  }
  /// Nothing where it is not there.
  void leave(RequestId request) {
    const std::lock_guard lock(mutex_);
    std::erase_if(answers_, [&](const Answer& answer) { return answer.request == request; });
  }
  /// The newest one of this name that belongs to this user.
  std::optional<RequestId> find(std::string_view name, std::uint64_t user) const {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(answers_.rbegin(), answers_.rend(), [&](const Answer& answer) {
      return answer.user == user && answer.name == name;
    });
    return found == answers_.rend() ? std::nullopt : std::optional(found->request);
  }

 private:
  struct Answer {
    RequestId request;
    std::string name;
    std::uint64_t user;
  };
  mutable std::mutex mutex_;
  std::vector<Answer> answers_;
};

}  // namespace palimpsest::server
