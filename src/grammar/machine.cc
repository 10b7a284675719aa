#include "grammar/machine.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace palimpsest::grammar {
namespace {

using EdgeKind = Automaton::EdgeKind;

std::uint64_t mix(std::uint64_t x) {  // the finalizer of SplitMix64
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::uint64_t pair_of(std::uint32_t a, std::uint32_t b) {
  return std::uint64_t{a} << 32 | b;
}

}  // namespace

void StampSet::clear() {
  size_ = 0;
  if (++stamp_ == 0) {
    std::fill(stamps_.begin(), stamps_.end(), 0);
    stamp_ = 1;
  }
}

bool StampSet::insert(std::uint64_t key) {
  const std::size_t last = keys_.size() - 1;
  for (std::size_t i = mix(key) & last;; i = (i + 1) & last) {
    if (stamps_[i] != stamp_) {
      stamps_[i] = stamp_;
      keys_[i] = key;
      if (2 * ++size_ > keys_.size()) grow();
      return true;
    }
    if (keys_[i] == key) return false;
  }
}

void StampSet::grow() {
  StampSet larger;
  larger.keys_.resize(2 * keys_.size());
  larger.stamps_.resize(2 * keys_.size());
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (stamps_[i] == stamp_) larger.insert(keys_[i]);
  }
  *this = std::move(larger);
}

Machine::Machine(Automaton automaton, std::shared_ptr<const TokenTries> tries,
                 const Tokenizer& tokenizer)
    : automaton_(std::move(automaton)),
      tries_(std::move(tries)),
      tokenizer_(tokenizer),
      group_classes_(64) {
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<std::uint8_t>(b);
    group_classes_[static_cast<std::size_t>(std::countr_zero(TokenTrie::group_of(byte)))].set(
        automaton_.class_of[byte]);
  }
  path_.resize(std::max(tries_->common.longest(), tries_->long_ones.longest()) + 1);
  reset();
}

void Machine::reset() {
  ++epoch_;
  frames_.assign(1, {0, 0});
  frame_ids_.clear();
  states_.clear();
  state_ids_.clear();
  resumed_.clear();
  bytes_ = 0;
  begin_state();
  add(automaton_.rules[automaton_.root].start, 0);
  start_ = end_state();
}

void Machine::begin() {
  work_ = 0;
  most_work_ = kMostWork;
  if (bytes_ > kMostBytes) reset();
}

bool Machine::begin_quick() {
  work_ = 0;
  most_work_ = kFewSteps;
  return bytes_ <= kMostBytes;
}

void Machine::spend(std::uint64_t steps) {
  work_ += steps;
  if (work_ > most_work_) {
    if (most_work_ < kMostWork) throw TooSlow();
    throw make_error(ErrorCode::kInvalidRequest,
                     "the constraint is too ambiguous: a token took more than {} steps", kMostWork);
  }
}

Machine::StackId Machine::push(NodeId to, StackId below) {
  const auto [it, is_new] =
      frame_ids_.emplace(pair_of(to, below), static_cast<StackId>(frames_.size()));
  if (is_new) {
    frames_.push_back({to, below});
    bytes_ += 64;
  }
  return it->second;
}

void Machine::begin_state() {
  todo_.clear();
  seen_.clear();
  made_.clear();
  made_ends_ = false;
}

/// Adds a thread to the state that is being made, with all that it can come to without reading.
void Machine::add(NodeId node, StackId stack) {
  todo_.push_back({node, stack});
  while (!todo_.empty()) {
    const Thread t = todo_.back();
    todo_.pop_back();
    if (!seen_.insert(pair_of(t.node, t.stack))) continue;
    const Automaton::Node& n = automaton_.nodes[t.node];
    if (n.ends) {
      if (t.stack == 0)
        made_ends_ = true;
      else
        todo_.push_back({frames_[t.stack].to, frames_[t.stack].below});
    }
    bool reads = false;
    for (const Automaton::Edge& edge : automaton_.edges_of(n)) {
      if (edge.kind == EdgeKind::kEmpty) {
        todo_.push_back({edge.to, t.stack});
      } else if (edge.kind == EdgeKind::kCall) {
        const StackId inside =
            automaton_.nodes[edge.to].only_ends ? t.stack : push(edge.to, t.stack);
        todo_.push_back({automaton_.rules[edge.value].start, inside});
      } else {
        reads = true;
      }
    }
    spend(1 + (n.last - n.first));
    if (reads) made_.push_back(t);
    if (seen_.size() > 8 * kMostThreads || made_.size() > kMostThreads) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "the constraint is too ambiguous: more than {} ways to read the answer",
                       kMostThreads);
    }
  }
}

