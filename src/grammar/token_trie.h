#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "palimpsest/tokenizer.h"

namespace palimpsest::grammar {

/// Some ordinary tokens of a vocabulary as a tree of their bytes, flat in preorder: the children of
/// node i follow it, and what follows its whole subtree is at `end`. Node 0 is the root. Immutable;
/// any thread may read it.
class TokenTrie {
 public:
  struct Node {
    std::uint32_t end;          ///< one past the subtree
    std::uint32_t first_token;  ///< of tokens(): those that end here, then those of the subtree
    std::uint16_t depth;        ///< bytes from the root
    std::uint8_t byte;
  };

  /// Tokens of `least` to `most` bytes. Control tokens and stop ids are left out.
  TokenTrie(const Tokenizer& tokenizer, std::size_t least, std::size_t most);

  const std::vector<Node>& nodes() const { return nodes_; }
  /// Ids of tokens that end at node `i`.
  std::span<const TokenId> ending_at(std::size_t i) const {
    const std::uint32_t last = i + 1 < nodes_.size() ? nodes_[i + 1].first_token
                                                     : static_cast<std::uint32_t>(tokens_.size());
    return std::span(tokens_).subspan(nodes_[i].first_token, last - nodes_[i].first_token);
  }
  /// Ids of tokens that end in the subtree of node `i`, itself included.
  std::span<const TokenId> below(std::size_t i) const {
    const std::uint32_t end = nodes_[i].end;
    const std::uint32_t last =
        end < nodes_.size() ? nodes_[end].first_token : static_cast<std::uint32_t>(tokens_.size());
    return std::span(tokens_).subspan(nodes_[i].first_token, last - nodes_[i].first_token);
  }
  /// Bytes that occur below node `i`, itself not included, as sets of groups (group_of).
  std::uint64_t groups_below(std::size_t i) const { return groups_[i]; }
  static std::uint64_t group_of(std::uint8_t byte);

  /// All of them, as a mask of words of 32 bits.
  const std::vector<std::uint32_t>& all() const { return all_; }
  std::size_t longest() const { return longest_; }
  std::size_t words() const { return all_.size(); }

 private:
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;
  std::vector<std::uint64_t> groups_;
  std::vector<std::uint32_t> all_;
  std::size_t longest_ = 0;
};

/// All ordinary tokens with bytes. The few long ones (runs of one sign, mostly) lie apart: what
/// looks ahead as far as a token reaches need not look far.
struct TokenTries {
  static constexpr std::size_t kLong = 33;
  explicit TokenTries(const Tokenizer& tokenizer)
      : common(tokenizer, 1, kLong - 1), long_ones(tokenizer, kLong, 0xfffe) {}
  TokenTrie common, long_ones;
};

}  // namespace palimpsest::grammar
