#include "grammar/pattern_automaton.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/check.h"
#include "base/error.h"

namespace palimpsest::grammar {
namespace {

constexpr std::size_t kMostNodes = 20'000, kMostStates = 2'000, kMostPairs = 20'000;
constexpr std::size_t kMostSets = 256, kMostRanges = 4'096;

[[noreturn]] void too_large(const char* what, std::size_t most) {
  throw make_error(ErrorCode::kInvalidRequest, "more than {} {} where two conditions on one text are put together", most, what);
}

void spend(std::size_t& work, std::size_t more) {
  work += more;
  if (work > kMostPatternWork) too_large("steps", kMostPatternWork);
}

/// As Thompson builds them, repetitions counted out.
class Nodes {
 public:
  struct Node {
    std::vector<std::uint32_t> empty;                            ///< steps without a character
    std::vector<std::pair<std::size_t, std::uint32_t>> reading;  ///< set, to
  };

  Nodes(const Grammar& pattern, ExprId root, const std::vector<CharSet>& leaves) : pattern_(pattern), leaves_(leaves) {
    add();
    add();
    todo_.push_back({root, 0, 1});
    while (!todo_.empty()) {
      const Piece piece = todo_.back();
      todo_.pop_back();
      expand(piece);
    }
  }

  /// `nodes` and all that they come to without a character, ascending.
  std::vector<std::uint32_t> closed(const std::vector<std::uint32_t>& nodes, std::size_t& work) const {
    std::set<std::uint32_t> found(nodes.begin(), nodes.end());
    for (std::vector<std::uint32_t> todo = nodes; !todo.empty();) {
      const Node& node = all[todo.back()];
      todo.pop_back();
      spend(work, 1 + node.empty.size());
      for (const std::uint32_t to : node.empty)
        if (found.insert(to).second) todo.push_back(to);
    }
    return {found.begin(), found.end()};
  }

  std::vector<Node> all;  ///< 0 is the start, 1 the end
  std::vector<CharSet> sets;

 private:
  struct Piece {
    ExprId expr;
    std::uint32_t from, to;
  };

  std::uint32_t add() {
    if (all.size() >= kMostNodes) too_large("places", kMostNodes);
    all.emplace_back();
    return static_cast<std::uint32_t>(all.size() - 1);
  }
  void read(std::uint32_t from, std::uint32_t to, const CharSet& set) {
    const auto at = std::find(sets.begin(), sets.end(), set);
    all[from].reading.emplace_back(at - sets.begin(), to);
    if (at != sets.end()) return;
    if (sets.size() >= kMostSets) too_large("classes of characters", kMostSets);
    sets.push_back(set);
  }

  void expand(const Piece& piece) {
    const Grammar::Expr& expr = pattern_.exprs()[piece.expr];
    switch (expr.kind) {
      case Grammar::Kind::kToken:
        return read(piece.from, piece.to, leaves_[expr.value]);
      case Grammar::Kind::kBytes: {
        CharSet set;
        for (char32_t b = 0; b < 256; ++b)
          if (pattern_.sets()[expr.value][b]) set.add(b, b);
        return read(piece.from, piece.to, set);
      }
      case Grammar::Kind::kChoice:
        for (const ExprId part : expr.parts) todo_.push_back({part, piece.from, piece.to});
        return;
      case Grammar::Kind::kLiteral:
      case Grammar::Kind::kSequence: {
        const bool text = expr.kind == Grammar::Kind::kLiteral;
        std::uint32_t at = piece.from;
        for (std::size_t i = 0; i < (text ? expr.text.size() : expr.parts.size()); ++i) {
          const std::uint32_t next = add();
          if (text) read(at, next, CharSet::of(static_cast<unsigned char>(expr.text[i])));
          else todo_.push_back({expr.parts[i], at, next});
          at = next;
        }
        all[at].empty.push_back(piece.to);
        return;
      }
      case Grammar::Kind::kRepeat: {
        std::uint32_t at = add();
        all[piece.from].empty.push_back(at);
        for (std::int64_t i = 0; i < (expr.max == kNoEnd ? expr.min : expr.max); ++i) {
          if (i >= expr.min) all[at].empty.push_back(piece.to);
          const std::uint32_t next = add();
          todo_.push_back({expr.parts[0], at, next});
          at = next;
        }
        if (expr.max == kNoEnd) todo_.push_back({expr.parts[0], at, at});
        all[at].empty.push_back(piece.to);
        return;
      }
      default:
        PALIMPSEST_CHECK(false, "patterns call no rules");
    }
  }

