#pragma once

// The tokens of a vocabulary, found by id and by bytes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::formats {

/// Byte strings with ids 0 .. size()-1. Views point into the object and live as long as it does, as
/// long as nothing is added (moving it keeps them valid, except that views of a moved-from object
/// belong to the new one). Safe to read from any thread.
class TokenTable {
 public:
  static constexpr std::size_t kMaxTokens = std::size_t{1} << 24;
  static constexpr std::size_t kMaxTokenBytes = 4096;
  /// What add() can take altogether.
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

  TokenTable() : begins_(1, 0) {}

  void reserve(std::size_t tokens, std::size_t bytes);

  /// Gives `token` the next id. It is found by its bytes unless it is empty or an earlier token
  /// equals it: then the earlier id is returned, else the new one.
  std::int32_t add(std::string_view token);
  /// Gives `token` the next id; find() will not know it.
  void add_hidden(std::string_view token);

  std::int32_t size() const { return static_cast<std::int32_t>(begins_.size()) - 1; }
  std::size_t max_token_bytes() const { return max_token_bytes_; }

  /// Bytes of a token, 0 <= id < size().
  std::string_view token(std::int32_t id) const {
    const auto i = static_cast<std::size_t>(id);
    return {bytes_.data() + begins_[i], begins_[i + 1] - begins_[i]};
  }

  /// The id of a token, -1 if there is none.
  std::int32_t find(std::string_view token) const;

 private:
  /// The slot that holds `token`, or the free slot where it would go.
  std::size_t slot_of(std::string_view token) const;
  void rehash(std::size_t slots);

  std::string bytes_;                  ///< all tokens in the order of ids, end to end
  std::vector<std::uint32_t> begins_;  ///< size()+1 offsets into bytes_
  std::vector<std::int32_t> slots_;    ///< open addressing, a power of two of entries, -1 = free
  std::size_t found_ = 0;              ///< slots in use
  std::size_t max_token_bytes_ = 0;    ///< of those that find() knows
};

}  // namespace palimpsest::formats
