#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/hf_config.h"

namespace palimpsest::formats {

enum class GgufValueType : std::uint32_t {
  kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64
};
inline constexpr std::uint32_t kNumGgufValueTypes = 13;

/// "u32", "string", ...
std::string_view gguf_value_type_name(GgufValueType type);
/// Bytes of one value; 0 for strings and arrays.
std::int64_t gguf_value_size(GgufValueType type);

/// The key-value pairs of a GGUF file, as views of its bytes, which must outlive them. Integer types are interchangeable, and so are the two
/// float types: writers disagree about widths, values count.
///
/// Every accessor throws Error kInvalidFile that names file, key and what was found:
/// "model.gguf: llama.block_count: expected an integer, found a string".
/// The plain accessors require the key; the find_ ones return nothing when it is absent, and still throw when it has the wrong type or
/// range. Immutable; safe to read from any thread.
class GgufMetadata {
 public:
  struct Entry {
    std::string_view key;
    GgufValueType type = GgufValueType::kU8;  ///< of the value, or of an array's elements
    bool is_array = false;
    std::uint64_t count = 1;
    std::span<const std::byte> bytes;  ///< the value, or the array's elements back to back; checked: strings lie inside
  };

  /// In the order of the file.
  std::span<const Entry> entries() const { return entries_; }
  /// Null when there is no such key.
  const Entry* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::int64_t integer(std::string_view key, IntegerRange range = {}) const;
  double number(std::string_view key, NumberRange range = {}) const;  ///< a float or an integer
  bool boolean(std::string_view key) const;
  std::string_view string(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key, IntegerRange range = {}) const;
  std::vector<float> floats(std::string_view key) const;
  std::vector<std::string_view> strings(std::string_view key) const;

  std::optional<std::int64_t> find_integer(std::string_view key, IntegerRange range = {}) const;
  std::optional<double> find_number(std::string_view key, NumberRange range = {}) const;
  std::optional<bool> find_boolean(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  /// Empty when the key is absent.
  std::vector<std::int64_t> find_integers(std::string_view key, IntegerRange range = {}) const;
  std::vector<float> find_floats(std::string_view key) const;
  std::vector<std::string_view> find_strings(std::string_view key) const;
  std::vector<bool> find_booleans(std::string_view key) const;
  /// A list of integers, or one integer standing for a list of one: attention.head_count_kv may be given per layer.
  std::vector<std::int64_t> find_integer_or_integers(std::string_view key, IntegerRange range = {}) const;

  /// "model.gguf: llama.block_count"
  std::string where(std::string_view key) const;
  void set_file_name(std::string name) { file_ = std::move(name); }

 private:
  friend class GgufParser;
  /// Makes find() work. Returns a key that occurs twice, if there is one.
  std::optional<std::string_view> index();
  const Entry& require(std::string_view key) const;
  const Entry& array(const Entry& entry, std::string_view what) const;
  std::int64_t integer_of(const Entry& entry, std::uint64_t i, IntegerRange range) const;
  double number_of(const Entry& entry, std::uint64_t i) const;
  std::string_view string_of(const Entry& entry) const;
  bool boolean_of(const Entry& entry) const;
  [[noreturn]] void wrong_type(const Entry& entry, std::string_view expected) const;

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> by_key_;
  std::string file_;
};

}  // namespace palimpsest::formats
