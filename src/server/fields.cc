#include "server/fields.h"

#include <fmt/format.h>

#include "server/api_error.h"
#include "text/json_text.h"

namespace palimpsest::server {

void refuse(const std::string& name, const std::string& text) {
  throw ApiError(400, fmt::format("{}: {}", name, text), name);
}

Json parse_object(std::string_view text) {
  // The library takes a zero byte for the end of its input; in JSON it has no place at all.
  if (const std::size_t zero = text.find('\0'); zero != text.npos)
    throw ApiError(400, fmt::format("the body is not JSON: a zero byte at {}", zero));
  const auto watch = [](int depth, Json::parse_event_t, Json&) {
    if (depth > text::kMaxJsonDepth) {
      throw ApiError(400, fmt::format("the body is nested more than {} deep", text::kMaxJsonDepth));
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    throw ApiError(400, fmt::format("the body is not JSON: {}", error.what()));
  }
  if (!json.is_object()) throw ApiError(400, "the body is not a JSON object");
  return json;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const Json* field(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<double> number(const Json& object, const char* name, double least, double most) {
  const Json* value = field(object, name);
  if (!value) return std::nullopt;
  if (!value->is_number()) refuse(name, "not a number");
  const double x = value->get<double>();
  if (!(x >= least && x <= most))
    refuse(name, fmt::format("{} is out of range, must be from {} to {}", x, least, most));
  return x;
}

std::optional<std::int64_t> integer(const Json& object, const char* name, std::int64_t least,
                                    std::int64_t most) {
  const Json* value = field(object, name);
  if (!value) return std::nullopt;
  if (!value->is_number_integer()) refuse(name, "not a whole number");
  // Beyond the signed range the library keeps an unsigned one.
  const bool huge = value->is_number_unsigned() &&
                    value->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const std::int64_t x = huge ? INT64_MAX : value->get<std::int64_t>();
  if (huge || x < least || x > most) {
    refuse(name, fmt::format("{} is out of range, must be from {} to {}", value->dump(), least, most));
  }
  return x;
}

std::optional<bool> boolean(const Json& object, const char* name) {
  const Json* value = field(object, name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "neither true nor false");
  return value->get<bool>();
}

std::optional<std::string> string(const Json& object, const char* name) {
  const Json* value = field(object, name);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(name, "not a string");
  return value->get<std::string>();
}

std::string required(const Json& object, const char* name, const std::string& where) {
  const Json* value = object.is_object() ? field(object, name) : nullptr;
  if (!value || !value->is_string()) refuse(where + "." + name, "not a string");
  return value->get<std::string>();
}

std::vector<std::int32_t> ids(const Json& list, const std::string& name, std::int64_t vocab_size) {
  if (!list.is_array()) refuse(name, "not a list of token ids");
  std::vector<std::int32_t> out;
  out.reserve(list.size());
  for (const Json& id : list) {
    const bool whole = id.is_number_integer() &&
                       !(id.is_number_unsigned() && id.get<std::uint64_t>() > INT32_MAX);
    if (!whole || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocab_size) {
      refuse(name, fmt::format("entry {} is no id of the vocabulary of {}", out.size(), vocab_size));
    }
    out.push_back(id.get<std::int32_t>());
  }
  return out;
}

}  // namespace palimpsest::server
