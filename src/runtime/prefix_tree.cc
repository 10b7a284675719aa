#include "runtime/prefix_tree.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace palimpsest {
namespace {

/// Tokens [offset, offset + length) of a text that several edges may share.
struct Span {
  std::shared_ptr<const std::vector<std::int32_t>> text;
  std::int64_t offset = 0, length = 0;

  const std::int32_t* data() const { return text->data() + offset; }
  Span part(std::int64_t begin, std::int64_t count) const { return {text, offset + begin, count}; }
  static Span copy(std::span<const std::int32_t> tokens) {
    return {std::make_shared<const std::vector<std::int32_t>>(tokens.begin(), tokens.end()), 0,
            static_cast<std::int64_t>(tokens.size())};
  }
};

/// Equal leading tokens of a and b. Whole stretches by memcmp, which is several times as fast as a
/// loop over ids.
std::int64_t common_prefix(const std::int32_t* a, const std::int32_t* b, std::int64_t length) {
  constexpr std::int64_t kStretch = 1024;
  std::int64_t i = 0;
  while (length - i >= kStretch && std::memcmp(a + i, b + i, kStretch * sizeof(*a)) == 0)
    i += kStretch;
  return std::mismatch(a + i, a + length, b + i).first - a;
}

}  // namespace

struct PrefixTree::Entry : Mark {
  Node* node = nullptr;
};

struct PrefixTree::Node {
  Node* parent = nullptr;
  std::int64_t begin = 0;  ///< position of the edge's first token
  Span edge;
  std::map<std::int32_t, std::unique_ptr<Node>> children;  ///< by first token
  std::vector<std::unique_ptr<Entry>> marks;               ///< ascending, in (begin, end()]

  std::int64_t end() const { return begin + edge.length; }
};

/// How far some tokens lead: `length` of them match, the last `within` in the edge of `node`.
struct PrefixTree::Walk {
  Node* node;
  std::int64_t within;
  std::int64_t length;
};

PrefixTree::PrefixTree() : root_(std::make_unique<Node>()) {}

PrefixTree::~PrefixTree() {
  // A deep tree would overrun the stack if every node destroyed its children.
  std::vector<std::unique_ptr<Node>> nodes;
  nodes.push_back(std::move(root_));
  while (!nodes.empty()) {
    const std::unique_ptr<Node> node = std::move(nodes.back());
    nodes.pop_back();
    for (auto& [token, child] : node->children) nodes.push_back(std::move(child));
  }
}

PrefixTree::Walk PrefixTree::walk(std::span<const std::int32_t> tokens) const {
  const auto total = static_cast<std::int64_t>(tokens.size());
  Walk at{root_.get(), 0, 0};
  while (at.length < total) {
    const auto next = at.node->children.find(tokens[static_cast<std::size_t>(at.length)]);
    if (next == at.node->children.end()) break;
    at.node = next->second.get();
    const Span& edge = at.node->edge;
    at.within = common_prefix(edge.data(), tokens.data() + at.length,
                              std::min(edge.length, total - at.length));
    at.length += at.within;
    if (at.within < edge.length) break;
  }
  return at;
}

PrefixTree::Match PrefixTree::match(std::span<const std::int32_t> tokens) const {
  const Walk end = walk(tokens);
  Match match{end.length, end.node->begin, {}};
  for (const Node* node = end.node; node; node = node->parent) {
    for (auto mark = node->marks.rbegin(); mark != node->marks.rend(); ++mark) {
      if ((*mark)->position <= end.length) match.marks.push_back(mark->get());
    }
  }
  std::reverse(match.marks.begin(), match.marks.end());
  return match;
}

/// Cuts a node's edge after `length` tokens; returns the new node, which ends there.
PrefixTree::Node* PrefixTree::split(Node* node, std::int64_t length) {
  Node* parent = node->parent;
  std::unique_ptr<Node>& place = parent->children.at(*node->edge.data());
  auto front = std::make_unique<Node>();
  front->parent = parent;
  front->begin = node->begin;
  front->edge = node->edge.part(0, length);
  const auto first_behind = std::find_if(node->marks.begin(), node->marks.end(),
                                         [&](const auto& m) { return m->position > front->end(); });
  std::move(node->marks.begin(), first_behind, std::back_inserter(front->marks));
  node->marks.erase(node->marks.begin(), first_behind);
  for (auto& mark : front->marks) mark->node = front.get();

  node->begin = front->end();
  node->edge = node->edge.part(length, node->edge.length - length);
  node->parent = front.get();
  Node* made = front.get();
  front->children.emplace(*node->edge.data(), std::exchange(place, std::move(front)));
  return made;
}

