#include "grammar/token_trie.h"

#include <algorithm>
#include <string_view>

namespace palimpsest::grammar {

/// Letters and digits are few groups, since languages seldom tell them apart; other signs of ASCII
/// have one each.
std::uint64_t TokenTrie::group_of(std::uint8_t byte) {
  if (byte >= 0x80) return byte < 0xc0 ? 1 : 2;
  if (byte < 0x20) return byte == '\n' || byte == '\t' ? 4 : 8;
  if (byte >= 'a' && byte <= 'z') return byte <= 'f' ? 16 : 32;
  if (byte >= 'A' && byte <= 'Z') return byte <= 'F' ? 64 : 128;
  if (byte >= '0' && byte <= '9') return 256;
  int sign = byte - 0x20;      // 0x20..0x2f: 0..15
  if (byte > '9') sign -= 10;  // 0x3a..0x40: 16..22
  if (byte > 'Z') sign -= 26;  // 0x5b..0x60: 23..28
  if (byte > 'z') sign -= 26;  // 0x7b..0x7f: 29..33
  return std::uint64_t{512} << sign;
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::size_t least, std::size_t most) {
  std::vector<std::pair<std::string_view, TokenId>> words;
  all_.assign(static_cast<std::size_t>((tokenizer.vocab_size() + 31) / 32), 0);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_valid(id) || tokenizer.is_control(id) || tokenizer.is_stop(id)) continue;
    const std::string_view bytes = tokenizer.bytes(id);
    if (bytes.size() < least || bytes.size() > most) continue;
    words.emplace_back(bytes, id);
    longest_ = std::max(longest_, bytes.size());
    all_[static_cast<std::size_t>(id) / 32] |= std::uint32_t{1} << (id % 32);
  }
  std::sort(words.begin(), words.end());
  nodes_.push_back({0, 0, 0, 0});
  std::vector<std::uint32_t> path = {0};
  const auto leave = [&](std::size_t depth) {
    while (path.size() > depth + 1) {
      nodes_[path.back()].end = static_cast<std::uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  std::string_view before;
  for (const auto& [bytes, id] : words) {
    const auto differs = std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end());
    leave(static_cast<std::size_t>(differs.first - before.begin()));
    for (std::size_t d = path.size() - 1; d < bytes.size(); ++d) {
      path.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<std::uint32_t>(tokens_.size()),
                        static_cast<std::uint16_t>(d + 1), static_cast<std::uint8_t>(bytes[d])});
    }
    tokens_.push_back(id);
    before = bytes;
  }
  leave(0);
  nodes_[0].end = static_cast<std::uint32_t>(nodes_.size());
  groups_.assign(nodes_.size(), 0);
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    for (std::size_t child = i + 1; child < nodes_[i].end; child = nodes_[child].end)
      groups_[i] |= groups_[child] | group_of(nodes_[child].byte);
  }
}

}  // namespace palimpsest::grammar
