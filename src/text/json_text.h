#pragma once

// JSON as chat formats spell it: byte for byte what Python's json module writes, and the lenient
// reading of arguments that a caller gave as source text.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::text {

/// Nesting beyond this is an error everywhere.
inline constexpr int kMaxJsonDepth = 256;

enum class JsonStyle {
  kSpaced,   ///< json.dumps(value, ensure_ascii=False): ", " and ": "
  kCompact,  ///< the same with separators (",", ":")
  kSorted,   ///< kCompact with the keys of every object in order
};

/// `json` (valid JSON) written anew. Of equal keys the last counts.
std::string rewrite_json(std::string_view json, JsonStyle style);

/// The quoted JSON string of `utf8` (valid UTF-8, kept as it is).
std::string quote_json(std::string_view utf8);

/// `utf8` escaped for the inside of a JSON string.
std::string escape_json(std::string_view utf8);

/// Whether `text` is one JSON value with nothing but white space around it, nested at most
/// kMaxJsonDepth deep.
bool is_json(std::string_view text);
/// The same, and the value is an object.
bool is_json_object(std::string_view text);

/// One member of an object as it stands in its source.
struct JsonMember {
  enum class Type { kString, kNumber, kBoolean, kNull, kObject, kArray };
  std::string key;
  Type type;
  std::string value;  ///< of a string: its decoded text; of anything else: its source
};

/// "string", "number", "boolean", "null", "object", "array".
std::string_view json_type_name(JsonMember::Type type);

/// The members of the object at the front of `source`, in order, equal keys included. As Python's
/// decoder with strict=False: control characters may stand in strings, NaN and Infinity are
/// numbers; text after the object is ignored. Nothing if there is no valid object.
std::optional<std::vector<JsonMember>> read_object_members(std::string_view source);

}  // namespace palimpsest::text
