#include "grammar/automaton.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace palimpsest::grammar {
namespace {

using EdgeKind = Automaton::EdgeKind;

constexpr std::size_t kMostNodes = 400'000, kMostEdges = 800'000;

struct RawEdge {
  NodeId from, to;
  EdgeKind kind;
  std::uint32_t value;
};

/// The graphs of all rules as Thompson builds them, with empty edges, nothing cut off yet.
class Builder {
 public:
  Builder(const Grammar& grammar, std::size_t longest) : grammar_(grammar), longest_(longest) {
    for (const Grammar::Rule& rule : grammar.rules()) {
      PALIMPSEST_CHECK(rule.defined, "every rule is defined");
      add_rule(rule.body, rule.word);
    }
    for (std::size_t r = 0; r < rules.size(); ++r) {  // repetitions add rules on the way
      todo_.push_back({bodies_[r], rules[r].start, ends[r], static_cast<RuleId>(r)});
      while (!todo_.empty()) {
        const Piece piece = todo_.back();
        todo_.pop_back();
        expand(piece);
      }
    }
  }

  std::vector<RawEdge> edges;
  std::vector<RuleId> rule_of;  ///< [nodes]
  std::vector<NodeId> alike;    ///< [nodes]
  std::vector<Automaton::Rule> rules;
  std::vector<NodeId> ends;  ///< [rules]

 private:
  struct Piece {
    ExprId expr;
    NodeId from, to;
    RuleId rule;
  };

  NodeId add_node(RuleId rule) {
    if (rule_of.size() >= kMostNodes) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "the grammar has more than {} places, repetitions counted out", kMostNodes);
    }
    rule_of.push_back(rule);
    alike.push_back(static_cast<NodeId>(rule_of.size() - 1));
    return alike.back();
  }

  void add_edge(NodeId from, NodeId to, EdgeKind kind, std::uint32_t value = 0) {
    if (edges.size() >= kMostEdges) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "the grammar has more than {} steps, repetitions counted out", kMostEdges);
    }
    edges.push_back({from, to, kind, value});
  }

  RuleId add_rule(ExprId body, bool word) {
    const auto rule = static_cast<RuleId>(rules.size());
    rules.push_back({add_node(rule), word});
    ends.push_back(add_node(rule));
    bodies_.push_back(body);
    return rule;
  }

  void expand(const Piece& piece) {
    const Grammar::Expr& expr = grammar_.exprs()[piece.expr];
    switch (expr.kind) {
      case Grammar::Kind::kLiteral:
        literal(expr.text, piece);
        break;
      case Grammar::Kind::kBytes:
        add_edge(piece.from, piece.to, EdgeKind::kBytes, expr.value);
        break;
      case Grammar::Kind::kRule:
        add_edge(piece.from, piece.to, EdgeKind::kCall, expr.value);
        break;
      case Grammar::Kind::kToken:
        add_edge(piece.from, piece.to, EdgeKind::kToken, expr.value);
        break;
      case Grammar::Kind::kAnyText:
        add_edge(piece.from, piece.to, EdgeKind::kAnyText);
        break;
      case Grammar::Kind::kChoice:
        for (const ExprId part : expr.parts)
          todo_.push_back({part, piece.from, piece.to, piece.rule});
        break;
      case Grammar::Kind::kSequence: {
        NodeId from = piece.from;
        for (std::size_t i = 0; i < expr.parts.size(); ++i) {
          const NodeId to = i + 1 == expr.parts.size() ? piece.to : add_node(piece.rule);
          todo_.push_back({expr.parts[i], from, to, piece.rule});
          from = to;
        }
        break;
      }
      case Grammar::Kind::kRepeat:
        repeat(expr, piece);
    }
  }

  void literal(const std::string& text, const Piece& piece) {
    if (text.empty()) return add_edge(piece.from, piece.to, EdgeKind::kEmpty);
    NodeId from = piece.from;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const NodeId to = i + 1 == text.size() ? piece.to : add_node(piece.rule);
      // Sets of one byte: behind the grammar's own sets.
      add_edge(
          from, to, EdgeKind::kBytes,
          static_cast<std::uint32_t>(grammar_.sets().size()) + static_cast<unsigned char>(text[i]));
      from = to;
    }
  }

  /// What is repeated becomes a rule of its own unless it is one step, so that n times cost n
  /// edges whatever it is.
  std::pair<EdgeKind, std::uint32_t> step_of(ExprId part, RuleId rule) {
    const Grammar::Expr& expr = grammar_.exprs()[part];
    switch (expr.kind) {
      case Grammar::Kind::kBytes:
        return {EdgeKind::kBytes, expr.value};
      case Grammar::Kind::kRule:
        return {EdgeKind::kCall, expr.value};
      case Grammar::Kind::kToken:
        return {EdgeKind::kToken, expr.value};
      case Grammar::Kind::kAnyText:
        return {EdgeKind::kAnyText, 0};
      default:
        return {EdgeKind::kCall, add_rule(part, rules[rule].word)};
    }
  }

  void repeat(const Grammar::Expr& expr, const Piece& piece) {
    const auto [kind, value] = step_of(expr.parts[0], piece.rule);
    const std::int64_t chain = expr.max == kNoEnd ? expr.min : expr.max;
    std::vector<NodeId> at = {add_node(piece.rule)};  // [i]: behind i of them
    for (std::int64_t i = 0; i < chain; ++i) {
      at.push_back(add_node(piece.rule));
      add_edge(at[static_cast<std::size_t>(i)], at.back(), kind, value);
    }
    add_edge(piece.from, at.front(), EdgeKind::kEmpty);
    if (expr.max == kNoEnd) add_edge(at.back(), at.back(), kind, value);
    for (std::int64_t i = expr.min; i <= chain; ++i)
      add_edge(at[static_cast<std::size_t>(i)], piece.to, EdgeKind::kEmpty);
    // Far from a border all places are alike, as each repetition reads at least a byte (those that
    // do not are found by trim()).
    const auto far = static_cast<std::int64_t>(longest_) + 1;
    for (std::int64_t i = 0; i <= chain; ++i) {
      const std::int64_t border = i < expr.min ? expr.min : chain;
      if (border - i > far && (i < expr.min || expr.max != kNoEnd)) {
        alike[at[static_cast<std::size_t>(i)]] = at[static_cast<std::size_t>(border - far)];
        if (kind == EdgeKind::kCall) far_calls.emplace_back(at[static_cast<std::size_t>(i)], value);
      }
    }
  }

 public:
  std::vector<std::pair<NodeId, RuleId>> far_calls;  ///< alike only if the rule reads something

 private:
  const Grammar& grammar_;
  std::size_t longest_;
  std::vector<ExprId> bodies_;  ///< [rules]
  std::vector<Piece> todo_;
};