Mark& PrefixTree::at(std::span<const std::int32_t> tokens) {
  PALIMPSEST_CHECK(!tokens.empty(), "the start needs no mark");
  Walk end = walk(tokens);
  const auto position = static_cast<std::int64_t>(tokens.size());
  if (end.length < position) {
    if (end.within < end.node->edge.length) end.node = split(end.node, end.within);
    auto leaf = std::make_unique<Node>();
    leaf->parent = end.node;
    leaf->begin = end.length;
    leaf->edge = Span::copy(tokens.subspan(static_cast<std::size_t>(end.length)));
    Node* made = leaf.get();
    end.node->children.emplace(*made->edge.data(), std::move(leaf));
    end.node = made;
  }
  auto& marks = end.node->marks;
  const auto place = std::find_if(marks.begin(), marks.end(),
                                  [&](const auto& m) { return m->position >= position; });
  if (place != marks.end() && (*place)->position == position) return **place;
  auto entry = std::make_unique<Entry>();
  entry->position = position;
  entry->node = end.node;
  ++count_;
  Mark& made = **marks.insert(place, std::move(entry));
  if (Node* parent = end.node->parent; parent != root_.get() && parent->children.size() == 1)
    merge_with_only_child(parent);
  return made;
}

/// One edge in place of a node's and its only child's.
void PrefixTree::merge_with_only_child(Node* node) {
  const std::unique_ptr<Node> child = std::move(node->children.begin()->second);
  node->children = std::move(child->children);
  for (auto& [token, grandchild] : node->children) grandchild->parent = node;
  const Span front = node->edge, back = child->edge;
  if (front.text == back.text && front.offset + front.length == back.offset) {
    node->edge.length += back.length;
  } else {
    auto text = std::make_shared<std::vector<std::int32_t>>();
    text->reserve(static_cast<std::size_t>(front.length + back.length));
    text->assign(front.data(), front.data() + front.length);
    text->insert(text->end(), back.data(), back.data() + back.length);
    node->edge = {std::move(text), 0, front.length + back.length};
  }
  for (auto& mark : child->marks) {
    mark->node = node;
    node->marks.push_back(std::move(mark));
  }
}

void PrefixTree::erase(Mark& mark) {
  Node* node = static_cast<Entry&>(mark).node;
  const auto place = std::find_if(node->marks.begin(), node->marks.end(),
                                  [&](const auto& m) { return m.get() == &mark; });
  PALIMPSEST_CHECK(place != node->marks.end(), "a mark of this tree");
  node->marks.erase(place);
  --count_;
  prune(node);
}

/// Restores that every leaf ends at a mark and that no inner node has a single child.
void PrefixTree::prune(Node* node) {
  while (node != root_.get() && node->children.empty()) {
    if (!node->marks.empty()) {
      const std::int64_t kept = node->marks.back()->position - node->begin;
      // What hangs on a text many times as long lets go of it.
      node->edge = node->edge.part(0, kept);
      if (2 * kept < static_cast<std::int64_t>(node->edge.text->size()) &&
          node->edge.text.use_count() == 1) {
        node->edge = Span::copy({node->edge.data(), static_cast<std::size_t>(kept)});
      }
      return;
    }
    Node* parent = node->parent;
    parent->children.erase(*node->edge.data());
    node = parent;
  }
  if (node != root_.get() && node->children.size() == 1) merge_with_only_child(node);
}

/// Appends the marks of a subtree; returns the position of its nearest end. `before` is the mark's
/// position before this node.
std::int64_t PrefixTree::visit(const Node& node, std::int64_t before, std::vector<Visited>& out) {
  const std::size_t first = out.size();
  for (const auto& mark : node.marks) {
    out.push_back({mark.get(), {.gap = mark->position - before, .hits = mark->hits}});
    before = mark->position;
  }
  const std::size_t own = out.size();
  std::int64_t nearest =
      node.children.empty() ? node.end() : std::numeric_limits<std::int64_t>::max();
  for (const auto& [token, child] : node.children)
    nearest = std::min(nearest, visit(*child, before, out));
  for (std::size_t i = first; i < own; ++i) out[i].value.distance = nearest - out[i].mark->position;
  return nearest;
}

std::vector<PrefixTree::Visited> PrefixTree::visited() const {
  std::vector<Visited> out;
  out.reserve(static_cast<std::size_t>(count_));
  visit(*root_, 0, out);
  return out;
}

std::int64_t PrefixTree::nodes() const {
  std::int64_t count = 0;
  std::vector<const Node*> open = {root_.get()};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    ++count;
    for (const auto& [token, child] : node->children) open.push_back(child.get());
  }
  return count;
}

std::int64_t PrefixTree::tokens() const {
  std::int64_t sum = 0;
  std::vector<const Node*> open = {root_.get()};
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    sum += node->edge.length;
    for (const auto& [token, child] : node->children) open.push_back(child.get());
  }
  return sum;
}

std::vector<std::int32_t> PrefixTree::tokens_of(const Mark& mark) const {
  const Node* node = static_cast<const Entry&>(mark).node;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(mark.position));
  std::copy_n(node->edge.text ? node->edge.data() : nullptr, mark.position - node->begin,
              tokens.begin() + node->begin);
  for (node = node->parent; node && node->edge.length > 0; node = node->parent) {
    std::copy_n(node->edge.data(), node->edge.length, tokens.begin() + node->begin);
  }
  return tokens;
}

}  // namespace palimpsest
