#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

// Who goes next: pure policy, without threads and without a clock.

namespace palimpsest {

/// Rows that users were served, for sharing by users: start-time fair queueing. Who comes begins
/// with the least that anybody present was served, so neither absence nor patience earns credit.
class UserShares {
 public:
  void enter(std::uint64_t user);  ///< one more sequence of this user is here
  void leave(std::uint64_t user);
  void serve(std::uint64_t user, std::int64_t rows);
  double served(std::uint64_t user) const;
  std::size_t users() const { return users_.size(); }

 private:
  struct User {
    std::int64_t present = 0;
    double served = 0;
  };
  std::map<std::uint64_t, User> users_;
};

/// How a sequence is seen by the policy.
struct Lane {
  std::int64_t priority = 0;
  std::uint64_t user = 0;
  double user_served = 0;      ///< UserShares::served
  std::uint64_t order = 0;     ///< of arrival
  bool suspended = false;      ///< had begun
  double served = 0;           ///< rows of its prompt that it was given, counted as UserShares do
  std::int64_t remaining = 0;  ///< rows of its prompt still to compute
};

/// Which of those that wait begins next: the highest priority; there, those that had begun before;
/// then the user who was served least; then who came first. Nothing when nobody waits.
std::optional<std::size_t> next_to_begin(std::span<const Lane> waiting);

/// Which of those that run steps back when there is no room: of the lowest priority the one that
/// came last. `running` is not empty.
std::size_t first_to_step_back(std::span<const Lane> running);

/// Whether `a` may take the place of `b`, which runs.
inline bool outranks(const Lane& a, const Lane& b) {
  return a.priority > b.priority;
}

/// How many rows of its prompt each lane may compute in a pass with room for `rows`: all that the
/// highest priority can take, then the next, ...; within a priority by users, and within a user by
/// sequences, so that what everybody was served grows alike. Shares are pieces of `piece` rows
/// (what is left of a prompt, if that is less, or at most `slack` more). 0 where a lane has to
/// wait. The first lane gets a piece even where `rows` is less.
std::vector<std::int64_t> share_rows(std::span<const Lane> lanes, std::int64_t rows,
                                     std::int64_t piece, std::int64_t slack);

/// How many rows a pass may have in order to last a given time, learnt from passes that were.
///
/// A pass of r rows takes about a + b r seconds; with s = t / r of a pass, target / s rows are
/// tried next. The fixed point is t(r) = target, and the error shrinks by a / target with each
/// pass. So neither a nor b needs to be known, and both may drift with the length of the lists.
class PassBudget {
 public:
  /// `rows` computed in a pass took `seconds`.
  void observe(std::int64_t rows, std::int64_t prompt_rows, double seconds);
  /// Rows of a pass that should last `seconds`, between `least` and `most`.
  std::int64_t rows_for(double seconds, std::int64_t least, std::int64_t most) const;

 private:
  double seconds_per_row_ = 0;  ///< of passes with prompts; 0: none yet
};

}  // namespace palimpsest
