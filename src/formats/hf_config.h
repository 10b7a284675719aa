#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace palimpsest::formats {

/// Bounds, both included.
struct IntegerRange {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};
struct NumberRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};

/// Typed access to one object of a JSON file that somebody else wrote. A key that is null counts as absent.
///
/// Every accessor throws Error kInvalidFile that names file, key and what was found:
/// "config.json: text_config.linear_attn_config.num_heads: expected an integer, found a string".
/// The plain accessors require the key; the find_ ones return nothing when it is absent, and still throw when it has the
/// wrong type or range. Cheap to copy (shares the parsed document); immutable; safe to read from any thread.
class JsonObject {
 public:
  static constexpr int kMaxDepth = 64;
  static constexpr std::size_t kMaxBytes = 16u << 20;

  /// Parses text whose root must be an object. `file` names it in errors. Throws kInvalidFile for malformed JSON (with line
  /// and column), more than kMaxDepth levels or kMaxBytes bytes.
  static JsonObject parse(std::string_view text, std::string_view file);
  /// parse() on a file; kIo when it cannot be read. Errors name the file without its folder.
  static JsonObject read(const std::filesystem::path& path);

  bool has(std::string_view key) const;

  JsonObject object(std::string_view key) const;
  std::int64_t integer(std::string_view key, IntegerRange range = {}) const;
  double number(std::string_view key, NumberRange range = {}) const;
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key, IntegerRange range = {}) const;

  std::optional<JsonObject> find_object(std::string_view key) const;
  std::optional<std::int64_t> find_integer(std::string_view key, IntegerRange range = {}) const;
  std::optional<double> find_number(std::string_view key, NumberRange range = {}) const;
  std::optional<bool> find_boolean(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  /// A list of integers, or one integer standing for a list of one.
  std::vector<std::int64_t> find_integer_or_integers(std::string_view key, IntegerRange range = {}) const;

  /// A list of strings; empty when the key is absent.
  std::vector<std::string> find_strings(std::string_view key) const;

  /// "config.json: text_config.hidden_size"
  std::string where(std::string_view key) const;

 private:
  struct Node;
  explicit JsonObject(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

/// generation_config.json: what the publisher recommends for sampling. Absent members were not given.
struct GenerationConfig {
  std::vector<std::int64_t> eos_token_ids;
  std::optional<std::int64_t> bos_token_id;
  std::optional<std::int64_t> pad_token_id;
  std::optional<bool> do_sample;
  std::optional<double> temperature;  ///< >= 0
  std::optional<double> top_p;        ///< 0 .. 1
  std::optional<double> min_p;        ///< 0 .. 1
  std::optional<std::int64_t> top_k;  ///< >= 0; 0: off
  std::optional<double> repetition_penalty;
};

GenerationConfig parse_generation_config(std::string_view text, std::string_view file = "generation_config.json");
/// folder/generation_config.json; all absent when there is no such file.
GenerationConfig load_generation_config(const std::filesystem::path& folder);

}  // namespace palimpsest::formats
