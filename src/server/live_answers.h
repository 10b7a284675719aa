#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/engine.h"

namespace palimpsest::server {

/// The answers that are being computed, by the id that their client knows, so that it can watch
/// them. Any number of threads.
class LiveAnswers {
 public:
  /// Before the engine is asked. Answers may share a name.
  std::uint64_t enter(std::string name, std::uint64_t user) {
    const std::lock_guard lock(mutex_);
    answers_.push_back({++last_, 0, std::move(name), user});
    return last_;
  }
  void submitted(std::uint64_t serial, RequestId request) {
    const std::lock_guard lock(mutex_);
    for (Answer& answer : answers_) {
      if (answer.serial == serial) answer.request = request;
    }
  }
  void leave(std::uint64_t serial) {
    const std::lock_guard lock(mutex_);
    std::erase_if(answers_, [&](const Answer& answer) { return answer.serial == serial; });
  }
  /// The newest one of this name that belongs to this user.
  std::optional<RequestId> find(std::string_view name, std::uint64_t user) const {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(answers_.rbegin(), answers_.rend(), [&](const Answer& answer) {
      return answer.request != 0 && answer.user == user && answer.name == name;
    });
    return found == answers_.rend() ? std::nullopt : std::optional(found->request);
  }

 private:
  struct Answer {
    std::uint64_t serial;
    RequestId request;  ///< 0: not submitted yet
    std::string name;
    std::uint64_t user;
  };
  mutable std::mutex mutex_;
  std::vector<Answer> answers_;
  std::uint64_t last_ = 0;
};

}  // namespace palimpsest::server