  const Grammar& pattern_;
  const std::vector<CharSet>& leaves_;
  std::vector<Piece> todo_;
};

/// Characters that are in the same sets. [sets]: the atoms of each.
std::vector<std::vector<std::uint32_t>> split(const std::vector<CharSet>& sets, std::vector<CharSet>& atoms, std::size_t& work) {
  std::set<char32_t> borders;
  for (const CharSet& set : sets) {
    for (const CharSet::Range& range : set.ranges()) borders.insert({range.first, range.last + 1});
    if (borders.size() > 2 * kMostRanges) too_large("ranges of characters", kMostRanges);
  }
  for (char32_t c = '0'; c <= ':'; ++c) borders.insert(c);
  spend(work, borders.size() * sets.size() / 4);
  std::map<std::string, std::uint32_t> known;
  std::vector<std::vector<std::uint32_t>> of(sets.size());
  for (auto it = borders.begin(); it != borders.end() && std::next(it) != borders.end(); ++it) {
    std::string members;
    for (const CharSet& set : sets) members += set.contains(*it) ? '1' : '0';
    if (members.find('1') == members.npos) continue;
    const bool digit = *it >= '0' && *it <= '9';
    const auto [at, is_new] = known.emplace(members + (digit ? static_cast<char>(*it) : ' '), static_cast<std::uint32_t>(atoms.size()));
    if (is_new) {
      atoms.emplace_back();
      for (std::size_t s = 0; s < sets.size(); ++s)
        if (members[s] == '1') of[s].push_back(at->second);
    }
    atoms[at->second].add(*it, *std::next(it) - 1);
  }
  return of;
}

/// The longest text; kNoEnd where there is none that is.
std::int64_t longest(const PatternAutomaton& automaton) {
  std::vector<std::size_t> before(automaton.states.size());
  std::vector<std::int64_t> length(automaton.states.size());
  for (const auto& state : automaton.states)
    for (const auto& way : state.ways) ++before[way.to];
  std::vector<std::size_t> done;
  for (std::size_t s = 0; s < before.size(); ++s)
    if (before[s] == 0) done.push_back(s);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < done.size(); ++i) {
    for (const auto& way : automaton.states[done[i]].ways) {
      length[way.to] = std::max(length[way.to], length[done[i]] + 1);
      most = std::max(most, length[way.to]);
      if (--before[way.to] == 0) done.push_back(way.to);
    }
  }
  return done.size() == before.size() ? most : kNoEnd;
}

/// Sets `togo` of all states and takes the ways that lead nowhere.
void find_ends(std::vector<PatternAutomaton::State>& states) {
  std::vector<std::vector<std::size_t>> before(states.size());
  std::vector<std::size_t> todo;
  for (std::size_t s = 0; s < states.size(); ++s) {
    for (const auto& way : states[s].ways) before[way.to].push_back(s);
    if (!states[s].ends) continue;
    states[s].togo = 0;
    todo.push_back(s);
  }
  for (std::size_t i = 0; i < todo.size(); ++i) {
    for (const std::size_t s : before[todo[i]]) {
      if (states[s].togo >= 0) continue;
      states[s].togo = states[todo[i]].togo + 1;
      todo.push_back(s);
    }
  }
  for (auto& state : states) std::erase_if(state.ways, [&](const auto& way) { return states[way.to].togo < 0; });
}

}  // namespace

PatternAutomaton determine(const Grammar& pattern, ExprId root, const std::vector<CharSet>& sets, std::size_t& work) {
  const Nodes nodes(pattern, root, sets);
  spend(work, nodes.all.size());
  PatternAutomaton out;
  const auto atoms_of = split(nodes.sets, out.atoms, work);
  std::map<std::vector<std::uint32_t>, std::uint32_t> known;
  std::vector<std::vector<std::uint32_t>> members;
  const auto state_of = [&](const std::vector<std::uint32_t>& from) {
    const auto [it, is_new] = known.emplace(nodes.closed(from, work), static_cast<std::uint32_t>(members.size()));
    if (is_new) {
      if (members.size() >= kMostStates) too_large("states of a pattern", kMostStates);
      members.push_back(it->first);
      out.states.emplace_back();
      out.states.back().ends = std::binary_search(it->first.begin(), it->first.end(), 1u);
    }
    return it->second;
  };
  state_of({0});
  for (std::size_t s = 0; s < members.size(); ++s) {
    std::map<std::uint32_t, std::vector<std::uint32_t>> to;  // [atoms]
    for (const std::uint32_t node : members[s]) {
      for (const auto& [set, next] : nodes.all[node].reading) {
        spend(work, atoms_of[set].size());
        for (const std::uint32_t atom : atoms_of[set]) to[atom].push_back(next);
      }
    }
    for (const auto& [atom, next] : to) {
      const std::uint32_t state = state_of(next);
      out.states[s].ways.push_back({atom, state});
    }
  }
  find_ends(out.states);
  return out;
}

