#include "runtime/prefix_tree.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace palimpsest {
namespace {

using Tokens = std::vector<std::int32_t>;

std::vector<std::int64_t> positions(const PrefixTree::Match& match) {
  std::vector<std::int64_t> all;
  for (const Mark* mark : match.marks) all.push_back(mark->position);
  return all;
}

TEST(PrefixTree, FindsTheLongestPrefixAtAnyToken) {
  PrefixTree tree;
  tree.at(Tokens{1, 2, 3, 4, 5, 6});
  tree.at(Tokens{1, 2, 3});
  tree.at(Tokens{1, 2, 3, 4, 9, 9});
  tree.at(Tokens{7});
  EXPECT_EQ(tree.match(Tokens{1, 2, 3, 4, 5}).length, 5);
  EXPECT_EQ(positions(tree.match(Tokens{1, 2, 3, 4, 5})), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(positions(tree.match(Tokens{1, 2, 3, 4, 9, 9, 1})), (std::vector<std::int64_t>{3, 6}));
  EXPECT_EQ(tree.match(Tokens{1, 2, 3, 4, 5}).last_split, 4);
  EXPECT_EQ(tree.match(Tokens{7, 7}).length, 1);
  EXPECT_EQ(tree.match(Tokens{}).length, 0);
  EXPECT_EQ(tree.match(Tokens{8}).length, 0);
  EXPECT_EQ(tree.nodes(), 5);  // root, 1 2 3 4, 5 6, 9 9, 7
  EXPECT_EQ(tree.tokens(), 9);
}

TEST(PrefixTree, KeepsEdgesWholeWhileASequenceGrowsAndBranchesGo) {
  PrefixTree tree;
  Tokens tokens = {1, 2};
  Mark& first = tree.at(tokens);
  tokens.insert(tokens.end(), {3, 4});
  Mark& second = tree.at(tokens);
  EXPECT_EQ(tree.nodes(), 2);
  Mark& other = tree.at(Tokens{1, 2, 8});
  EXPECT_EQ(tree.nodes(), 4);
  EXPECT_EQ(tree.tokens_of(second), tokens);
  tree.erase(other);
  EXPECT_EQ(tree.nodes(), 2);
  EXPECT_EQ(tree.tokens_of(second), tokens);
  tree.erase(second);
  EXPECT_EQ(tree.tokens(), 2);
  EXPECT_EQ(&tree.at(Tokens{1, 2}), &first);
  tree.erase(first);
  EXPECT_EQ(tree.nodes(), 1);
  EXPECT_EQ(tree.marks(), 0);
}

TEST(PrefixTree, SaysWhatAMarkIsWorth) {
  PrefixTree tree;
  tree.at(Tokens{1, 2});
  tree.at(Tokens{1, 2, 3, 4, 5});
  tree.at(Tokens{1, 2, 3, 8});
  std::map<std::int64_t, SnapshotValue> values;
  tree.for_each(
      [&](const Mark& mark, const SnapshotValue& value) { values[mark.position] = value; });
  EXPECT_EQ(values[2].gap, 2);
  EXPECT_EQ(values[2].distance, 2);  // to the end of 1 2 3 8
  EXPECT_EQ(values[5].gap, 3);
  EXPECT_EQ(values[5].distance, 0);
  EXPECT_EQ(values[4].gap, 2);
}

TEST(PrefixTree, HoldsAMillionTokens) {
  PrefixTree tree;
  Tokens tokens(1 << 20);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(i * 2654435761u % 4096);
  for (std::size_t end = 1 << 12; end <= tokens.size(); end <<= 1)
    tree.at(std::span(tokens).first(end));
  EXPECT_EQ(tree.nodes(), 2);
  EXPECT_EQ(tree.match(tokens).length, 1 << 20);
  tokens[700000] ^= 1;
  EXPECT_EQ(tree.match(tokens).length, 700000);
}

/// Short texts over few letters branch often.
RC_GTEST_PROP(PrefixTreeProperty, AgreesWithAListOfTexts,
              (const std::vector<std::pair<bool, std::vector<bool>>>& steps)) {
  PrefixTree tree;
  std::map<Tokens, Mark*> stored;
  for (const auto& [add, letters] : steps) {
    Tokens text(letters.begin(), letters.end());
    if (text.empty()) continue;
    if (add || stored.empty()) {
      Mark& mark = tree.at(text);
      RC_ASSERT(!stored.count(text) || stored[text] == &mark);
      stored[text] = &mark;
    } else {
      const auto near = stored.lower_bound(text);
      const auto gone = near == stored.end() ? stored.begin() : near;
      tree.erase(*gone->second);
      stored.erase(gone);
    }
    RC_ASSERT(tree.marks() == static_cast<std::int64_t>(stored.size()));
    std::int64_t longest = 0;
    std::vector<Mark*> marks;
    std::set<Tokens> prefixes, branches;
    for (const auto& [known, mark] : stored) {
      const auto shared =
          std::mismatch(known.begin(), known.end(), text.begin(), text.end()).first - known.begin();
      longest = std::max<std::int64_t>(longest, shared);
      if (known.size() == static_cast<std::size_t>(shared)) marks.push_back(mark);
      RC_ASSERT(tree.tokens_of(*mark) == known);
      for (std::size_t n = 1; n <= known.size(); ++n)
        prefixes.insert(Tokens(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(n)));
    }
    std::sort(marks.begin(), marks.end(),
              [](const Mark* a, const Mark* b) { return a->position < b->position; });
    const auto match = tree.match(text);
    RC_ASSERT(match.length == longest);
    RC_ASSERT(match.marks == marks);
    RC_ASSERT(tree.tokens() ==
              static_cast<std::int64_t>(
                  prefixes.size()));  // each shared token once, none that leads to no mark
    std::int64_t nodes = 1;           // a node ends where the text branches or ends
    for (const Tokens& prefix : prefixes) {
      int next = 0;
      for (const std::int32_t letter : {0, 1}) {
        Tokens longer = prefix;
        longer.push_back(letter);
        next += static_cast<int>(prefixes.count(longer));
      }
      nodes += next != 1;
    }
    RC_ASSERT(tree.nodes() == nodes);
  }
}

}  // namespace
}  // namespace palimpsest
