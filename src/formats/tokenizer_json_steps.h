#pragma once

// The parts of the tokenizer.json reader that read chains of components. They throw Error, which
// TokenizerJson::parse turns into its result.

#include <simdjson.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "formats/tokenizer_json.h"

namespace palimpsest::formats {

/// One value of the document and its path, for error texts.
class JsonNode {
 public:
  JsonNode(simdjson::dom::element value, std::string path)
      : value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_array() const { return value_.is_array(); }
  /// Whether the object has `key` and it is not null.
  bool has(std::string_view key) const;
  JsonNode member(std::string_view key) const;
  std::string_view view() const;
  std::string string() const { return std::string(view()); }
  std::int64_t integer() const;
  std::optional<std::string> find_string(std::string_view key) const;
  bool flag(std::string_view key, bool otherwise) const;
  void for_each(const std::function<void(const JsonNode&)>& visit) const;
  void for_each_member(const std::function<void(std::string_view, const JsonNode&)>& visit) const;

 private:
  [[noreturn]] void expected(std::string_view what) const;
  std::string path_of(std::string_view key) const;

  simdjson::dom::element value_;
  std::string path_;
};

void read_normalizer(const JsonNode& top, TokenizerJson& out);
/// Also decides out.byte_level.
void read_pre_tokenizer(const JsonNode& top, TokenizerJson& out);
void read_decoder(const JsonNode& top, TokenizerJson& out);
/// `id_of` throws for a token that does not exist.
void read_post_processor(const JsonNode& top, TokenizerJson& out,
                         const std::function<std::int32_t(std::string_view)>& id_of);

}  // namespace palimpsest::formats
