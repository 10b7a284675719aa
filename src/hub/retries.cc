#include "hub/retries.h"

#include <algorithm>
#include <thread>

#include "base/log.h"

namespace palimpsest::hub {

void wait_for(std::chrono::milliseconds time, const Stop& stop) {
  constexpr std::chrono::milliseconds kGlance{50};
  const auto end = std::chrono::steady_clock::now() + time;
  while (true) {
    if (stop()) throw make_error(ErrorCode::kCancelled, "cancelled");
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return;
    std::this_thread::sleep_for(std::min(left, kGlance));
  }
}

void Retries::wait(const TransientError& error) {
  ++failures_;
  if (failures_ >= patience_.attempts) {
    throw make_error(error.code(), "{} ({} attempts)", error.text(), failures_);
  }
  if (error.retry_after > patience_.longest_wait) {
    throw make_error(error.code(), "{}; the server asks to wait {} s", error.text(),
                     error.retry_after.count());
  }
  std::chrono::milliseconds time = patience_.first_wait * (1 << std::min(failures_ - 1, 6));
  time = std::clamp<std::chrono::milliseconds>(time, error.retry_after, patience_.longest_wait);
  log::info("{}; trying again in {:.1f} s", error.text(),
            std::chrono::duration<double>(time).count());
  wait_for(time, stop_);
}

}  // namespace palimpsest::hub