Machine::StateId Machine::end_state(bool keep_ends) {
  std::sort(made_.begin(), made_.end());
  made_.erase(std::unique(made_.begin(), made_.end()), made_.end());
  const bool ends = made_ends_ && keep_ends;
  if (made_.empty() && !ends) return kDead;
  std::uint64_t hash = ends;
  for (const Thread& t : made_) hash = mix(hash ^ pair_of(t.node, t.stack)) + 1;
  const auto [first, last] = state_ids_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const State& state = states_[it->second];
    if (state.ends == ends && state.threads == made_) return it->second;
  }
  const auto id = static_cast<StateId>(states_.size());
  State& state = states_.emplace_back();
  state.threads = made_;
  state.ends = ends;
  state_ids_.emplace(hash, id);
  bytes_ += 192 + made_.size() * sizeof(Thread);
  return id;
}

Machine::StateId Machine::make_next(StateId state, std::uint8_t byte_class) {
  begin_state();
  const std::size_t count = states_[state].threads.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Thread t = states_[state].threads[i];
    const Automaton::Node& n = automaton_.nodes[t.node];
    spend(n.last - n.first);
    for (const Automaton::Edge& edge : automaton_.edges_of(n)) {
      if (edge.kind == EdgeKind::kBytes && automaton_.set_classes[edge.value][byte_class])
        add(edge.to, t.stack);
    }
  }
  const StateId to = end_state();
  std::vector<StateId>& known = states_[state].next;
  if (known.empty()) {
    known.assign(automaton_.class_byte.size(), kUnknown);
    bytes_ += known.size() * sizeof(StateId);
  }
  return known[byte_class] = to;
}

Machine::StateId Machine::advance(StateId state, std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size() && state != kDead; ++i)
    state = next(state, static_cast<std::uint8_t>(bytes[i]));
  return state;
}

Machine::StateId Machine::advance(StateId state, TokenId id) {
  const bool ordinary = !tokenizer_.is_control(id);
  StateId by_bytes = kDead;
  if (ordinary) {
    const std::string_view bytes = tokenizer_.bytes(id);
    if (!bytes.empty()) by_bytes = advance(state, bytes);
  }
  begin_state();
  const std::size_t count = states_[state].threads.size();
  bool whole = false;
  for (std::size_t i = 0; i < count; ++i) {
    const Thread t = states_[state].threads[i];
    for (const Automaton::Edge& edge : automaton_.edges_of(automaton_.nodes[t.node])) {
      const bool fits =
          edge.kind == EdgeKind::kAnyText
              ? ordinary
              : edge.kind == EdgeKind::kToken && static_cast<TokenId>(edge.value) == id;
      if (!fits) continue;
      whole = true;
      add(edge.to, t.stack);
    }
  }
  if (!whole) return by_bytes;
  if (by_bytes != kDead) {
    for (std::size_t i = 0; i < states_[by_bytes].threads.size(); ++i) {
      const Thread t = states_[by_bytes].threads[i];
      add(t.node, t.stack);
    }
    made_ends_ = made_ends_ || states_[by_bytes].ends;
  }
  return end_state();
}

