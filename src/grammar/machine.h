#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/token_trie.h"

namespace palimpsest::grammar {

/// A set of numbers that is emptied at no cost.
class StampSet {
 public:
  void clear();
  /// False if `key` was there.
  bool insert(std::uint64_t key);
  std::size_t size() const { return size_; }

 private:
  void grow();
  std::vector<std::uint64_t> keys_ = std::vector<std::uint64_t>(256);
  std::vector<std::uint32_t> stamps_ = std::vector<std::uint32_t>(256);
  std::uint32_t stamp_ = 1;
  std::size_t size_ = 0;
};

/// Follows an automaton through texts and says which tokens may come next.
///
/// A thread is a node with a stack of nodes to return to. A state is a set of threads: all ways in
/// which the text so far can be read. Stacks, states and the steps between them are kept once made,
/// so that a token costs a look-up a byte; what is kept is a cache and changes no answer.
///
/// A mask is made of the masks of words: those tokens that stay inside of the word that is being
/// read do not depend on what stands around it and are kept; where tokens leave the word, the tree
/// of the vocabulary is followed from there with the whole stack. Not thread-safe.
class Machine {
 public:
  using StateId = std::uint32_t;
  static constexpr StateId kDead = 0xffffffff;
  /// Ways to read a text at once, and steps of one call; beyond it Error{kInvalidRequest}.
  static constexpr std::size_t kMostThreads = 2'000;
  static constexpr std::uint64_t kMostWork = 4'000'000;
  static constexpr std::size_t kMostBytes = 16 << 20;  ///< kept, about
  /// Steps that take less than a millisecond (bench_grammar).
  static constexpr std::uint64_t kFewSteps = 2'000;
  /// What warm() does at most.
  static constexpr std::uint64_t kWarmWork = 1'000'000;
  static constexpr std::size_t kWarmStates = 4'096;

  Machine(Automaton automaton, std::shared_ptr<const TokenTries> tries, const Tokenizer& tokenizer);

  /// To be called before each use: allows kMostWork steps until the next call, and forgets all
  /// states when they take too much room. States are valid while epoch() stays what it is.
  void begin();
  /// The same for a caller that cannot wait: allows kFewSteps, beyond which TooSlow is thrown, and
  /// forgets nothing: false where that is due.
  bool begin_quick();
  struct TooSlow {};
  /// Allows kMostWork steps again: for a caller that reads many tokens at once.
  void begin_token() { work_ = 0; }
  std::uint64_t epoch() const { return epoch_; }

  StateId start() const { return start_; }
  /// The state after an ordinary token's bytes or a control token; kDead if it cannot come there.
  StateId advance(StateId state, TokenId id);
  /// The state after these bytes; kDead if they cannot come there.
  StateId advance(StateId state, std::string_view bytes);
  /// Whether the text may end here.
  bool may_end(StateId state) const { return states_[state].ends; }
  /// Sets the bits of all tokens that may come next.
  void mask(StateId state, std::span<std::uint32_t> allowed);

  /// Makes masks of words that are not made yet, in states near the start before those further
  /// away: a few milliseconds of them a call. False when all are made, or as many as may be.
  bool warm();

  std::size_t states() const { return states_.size(); }

 private:
  using StackId = std::uint32_t;  ///< 0: the bottom
  struct Thread {
    NodeId node;
    StackId stack;
    auto operator<=>(const Thread&) const = default;
  };
  struct Frame {
    NodeId to;
    StackId below;
  };
  /// Tokens that stay in a word, and nodes of the trie behind which texts leave it.
  struct WordMask {
    bool dense = false;
    std::vector<std::uint32_t> bits;  ///< words of 32 bits, or ids
    std::vector<std::uint32_t> exits;
  };
  struct Group {
    StateId word;
    StackId around;
  };
  struct State {
    std::vector<Thread> threads;  ///< ascending; each reads something
    bool ends = false;            ///< the bottom was reached
    bool grouped = false;
    std::uint16_t visits = 0;
    std::uint64_t loops = 0;    ///< groups of bytes that lead back here, once visits is large
    std::vector<StateId> next;  ///< [classes], once one is known
    std::vector<Group> groups;
    std::unique_ptr<WordMask> mask;
  };
  static constexpr StateId kUnknown = 0xfffffffe;
  static constexpr std::uint16_t kOften = 16;

  void reset();
  void spend(std::uint64_t steps);
  StackId push(NodeId to, StackId below);
  void add(NodeId node, StackId stack);
  void begin_state();
  StateId end_state(bool keep_ends = true);
  StateId next(StateId state, std::uint8_t byte) {
    const std::uint8_t c = automaton_.class_of[byte];
    const std::vector<StateId>& known = states_[state].next;
    return !known.empty() && known[c] != kUnknown ? known[c] : make_next(state, c);
  }
  StateId make_next(StateId state, std::uint8_t byte_class);
  std::uint64_t loops(StateId state);
  const std::vector<Group>& groups(StateId state);
  StateId resume(StackId stack);
  const WordMask& word_mask(StateId state);
  void walk(const TokenTrie& trie, StateId state, std::uint32_t from,
            std::span<std::uint32_t> allowed, std::vector<std::uint32_t>* exits);
  void follow_to_warm(StateId state);

  Automaton automaton_;
  std::shared_ptr<const TokenTries> tries_;
  Tokenizer tokenizer_;
  std::vector<ByteSet> group_classes_;  ///< [groups of bytes]: their classes
  std::vector<Frame> frames_;
  std::unordered_map<std::uint64_t, StackId> frame_ids_;
  std::vector<State> states_;
  std::unordered_multimap<std::uint64_t, StateId> state_ids_;
  std::unordered_map<StackId, StateId> resumed_;
  StateId start_ = 0;
  std::uint64_t epoch_ = 0, work_ = 0, most_work_ = kMostWork;
  std::size_t bytes_ = 0;
  // scratch
  StampSet seen_;
  std::vector<Thread> todo_, made_;
  bool made_ends_ = false;
  std::vector<StateId> path_;
  std::vector<std::uint32_t> word_bits_;
  // of warm()
  std::vector<StateId> to_warm_;  ///< in the order in which they were found
  std::unordered_set<StateId> found_to_warm_;
  std::size_t warmed_ = 0;  ///< of them
  std::uint64_t warm_epoch_ = 0, warm_work_ = 0;
};

}  // namespace palimpsest::grammar
