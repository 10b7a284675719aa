#include "formats/hf_config.h"

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"

namespace palimpsest::formats {

using nlohmann::json;

struct JsonObject::Node {
  std::shared_ptr<const json> document;  ///< keeps `value` alive
  const json* value = nullptr;
  std::string path;  ///< "config.json: text_config." or "config.json: "
};

namespace {

std::string_view kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null: return "null";
    case json::value_t::boolean: return "a boolean";
    case json::value_t::string: return "a string";
    case json::value_t::array: return "a list";
    case json::value_t::object: return "an object";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned: return "an integer";
    case json::value_t::number_float: return "a fraction";
    default: return "something else";
  }
}

Error wrong_type(const std::string& where, std::string_view expected, const json& found) {
  return make_error(ErrorCode::kInvalidFile, "{}: expected {}, found {}", where, expected, kind_of(found));
}

std::int64_t to_integer(const json& value, IntegerRange range, const std::string& where) {
  if (!value.is_number_integer()) throw wrong_type(where, "an integer", value);
  const bool huge = value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  if (huge || value.get<std::int64_t>() < range.min || value.get<std::int64_t>() > range.max) {
    throw make_error(ErrorCode::kInvalidFile, "{}: {} is outside {} .. {}", where, value.dump(), range.min, range.max);
  }
  return value.get<std::int64_t>();
}

std::vector<std::int64_t> to_integers(const json& value, IntegerRange range, const std::string& where) {
  if (!value.is_array()) throw wrong_type(where, "a list of integers", value);
  std::vector<std::int64_t> list;
  list.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    list.push_back(to_integer(value[i], range, fmt::format("{}[{}]", where, i)));
  }
  return list;
}

template <class T>
T require(std::optional<T> value, const std::string& where) {
  if (!value) throw make_error(ErrorCode::kInvalidFile, "{}: required, but missing", where);
  return std::move(*value);
}

/// The member, or null when it is absent or JSON null.
const json* member(const json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// nlohmann's text without its "[json.exception.parse_error.101] " tag.
std::string without_tag(std::string_view text) {
  const auto end = text.find("] ");
  return std::string(end == text.npos ? text : text.substr(end + 2));
}

}  // namespace

JsonObject JsonObject::parse(std::string_view text, std::string_view file) {
  if (text.size() > kMaxBytes) {
    throw make_error(ErrorCode::kInvalidFile, "{}: {} bytes exceed the limit of {}", file, text.size(), kMaxBytes);
  }
  // The library takes a zero byte for the end of its input; in JSON it has no place at all.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw make_error(ErrorCode::kInvalidFile, "{}: not JSON: a zero byte at {}", file, zero);
  }
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth) {
      throw make_error(ErrorCode::kInvalidFile, "{}: nested deeper than {} levels", file, kMaxDepth);
    }
    return true;
  };
  auto node = std::make_shared<Node>();
  try {
    node->document = std::make_shared<const json>(json::parse(text.begin(), text.end(), check_depth));
  } catch (const json::exception& e) {
    throw make_error(ErrorCode::kInvalidFile, "{}: {}", file, without_tag(e.what()));
  }
  node->value = node->document.get();
  node->path = fmt::format("{}: ", file);
  if (!node->value->is_object()) throw wrong_type(std::string(file), "an object", *node->value);
  return JsonObject(std::move(node));
}