/// Which nodes can be reached from the start of their rule by edges that `passes`, calls by their
/// rule being finished so. Linear: a call waits until its rule is known to end.
struct Reach {
  template <class Passes>
  Reach(const Builder& b, const std::vector<std::vector<std::uint32_t>>& out, Passes passes)
      : node(b.rule_of.size()), rule(b.rules.size()) {
    std::vector<std::vector<NodeId>> waiting(b.rules.size());
    std::vector<NodeId> todo;
    const auto reach = [&](NodeId n) {
      if (node[n]) return;
      node[n] = 1;
      todo.push_back(n);
    };
    for (const Automaton::Rule& r : b.rules) reach(r.start);
    while (!todo.empty()) {
      const NodeId n = todo.back();
      todo.pop_back();
      const RuleId r = b.rule_of[n];
      if (n == b.ends[r] && !rule[r]) {
        rule[r] = 1;
        for (const NodeId w : waiting[r]) reach(w);
      }
      for (const std::uint32_t e : out[n]) {
        const RawEdge& edge = b.edges[e];
        if (edge.kind == EdgeKind::kCall) {
          if (rule[edge.value])
            reach(edge.to);
          else
            waiting[edge.value].push_back(edge.to);
        } else if (passes(edge)) {
          reach(edge.to);
        }
      }
    }
  }
  std::vector<char> node, rule;
};

std::vector<std::vector<std::uint32_t>> outgoing(const Builder& b, bool backwards) {
  std::vector<std::vector<std::uint32_t>> out(b.rule_of.size());
  for (std::size_t e = 0; e < b.edges.size(); ++e)
    out[backwards ? b.edges[e].to : b.edges[e].from].push_back(static_cast<std::uint32_t>(e));
  return out;
}

/// A rule that comes to itself before anything is read.
void refuse_left_recursion(const Builder& b, const std::vector<std::vector<std::uint32_t>>& out,
                           const Reach& empty, const Grammar& grammar) {
  std::vector<std::vector<RuleId>> first(b.rules.size());
  for (NodeId n = 0; n < b.rule_of.size(); ++n) {
    if (!empty.node[n]) continue;
    for (const std::uint32_t e : out[n]) {
      if (b.edges[e].kind == EdgeKind::kCall) first[b.rule_of[n]].push_back(b.edges[e].value);
    }
  }
  std::vector<char> state(b.rules.size());  // 1: on the way, 2: done
  for (RuleId root = 0; root < b.rules.size(); ++root) {
    if (state[root]) continue;
    std::vector<std::pair<RuleId, std::size_t>> way = {{root, 0}};
    state[root] = 1;
    while (!way.empty()) {
      auto& [rule, next] = way.back();
      if (next == first[rule].size()) {
        state[rule] = 2;
        way.pop_back();
        continue;
      }
      const RuleId called = first[rule][next++];
      if (state[called] == 1) {
        RuleId named = called;
        for (const auto& step : way) {
          if (step.first < grammar.rules().size()) named = step.first;
        }
        throw make_error(ErrorCode::kInvalidRequest,
                         "left recursion: rule \"{}\" comes to itself before it has read anything",
                         named < grammar.rules().size() ? grammar.rules()[named].name : "root");
      }
      if (state[called] == 0) {
        state[called] = 1;
        way.emplace_back(called, 0);
      }
    }
  }
}

