#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Where snapshots are placed and which go first: pure functions, without a clock.

namespace palimpsest {

/// Snapshots inside a prompt lie at multiples of this, counted from the start of the sequence:
/// chunks of the recurrence, key blocks and list blocks begin there, so that a pass which ends
/// there moves no border of theirs.
inline constexpr std::int64_t kSnapshotGrid = 64;

/// Fewer rows than this at the end of a prompt would be computed in the forms made for single
/// tokens, whose sums run in another order.
inline constexpr std::int64_t kFewestRows = 5;

/// Most tokens that are computed again after an edit which `following` tokens of the stored
/// sequence follow: spacing * max(64, following / 4).
std::int64_t replay_bound(std::int64_t following, std::int64_t spacing);

/// Positions, ascending, multiples of kSnapshotGrid inside (0, length), such that an edit anywhere
/// finds a snapshot (or the start) within replay_bound() before it. As few as that takes: 27 for
/// 32,768 tokens, 43 for a million.
std::vector<std::int64_t> snapshot_positions(std::int64_t length, std::int64_t spacing);

/// The smallest power of two for which snapshot_positions(length, spacing) has at most `most`
/// entries.
std::int64_t spacing_for(std::int64_t length, std::int64_t most);

/// Indices of `positions` (ascending) that may go without breaking replay_bound() for a sequence
/// that has `length` tokens and grows. The last stays.
std::vector<std::size_t> superfluous(const std::vector<std::int64_t>& positions,
                                     std::int64_t length, std::int64_t spacing);

/// What speaks for keeping a snapshot.
struct SnapshotValue {
  std::int64_t gap =
      0;  ///< tokens that must be computed again without it: back to the snapshot before it
  std::int64_t distance = 0;  ///< from it to the nearest end of a sequence that begins with it
  std::int64_t age = 0;       ///< requests since it was last used
  std::int64_t hits = 0;      ///< requests that used it
  std::int64_t bytes = 1;     ///< that go back when it goes
};

/// Work saved, times how likely it is wanted, per byte: gap (1 + hits) / ((64 + distance) (1 + age)
/// bytes). Edits are the rarer the more text follows them; with 1 / distance for their likelihood
/// the spacing that snapshot_positions() makes, gaps in proportion to the distance, is the one in
/// which all are worth the same, so scarcity thins it evenly.
double usefulness(const SnapshotValue& value);

/// A snapshot on the way of a sequence that could go into its file.
struct SavedCandidate {
  std::int64_t position = 0;
  std::int64_t age = 0, hits = 0;  ///< as in SnapshotValue
  std::int64_t bytes = 0;          ///< that it would take in the file
};

/// Indices of the candidates (positions ascending) of a sequence of `length` tokens that stay
/// within `bytes` together: the least useful one goes as long as they do not.
std::vector<std::size_t> most_useful(std::span<const SavedCandidate> candidates,
                                     std::int64_t length, std::int64_t bytes);

}  // namespace palimpsest
