#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/json_schema.h"

// The keywords of JSON Schema, one at a time.

namespace palimpsest::grammar {

/// Throws Error{kInvalidRequest}: "PATH: what".
[[noreturn]] void refuse(const std::string& path, const std::string& what);

/// Refuses what is no schema, and keywords that would change what is valid but are not supported.
void check_keywords(const SchemaJson& schema, const std::string& path);
/// Whether a keyword leaves open what is valid.
bool is_annotation(const std::string& key);
/// Whether `keyword` is there, and beside it annotations alone.
bool says_only(const SchemaJson& schema, const char* keyword);

/// A text that two values share if JSON takes them for equal: the order of members does not count,
/// nor whether 1 is written 1.0.
std::string value_key(const SchemaJson& value);
using ValueKeys = std::unordered_set<std::string>;
template <class List>
ValueKeys value_keys(const List& list) {
  ValueKeys keys;
  for (const SchemaJson& value : list) keys.insert(value_key(value));
  return keys;
}

/// The types it allows: those of `type`, or those that its other keywords are about; empty: all.
std::vector<std::string> types_of(const SchemaJson& schema, const std::string& path);
/// OpenAPI 3.0's `nullable` as one more type where it counts, beside `type`; takes it away.
void spell_out_nullable(SchemaJson& schema);
/// "string", "number", "boolean", "null", "object", "array".
std::string_view json_type(const SchemaJson& value);
/// "integer" is a type here: of numbers without fraction.
bool has_type(const SchemaJson& value, const std::vector<std::string>& types);

/// A whole number that is not negative.
std::optional<std::int64_t> count_in(const SchemaJson& schema, const char* key,
                                     const std::string& path);
std::string text_in(const SchemaJson& schema, const char* key, const std::string& path);
/// A number in decimal notation without exponent.
std::string decimal_text(const SchemaJson& number);

/// Characters that may stand in a JSON string as they are.
CharSet plain_characters();
/// One of `texts`, beginnings that they share once; nothing when there are none.
ExprId literals(Grammar& grammar, std::vector<std::string> texts);

}  // namespace palimpsest::grammar