JsonObject JsonObject::read(const std::filesystem::path& path) {
  const auto file = value_or_throw(base::MappedFile::open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  return parse(text, path.filename().string());
}

bool JsonObject::has(std::string_view key) const { return member(*node_->value, key) != nullptr; }

std::string JsonObject::where(std::string_view key) const { return node_->path + std::string(key); }

std::optional<JsonObject> JsonObject::find_object(std::string_view key) const {
  const json* value = member(*node_->value, key);
  if (!value) return std::nullopt;
  if (!value->is_object()) throw wrong_type(where(key), "an object", *value);
  return JsonObject(std::make_shared<const Node>(Node{node_->document, value, where(key) + "."}));
}

std::optional<std::int64_t> JsonObject::find_integer(std::string_view key, IntegerRange range) const {
  const json* value = member(*node_->value, key);
  if (!value) return std::nullopt;
  return to_integer(*value, range, where(key));
}

std::optional<double> JsonObject::find_number(std::string_view key, NumberRange range) const {
  const json* value = member(*node_->value, key);
  if (!value) return std::nullopt;
  if (!value->is_number()) throw wrong_type(where(key), "a number", *value);
  const double number = value->get<double>();
  if (!(number >= range.min && number <= range.max)) {
    throw make_error(ErrorCode::kInvalidFile, "{}: {} is outside {} .. {}", where(key), number, range.min, range.max);
  }
  return number;
}

std::optional<bool> JsonObject::find_boolean(std::string_view key) const {
  const json* value = member(*node_->value, key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) throw wrong_type(where(key), "a boolean", *value);
  return value->get<bool>();
}

std::optional<std::string> JsonObject::find_string(std::string_view key) const {
  const json* value = member(*node_->value, key);
  if (!value) return std::nullopt;
  if (!value->is_string()) throw wrong_type(where(key), "a string", *value);
  return value->get<std::string>();
}

std::vector<std::int64_t> JsonObject::find_integer_or_integers(std::string_view key, IntegerRange range) const {
  const json* value = member(*node_->value, key);
  if (!value) return {};
  if (value->is_array()) return to_integers(*value, range, where(key));
  return {to_integer(*value, range, where(key))};
}

std::vector<std::string> JsonObject::find_strings(std::string_view key) const {
  const json* value = member(*node_->value, key);
  if (!value) return {};
  if (!value->is_array()) throw wrong_type(where(key), "a list of strings", *value);
  std::vector<std::string> list;
  for (std::size_t i = 0; i < value->size(); ++i) {
    if (!(*value)[i].is_string()) throw wrong_type(fmt::format("{}[{}]", where(key), i), "a string", (*value)[i]);
    list.push_back((*value)[i].get<std::string>());
  }
  return list;
}

JsonObject JsonObject::object(std::string_view key) const { return require(find_object(key), where(key)); }
std::int64_t JsonObject::integer(std::string_view key, IntegerRange range) const {
  return require(find_integer(key, range), where(key));
}
double JsonObject::number(std::string_view key, NumberRange range) const {
  return require(find_number(key, range), where(key));
}
bool JsonObject::boolean(std::string_view key) const { return require(find_boolean(key), where(key)); }
std::string JsonObject::string(std::string_view key) const { return require(find_string(key), where(key)); }
std::vector<std::int64_t> JsonObject::integers(std::string_view key, IntegerRange range) const {
  const json* value = member(*node_->value, key);
  if (!value) throw make_error(ErrorCode::kInvalidFile, "{}: required, but missing", where(key));
  return to_integers(*value, range, where(key));
}

GenerationConfig parse_generation_config(std::string_view text, std::string_view file) {
  const JsonObject root = JsonObject::parse(text, file);
  constexpr IntegerRange kIds{0, INT32_MAX};
  GenerationConfig config;
  config.eos_token_ids = root.find_integer_or_integers("eos_token_id", kIds);
  config.bos_token_id = root.find_integer("bos_token_id", kIds);
  config.pad_token_id = root.find_integer("pad_token_id", kIds);
  config.do_sample = root.find_boolean("do_sample");
  config.temperature = root.find_number("temperature", {0, 100});
  config.top_p = root.find_number("top_p", {0, 1});
  config.min_p = root.find_number("min_p", {0, 1});
  config.top_k = root.find_integer("top_k", {0, INT32_MAX});
  config.repetition_penalty = root.find_number("repetition_penalty", {1e-3, 1e3});
  return config;
}

GenerationConfig load_generation_config(const std::filesystem::path& folder) {
  const auto path = folder / "generation_config.json";
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) return {};
  const auto file = value_or_throw(base::MappedFile::open(path));
  return parse_generation_config({reinterpret_cast<const char*>(file.bytes().data()), file.size()});
}

}  // namespace palimpsest::formats