/// Groups of bytes of which each leads back to `state`: whole subtrees of the vocabulary need no
/// visit then. Found only for states that are visited often.
std::uint64_t Machine::loops(StateId state) {
  if (states_[state].visits >= kOften) return states_[state].loops;
  if (states_[state].visits + 1 < kOften) {
    ++states_[state].visits;
    return 0;
  }
  ByteSet back;
  for (std::size_t c = 0; c < automaton_.class_byte.size(); ++c)
    back[c] = next(state, automaton_.class_byte[c]) == state;
  std::uint64_t loops = 0;
  for (std::size_t g = 0; g < group_classes_.size(); ++g) {
    if ((group_classes_[g] & ~back).none()) loops |= std::uint64_t{1} << g;
  }
  states_[state].visits = kOften;
  return states_[state].loops = loops;
}

/// Follows the vocabulary below node `from` of the trie, where the automaton is in `state`. With
/// `exits`, these are nodes behind which the bottom is reached and texts may go on.
void Machine::walk(const TokenTrie& trie, StateId state, std::uint32_t from,
                   std::span<std::uint32_t> allowed, std::vector<std::uint32_t>* exits) {
  const auto allow = [&](std::span<const TokenId> ids) {
    for (const TokenId id : ids)
      allowed[static_cast<std::size_t>(id) / 32] |= std::uint32_t{1} << (id % 32);
  };
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  const std::uint32_t end = nodes[from].end;
  path_[nodes[from].depth] = state;
  constexpr std::uint64_t kOneStep = 8;  // nodes that cost as much as an edge of the automaton
  std::uint64_t visited = 0;
  for (std::uint32_t i = from + 1; i < end;) {
    const TokenTrie::Node& node = nodes[i];
    if (++visited % 1024 == 0) spend(1024 / kOneStep);
    const StateId to = next(path_[node.depth - 1u], node.byte);
    if (to == kDead) {
      i = node.end;
      continue;
    }
    const bool leaf = node.end == i + 1;
    if (!leaf && (trie.groups_below(i) & ~loops(to)) == 0) {  // all of it comes back here
      if (states_[to].ends && exits)
        for (std::uint32_t j = i; j < node.end; ++j)
          if (nodes[j].end > j + 1) exits->push_back(j);
      allow(trie.below(i));
      i = node.end;
      continue;
    }
    allow(trie.ending_at(i));
    if (states_[to].ends && exits && !leaf) exits->push_back(i);
    path_[node.depth] = to;
    ++i;
  }
  spend(visited % 1024 / kOneStep);
}