/// Nodes from which the end of their rule can be reached.
std::vector<char> ending(const Builder& b, const Reach& all) {
  const auto in = outgoing(b, true);
  std::vector<char> ends(b.rule_of.size());
  std::vector<NodeId> todo;
  for (RuleId r = 0; r < b.rules.size(); ++r) {
    if (!all.rule[r]) continue;
    ends[b.ends[r]] = 1;
    todo.push_back(b.ends[r]);
  }
  while (!todo.empty()) {
    const NodeId n = todo.back();
    todo.pop_back();
    for (const std::uint32_t e : in[n]) {
      const RawEdge& edge = b.edges[e];
      if (ends[edge.from] || (edge.kind == EdgeKind::kCall && !all.rule[edge.value])) continue;
      ends[edge.from] = 1;
      todo.push_back(edge.from);
    }
  }
  return ends;
}

void classify_bytes(Automaton& a) {
  a.class_of.fill(0);
  std::size_t classes = 1;
  for (const ByteSet& set : a.sets) {
    std::array<int, 256> inside{};  // [class]: the class its members in `set` get
    inside.fill(-1);
    std::array<std::size_t, 256> total{}, hit{};
    for (std::size_t b = 0; b < 256; ++b) {
      ++total[a.class_of[b]];
      if (set[b]) ++hit[a.class_of[b]];
    }
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint8_t c = a.class_of[b];
      if (!set[b] || hit[c] == total[c]) continue;
      if (inside[c] < 0) inside[c] = static_cast<int>(classes++);
      a.class_of[b] = static_cast<std::uint8_t>(inside[c]);
    }
    if (classes == 256) break;
  }
  a.class_byte.assign(classes, 0);
  for (std::size_t b = 256; b-- > 0;) a.class_byte[a.class_of[b]] = static_cast<std::uint8_t>(b);
  for (const ByteSet& set : a.sets) {
    ByteSet members;
    for (std::size_t b = 0; b < 256; ++b) members[a.class_of[b]] = members[a.class_of[b]] || set[b];
    a.set_classes.push_back(members);
  }
}

/// The automaton without what leads nowhere.
Automaton trim(const Builder& b, const Grammar& grammar, const Reach& all) {
  Automaton a;
  a.rules = b.rules;
  a.root = grammar.root();
  a.sets = grammar.sets();
  for (std::size_t byte = 0; byte < 256; ++byte) a.sets.push_back(ByteSet{}.set(byte));
  const std::vector<char> ends = ending(b, all);
  const auto out = outgoing(b, false);
  a.nodes.resize(b.rule_of.size());
  for (NodeId n = 0; n < a.nodes.size(); ++n) {
    Automaton::Node& node = a.nodes[n];
    node.rule = b.rule_of[n];
    node.alike = b.alike[n];
    node.ends = n == b.ends[node.rule];
    node.first = static_cast<std::uint32_t>(a.edges.size());
    for (const std::uint32_t e : out[n]) {
      const RawEdge& edge = b.edges[e];
      if (ends[edge.to] && (edge.kind != EdgeKind::kCall || all.rule[edge.value]))
        a.edges.push_back({edge.kind, edge.value, edge.to});
    }
    node.last = static_cast<std::uint32_t>(a.edges.size());
  }
  // Backwards along chains of empty edges: a node that can only end needs no place to return to.
  const auto in = outgoing(b, true);
  std::vector<NodeId> todo(b.ends.begin(), b.ends.end());
  for (const NodeId n : todo) a.nodes[n].only_ends = a.nodes[n].first == a.nodes[n].last;
  while (!todo.empty()) {
    const NodeId n = todo.back();
    todo.pop_back();
    if (!a.nodes[n].only_ends) continue;
    for (const std::uint32_t e : in[n]) {
      Automaton::Node& node = a.nodes[b.edges[e].from];
      if (node.only_ends || node.last - node.first != 1 ||
          a.edges[node.first].kind != EdgeKind::kEmpty || a.edges[node.first].to != n)
        continue;
      node.only_ends = true;
      todo.push_back(b.edges[e].from);
    }
  }
  classify_bytes(a);
  return a;
}

}  // namespace

Automaton compile(const Grammar& grammar, std::size_t longest_token) {
  const Builder b(grammar, longest_token);
  const auto out = outgoing(b, false);
  const Reach all(b, out, [](const RawEdge&) { return true; });
  if (!all.rule[grammar.root()])
    throw Error(ErrorCode::kInvalidRequest, "there is no text that matches");
  const Reach empty(b, out, [](const RawEdge& edge) { return edge.kind == EdgeKind::kEmpty; });
  refuse_left_recursion(b, out, empty, grammar);
  Automaton a = trim(b, grammar, all);
  for (const auto& [node, rule] : b.far_calls) {
    if (empty.rule[rule]) a.nodes[node].alike = node;
  }
  return a;
}

}  // namespace palimpsest::grammar
