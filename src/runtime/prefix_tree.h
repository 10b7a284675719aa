#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/snapshot_policy.h"
#include "runtime/spilled_state.h"
#include "state/state_pool.h"

namespace palimpsest {

/// Why a snapshot is where it is.
enum class MarkKind : std::uint8_t {
  kGrid,    ///< one of the log-many inside a sequence
  kBorder,  ///< a message begins near here, or another sequence has left here
  kEnd,     ///< a prompt or an answer ended here
};

/// A place in the tree that can be gone back to.
struct Mark {
  std::int64_t position = 0;  ///< tokens before it
  MarkKind kind = MarkKind::kGrid;
  bool canonical = false;  ///< reached by a prefill from the start whose passes ended on the grid:
                           ///< see SequenceCache
  StateSnapshot state;     ///< undefined while it is on disk only
  SpilledState spilled;    ///< empty while it is in memory only
  std::int64_t last_used = 0;
  std::int64_t hits = 0;
};

/// All sequences that were computed, as a radix tree over token ids: an edge holds a span of
/// tokens, sequences that begin alike share nodes, and marks hang at positions along the edges.
/// Every leaf ends at a mark, so the tree knows no token that cannot be reused.
///
/// Looking up n tokens compares n ids in order and visits one node for each branch. Not
/// thread-safe.
class PrefixTree {
 public:
  PrefixTree();
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  struct Match {
    std::int64_t length = 0;      ///< leading tokens that some stored sequence shares
    std::int64_t last_split = 0;  ///< where the last edge begins: what lies beyond belongs to this
                                  ///< path and its continuations
    std::vector<Mark*> marks;  ///< those at or before `length` on this path, ascending; each valid
                               ///< until it is erased
  };
  Match match(std::span<const std::int32_t> tokens) const;

  /// The mark at the end of `tokens` (at least one), made if there is none. Keeps its address until
  /// it is erased.
  Mark& at(std::span<const std::int32_t> tokens);
  /// Removes a mark of this tree, and the tokens that led to it alone.
  void erase(Mark& mark);

  /// Calls visit(mark, value) for every mark; value.bytes and value.age are left for the caller.
  template <class F>
  void for_each(F visit) const;

  std::int64_t marks() const { return static_cast<std::int64_t>(count_); }
  std::int64_t nodes() const;
  std::int64_t tokens() const;  ///< held by all edges
  /// The tokens that lead to a mark.
  std::vector<std::int32_t> tokens_of(const Mark& mark) const;

 private:
  struct Node;
  struct Entry;
  struct Walk;
  Walk walk(std::span<const std::int32_t> tokens) const;
  static Node* split(Node* node, std::int64_t length);
  static void merge_with_only_child(Node* node);
  void prune(Node* node);
  struct Visited {
    Mark* mark;
    SnapshotValue value;
  };
  static std::int64_t visit(const Node& node, std::int64_t before, std::vector<Visited>& out);
  std::vector<Visited> visited() const;

  std::unique_ptr<Node> root_;
  std::int64_t count_ = 0;
};

template <class F>
void PrefixTree::for_each(F visit) const {
  for (Visited& v : visited()) visit(*v.mark, v.value);
}

}  // namespace palimpsest
