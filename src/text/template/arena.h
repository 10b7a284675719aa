#pragma once

// Memory that is given back all at once. The syntax tree of a template lives in one, the values of
// a rendering in another: nothing in them owns anything, so cycles and sharing cost nothing.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace palimpsest::text::jinja {

class Arena {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment) {
    std::size_t start = (used_ + alignment - 1) & ~(alignment - 1);
    const std::size_t size = blocks_.empty() ? 0 : blocks_.back().size;
    if (start > size || bytes > size - start) {
      const std::size_t usual = std::min<std::size_t>(
          std::size_t{4096} << std::min<std::size_t>(blocks_.size(), 8), 1 << 20);
      const std::size_t fresh = std::max(bytes, usual);
      blocks_.push_back({std::make_unique_for_overwrite<std::byte[]>(fresh), fresh});
      start = 0;
    }
    used_ = start + bytes;
    return blocks_.back().bytes.get() + start;
  }

  template <class T, class... Args>
  T* make(Args&&... args) {
    static_assert(std::is_trivially_destructible_v<T>);
    return new (allocate(sizeof(T), alignof(T))) T{std::forward<Args>(args)...};
  }

  template <class T>
  std::span<T> make_span(std::size_t count) {
    static_assert(std::is_trivially_destructible_v<T>);
    if (count == 0) return {};
    T* first = static_cast<T*>(allocate(count * sizeof(T), alignof(T)));
    std::uninitialized_value_construct_n(first, count);
    return {first, count};
  }

  template <class T>
  std::span<T> copy(std::span<const T> from) {
    const std::span<T> to = make_span<T>(from.size());
    std::copy(from.begin(), from.end(), to.begin());
    return to;
  }
  template <class T>
  std::span<T> copy(const std::vector<T>& from) {
    return copy(std::span<const T>(from));
  }
  std::string_view copy(std::string_view from) {
    const auto to = copy(std::span<const char>(from));
    return {to.data(), to.size()};
  }

  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size;
  };
  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  std::vector<Block> blocks_;
  std::size_t used_ = 0;  // of the newest block
};

}  // namespace palimpsest::text::jinja
