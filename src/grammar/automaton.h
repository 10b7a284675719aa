#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/grammar.h"

namespace palimpsest::grammar {

using NodeId = std::uint32_t;

/// A grammar as a pushdown automaton: one graph for each rule, whose edges read a byte, a token, or
/// whatever another rule matches. Immutable.
///
/// From every node that can be reached the end of its rule can be, so a machine that follows edges
/// never comes to a place from where nothing leads to an end.
struct Automaton {
  enum class EdgeKind : std::uint8_t { kEmpty, kBytes, kCall, kToken, kAnyText };
  struct Edge {
    EdgeKind kind;
    std::uint32_t value;  ///< index into `sets`, rule, or token id
    NodeId to;
  };
  struct Node {
    std::uint32_t first = 0, last = 0;  ///< its edges
    RuleId rule = 0;
    /// Inside of a long repetition: the node that reads the next bytes, as many as a token may
    /// have, exactly as this one does, so that one mask serves both. Else itself.
    NodeId alike = 0;
    bool ends = false;       ///< the rule may end here
    bool only_ends = false;  ///< and can do nothing else
  };
  struct Rule {
    NodeId start = 0;
    bool word = false;
  };

  std::span<const Edge> edges_of(const Node& node) const {
    return {edges.data() + node.first, edges.data() + node.last};
  }

  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<Rule> rules;
  std::vector<ByteSet> sets;
  std::vector<ByteSet> set_classes;        ///< [sets]: the same as sets of byte classes
  std::array<std::uint8_t, 256> class_of;  ///< bytes that no edge tells apart share a class
  std::vector<std::uint8_t> class_byte;    ///< [classes]: one byte of each
  RuleId root = 0;
};

/// `longest_token`: bytes of the vocabulary's longest token.
/// Error{kInvalidRequest} for a grammar that is left-recursive, matches nothing at all or has too
/// many parts. Takes time and memory in proportion to the grammar's size, repetitions counted out.
Automaton compile(const Grammar& grammar, std::size_t longest_token);

}  // namespace palimpsest::grammar
