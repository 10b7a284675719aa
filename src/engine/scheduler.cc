#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/check.h"

namespace palimpsest {

void UserShares::enter(std::uint64_t user) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [id, other] : users_) least = std::min(least, other.served);
  const auto [at, is_new] = users_.try_emplace(user);
  if (is_new && std::isfinite(least)) at->second.served = least;
  ++at->second.present;
}

void UserShares::leave(std::uint64_t user) {
  const auto at = users_.find(user);
  PALIMPSEST_CHECK(at != users_.end(), "who leaves has entered");
  if (--at->second.present == 0) users_.erase(at);
}

void UserShares::serve(std::uint64_t user, std::int64_t rows) {
  users_.at(user).served += static_cast<double>(rows);
}

double UserShares::served(std::uint64_t user) const {
  const auto at = users_.find(user);
  return at == users_.end() ? 0 : at->second.served;
}

std::optional<std::size_t> next_to_begin(std::span<const Lane> waiting) {
  if (waiting.empty()) return std::nullopt;
  const auto key = [](const Lane& l) {
    return std::tuple(-l.priority, !l.suspended, l.suspended ? 0 : l.user_served, l.order);
  };
  const auto best = std::min_element(waiting.begin(), waiting.end(),
                                     [&](const Lane& a, const Lane& b) { return key(a) < key(b); });
  return static_cast<std::size_t>(best - waiting.begin());
}

std::size_t first_to_step_back(std::span<const Lane> running) {
  PALIMPSEST_CHECK(!running.empty(), "somebody has to step back");
  const auto worst =
      std::max_element(running.begin(), running.end(), [](const Lane& a, const Lane& b) {
        return std::tuple(-a.priority, a.order) < std::tuple(-b.priority, b.order);
      });
  return static_cast<std::size_t>(worst - running.begin());
}

std::vector<std::int64_t> share_rows(std::span<const Lane> lanes, std::int64_t rows,
                                     std::int64_t piece, std::int64_t slack) {
  std::vector<std::int64_t> shares(lanes.size(), 0);
  std::map<std::uint64_t, double> users;
  for (const Lane& lane : lanes) users[lane.user] = lane.user_served;
  std::vector<double> served;
  for (const Lane& lane : lanes) served.push_back(lane.served);
  const auto key = [&](std::size_t i) {
    return std::tuple(-lanes[i].priority, users[lanes[i].user], served[i], lanes[i].order);
  };
  for (bool first = true; first || rows > 0; first = false) {
    std::optional<std::size_t> next;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      const bool wants = shares[i] < lanes[i].remaining;
      if (wants && (!next || key(i) < key(*next))) next = i;
    }
    if (!next) break;
    const std::int64_t left = lanes[*next].remaining - shares[*next];
    const std::int64_t more = left <= piece + slack ? left : piece;
    // What is left of a budget goes to nobody: a part of a piece would be computed in other forms.
    if (!first && more > rows) break;
    shares[*next] += more;
    rows -= more;
    served[*next] += static_cast<double>(more);
    users[lanes[*next].user] += static_cast<double>(more);
  }
  return shares;
}

void PassBudget::observe(std::int64_t rows, std::int64_t prompt_rows, double seconds) {
  if (prompt_rows == 0 || rows <= 0 || !(seconds > 0)) return;
  const double now = seconds / static_cast<double>(rows);
  // A pass that was slow by accident should not starve prompts for long.
  constexpr double kWeight = 0.3;
  seconds_per_row_ = seconds_per_row_ == 0 ? now : (1 - kWeight) * seconds_per_row_ + kWeight * now;
}

std::int64_t PassBudget::rows_for(double seconds, std::int64_t least, std::int64_t most) const {
  if (least >= most) return most;
  if (seconds_per_row_ == 0) return least;  // nothing is known: begin small
  const double rows = seconds / seconds_per_row_;
  return std::clamp(rows >= static_cast<double>(most) ? most : static_cast<std::int64_t>(rows),
                    least, most);
}

}  // namespace palimpsest
