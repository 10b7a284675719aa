#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The body of a request, read field by field. A field that is absent or null was not given; unknown
// fields are nobody's business; impossible values are an ApiError with status 400 and the field's
// name.

namespace palimpsest::server {

using Json = nlohmann::ordered_json;

/// An object from JSON text. ApiError 400 for what is no JSON (with the place), nested more than
/// text::kMaxJsonDepth deep, not UTF-8, or no object.
Json parse_object(std::string_view text);
/// JSON text; always valid UTF-8.
std::string dump(const Json& json);

/// Null when absent or null.
const Json* field(const Json& object, const char* name);
std::optional<double> number(const Json& object, const char* name, double least, double most);
std::optional<std::int64_t> integer(const Json& object, const char* name, std::int64_t least,
                                    std::int64_t most);
std::optional<bool> boolean(const Json& object, const char* name);
std::optional<std::string> string(const Json& object, const char* name);
/// The string that must be there; ApiError 400 names it WHERE.NAME.
std::string required(const Json& object, const char* name, const std::string& where);
/// A list of ids below `vocab_size`.
std::vector<std::int32_t> ids(const Json& list, const std::string& name, std::int64_t vocab_size);
[[noreturn]] void refuse(const std::string& name, const std::string& text);

}  // namespace palimpsest::server