/// The threads of a state by what stands around the word that each is in.
const std::vector<Machine::Group>& Machine::groups(StateId state) {
  if (states_[state].grouped) return states_[state].groups;
  const auto in_word = [&](NodeId node) {
    return automaton_.rules[automaton_.nodes[node].rule].word;
  };
  std::vector<std::pair<StackId, Thread>> threads;  // around, thread in its word
  for (std::size_t i = 0; i < states_[state].threads.size(); ++i) {
    const Thread t = states_[state].threads[i];
    StackId around = t.stack;
    std::vector<NodeId> inside;
    if (in_word(t.node)) {
      for (; around != 0 && in_word(frames_[around].to); around = frames_[around].below)
        inside.push_back(automaton_.nodes[frames_[around].to].alike);
    }
    StackId stack = 0;
    for (std::size_t k = inside.size(); k-- > 0;) stack = push(inside[k], stack);
    threads.emplace_back(around, Thread{automaton_.nodes[t.node].alike, stack});
    spend(1 + inside.size());
  }
  std::stable_sort(threads.begin(), threads.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Group> groups;
  for (std::size_t i = 0; i < threads.size();) {
    const StackId around = threads[i].first;
    begin_state();
    for (; i < threads.size() && threads[i].first == around; ++i)
      made_.push_back(threads[i].second);
    groups.push_back({end_state(false), around});
  }
  states_[state].groups = std::move(groups);
  states_[state].grouped = true;
  return states_[state].groups;
}

const Machine::WordMask& Machine::word_mask(StateId state) {
  if (states_[state].mask) return *states_[state].mask;
  auto mask = std::make_unique<WordMask>();
  word_bits_.assign(tries_->common.words(), 0);
  walk(tries_->common, state, 0, word_bits_, &mask->exits);
  std::size_t count = 0;
  for (const std::uint32_t word : word_bits_)
    count += static_cast<std::size_t>(std::popcount(word));
  mask->dense = count > word_bits_.size();
  if (mask->dense) {
    mask->bits = word_bits_;
  } else {
    for (std::size_t w = 0; w < word_bits_.size(); ++w) {
      for (std::uint32_t bits = word_bits_[w]; bits != 0; bits &= bits - 1)
        mask->bits.push_back(static_cast<std::uint32_t>(32 * w) +
                             static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
  }
  bytes_ += 64 + 4 * (mask->bits.size() + mask->exits.size());
  states_[state].mask = std::move(mask);
  return *states_[state].mask;
}

/// The state in which the rule on top of `stack` has just ended.
Machine::StateId Machine::resume(StackId stack) {
  if (const auto it = resumed_.find(stack); it != resumed_.end()) return it->second;
  begin_state();
  add(frames_[stack].to, frames_[stack].below);
  const StateId state = end_state();
  resumed_.emplace(stack, state);
  return state;
}

/// What may be read next in `state`, to be warmed later.
void Machine::follow_to_warm(StateId state) {
  std::vector<TokenId> tokens;
  for (const Thread& t : states_[state].threads) {
    for (const Automaton::Edge& edge : automaton_.edges_of(automaton_.nodes[t.node])) {
      if (edge.kind == EdgeKind::kToken) tokens.push_back(static_cast<TokenId>(edge.value));
    }
  }
  const auto found = [&](StateId to) {
    if (to != kDead && to_warm_.size() < kWarmStates && found_to_warm_.insert(to).second)
      to_warm_.push_back(to);
  };
  for (const TokenId id : tokens) found(advance(state, id));
  for (const std::uint8_t byte : automaton_.class_byte) found(next(state, byte));
}

bool Machine::warm() {
  begin();
  if (warm_epoch_ != epoch_) {
    warm_epoch_ = epoch_;
    to_warm_ = {start_};
    found_to_warm_ = {start_};
    warmed_ = 0;
  }
  try {
    while (warmed_ < to_warm_.size() && warm_work_ + work_ < kWarmWork) {
      const StateId state = to_warm_[warmed_++];
      const std::vector<Group> all = groups(state);  // a copy: states move while others are made
      for (const Group& group : all) word_mask(group.word);
      follow_to_warm(state);
      if (work_ < kFewSteps) continue;
      warm_work_ += work_;
      return true;
    }
  } catch (const Error&) {
    // Too ambiguous: whoever comes there hears of it.
  }
  return false;
}

void Machine::mask(StateId state, std::span<std::uint32_t> allowed) {
  for (const Thread& t : states_[state].threads) {
    for (const Automaton::Edge& edge : automaton_.edges_of(automaton_.nodes[t.node])) {
      if (edge.kind == EdgeKind::kToken) {
        if (edge.value / 32 < allowed.size())
          allowed[edge.value / 32] |= std::uint32_t{1} << (edge.value % 32);
      } else if (edge.kind == EdgeKind::kAnyText) {
        for (const TokenTrie* trie : {&tries_->common, &tries_->long_ones})
          for (std::size_t w = 0; w < trie->words(); ++w) allowed[w] |= trie->all()[w];
      }
    }
  }
  walk(tries_->long_ones, state, 0, allowed, nullptr);
  const std::vector<Group> all = groups(state);  // a copy: states move while others are made
  for (const Group& group : all) {
    const WordMask& mask = word_mask(group.word);
    if (mask.dense) {
      for (std::size_t w = 0; w < mask.bits.size(); ++w) allowed[w] |= mask.bits[w];
    } else {
      for (const std::uint32_t id : mask.bits) allowed[id / 32] |= std::uint32_t{1} << (id % 32);
    }
    if (group.around == 0 || mask.exits.empty()) continue;
    const StateId behind = resume(group.around);
    if (behind == kDead) continue;
    for (const std::uint32_t exit : mask.exits)
      walk(tries_->common, behind, exit, allowed, nullptr);
  }
}

}  // namespace palimpsest::grammar