PatternProduct::PatternProduct(const PatternAutomaton& automaton, const Condition& condition, std::size_t& work) {
  std::map<std::pair<std::uint32_t, std::int64_t>, std::size_t> known;
  std::vector<std::pair<std::uint32_t, std::int64_t>> pairs;
  const auto state_of = [&](std::uint32_t state, std::int64_t of_condition) {
    const auto [it, is_new] = known.emplace(std::pair{state, of_condition}, pairs.size());
    if (is_new) {
      if (pairs.size() >= kMostPairs) too_large("states", kMostPairs);
      pairs.push_back(it->first);
    }
    return it->second;
  };
  state_of(0, condition.start);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto [state, of_condition] = pairs[i];
    const PatternAutomaton::State& from = automaton.states[state];
    spend(work, 4 + from.ways.size());
    State made;
    made.ends = from.ends && condition.ends(of_condition);
    std::map<std::size_t, CharSet> ways;
    for (const auto& [atom, to] : from.ways) {
      const CharSet& set = automaton.atoms[atom];
      const std::int64_t next = condition.step(of_condition, set.ranges().front().first, automaton.states[to].togo);
      if (next >= 0) ways[state_of(to, next)].add(set);
    }
    made.ways.assign(ways.begin(), ways.end());
    states_.push_back(std::move(made));
  }
}

ExprId PatternProduct::write(Grammar& grammar, Spelling spelling) const {
  std::vector<RuleId> rules;
  for (std::size_t i = 0; i < states_.size(); ++i) rules.push_back(grammar.add_rule("pattern", true));
  std::vector<std::pair<CharSet, ExprId>> characters_of;  // few are different
  const auto character = [&](const CharSet& set) {
    for (const auto& [known, expr] : characters_of)
      if (known == set) return expr;
    const ExprId expr = grammar.call(grammar.add_rule("character", characters(grammar, set, spelling), true));
    characters_of.emplace_back(set, expr);
    return expr;
  };
  for (std::size_t i = 0; i < states_.size(); ++i) {
    std::vector<ExprId> ways;
    if (states_[i].ends) ways.push_back(grammar.empty());
    for (const auto& [to, set] : states_[i].ways) ways.push_back(grammar.sequence({character(set), grammar.call(rules[to])}));
    grammar.define(rules[i], grammar.choice(std::move(ways)));
  }
  return grammar.call(rules[0]);
}

ExprId parse_sized_regex(Grammar& grammar, std::string_view pattern, RegexMatch match, Spelling spelling, std::int64_t least, std::int64_t most,
                         std::size_t& work) {
  if (least == 0 && most == kNoEnd) return parse_regex(grammar, pattern, match, spelling);
  Grammar scratch;
  std::vector<CharSet> sets;
  const ExprId root = parse_regex(scratch, pattern, match, [&](const CharSet& set) {
    sets.push_back(set);
    return scratch.token(static_cast<TokenId>(sets.size() - 1));
  });
  const Grammar::Expr& top = scratch.exprs()[root];
  if (top.kind == Grammar::Kind::kRepeat && scratch.exprs()[top.parts[0]].kind == Grammar::Kind::kToken) {  // ^[a-z]+$
    const std::int64_t from = std::max(least, top.min), to = top.max == kNoEnd ? most : most == kNoEnd ? top.max : std::min(most, top.max);
    if (to != kNoEnd && to < from) return grammar.nothing();
    return grammar.repeat(characters(grammar, sets[scratch.exprs()[top.parts[0]].value], spelling), from, to);
  }
  const PatternAutomaton automaton = determine(scratch, root, sets, work);
  const std::int64_t end = longest(automaton);
  if (automaton.states[0].togo >= least && (most == kNoEnd || (end != kNoEnd && end <= most))) return parse_regex(grammar, pattern, match, spelling);
  const auto step = [&](std::int64_t n, char32_t, std::int64_t togo) {
    if (most == kNoEnd) return std::min(n + 1, least);
    return n + 1 + togo > most ? -1 : n + 1;
  };
  return PatternProduct(automaton, {.step = step, .ends = [&](std::int64_t n) { return n >= least; }}, work).write(grammar, spelling);
}

}  // namespace palimpsest::grammar
