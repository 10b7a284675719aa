#include <algorithm>

#include "base/error.h"
#include "grammar/json_schema.h"
#include "grammar/schema_words.h"

// Schemas that are made of others: $ref, allOf, anyOf, oneOf.

namespace palimpsest::grammar {
namespace {

using Json = SchemaJson;

constexpr std::size_t kMostWays = 256;

/// ~1 and ~0 of JSON pointers, %XX of URIs.
std::string unescape(std::string_view part, const std::string& path) {
  const auto digit = [&](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f') return (c | 32) - 'a' + 10;
    refuse(path, "$ref with a broken escape");
  };
  std::string out;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      out += part[++i] == '0' ? '~' : '/';
    } else if (part[i] == '%') {
      if (i + 2 >= part.size()) refuse(path, "$ref with a broken escape");
      out += static_cast<char>(digit(part[i + 1]) * 16 + digit(part[i + 2]));
      i += 2;
    } else {
      out += part[i];
    }
  }
  return out;
}

Json all_of(const Json& a, const Json& b) {
  if (a == b || b == true) return a;
  if (a == true) return b;
  return Json{{"allOf", Json::array({a, b})}};
}

/// Whether the schema says something about members beyond those in its `properties`.
bool bounds_others(const Json& schema) {
  return schema.contains("additionalProperties") && schema["additionalProperties"] != true &&
         !(schema["additionalProperties"].is_object() && schema["additionalProperties"].empty());
}

bool has_all_properties_of(const Json& schema, const Json& other) {
  if (!other.contains("properties") || !other["properties"].is_object()) return true;
  for (const auto& [name, ignored] : other["properties"].items()) {
    if (!schema.contains("properties") || !schema["properties"].contains(name)) return false;
  }
  return true;
}

/// What a schema says about the items of lists: the first ones, and all behind them.
struct ItemSchemas {
  Json::array_t first;
  Json others = true;

  const Json& at(std::size_t i) const { return i < first.size() ? first[i] : others; }
};

ItemSchemas items_of(const Json& schema, const std::string& path) {
  ItemSchemas out;
  const bool old = schema.contains("items") && schema["items"].is_array();
  if (old && schema.contains("prefixItems")) refuse(path, "a list of items beside prefixItems");
  if (const char* key = old ? "items" : "prefixItems"; schema.contains(key)) {
    if (!schema[key].is_array()) refuse(path, fmt::format("{} is not a list", key));
    out.first.assign(schema[key].begin(), schema[key].end());
  }
  if (const char* key = old ? "additionalItems" : "items"; schema.contains(key))
    out.others = schema[key];
  return out;
}

/// Where both say something: `others` of the one hold for what the other lists, too.
void merge_items(Json& into, const Json& from, const std::string& path) {
  const ItemSchemas a = items_of(into, path), b = items_of(from, path);
  Json first = Json::array();
  for (std::size_t i = 0; i < std::max(a.first.size(), b.first.size()); ++i)
    first.push_back(all_of(a.at(i), b.at(i)));
  into.erase("additionalItems");
  into.erase("prefixItems");
  if (!first.empty()) into["prefixItems"] = std::move(first);
  into["items"] = all_of(a.others, b.others);
}

bool is_about_items(const std::string& key) {
  return key == "items" || key == "prefixItems" || key == "additionalItems";
}

std::vector<Json> values_of(const Json& schema) {
  if (schema.contains("const")) return {schema["const"]};
  if (schema.contains("enum") && schema["enum"].is_array())
    return {schema["enum"].begin(), schema["enum"].end()};
  return {};
}

}  // namespace

/// What $ref names.
const Json& SchemaRules::target(const Json& schema, const std::string& path) {
  const std::string ref = text_in(schema, "$ref", path);
  if (!inner_id_.empty())
    refuse(path, fmt::format("$ref beside the $id in {} is not supported", inner_id_));
  if (!ref.starts_with('#')) refuse(path, fmt::format("$ref \"{}\" leaves the document", ref));
  std::string_view rest = std::string_view(ref).substr(1);
  const Json* at = &kept_.front();
  while (!rest.empty()) {
    if (rest.front() != '/') refuse(path, fmt::format("$ref \"{}\" is not a JSON pointer", ref));
    rest.remove_prefix(1);
    const std::string part = unescape(rest.substr(0, rest.find('/')), path);
    rest.remove_prefix(std::min(rest.find('/'), rest.size()));
    const Json* next = nullptr;
    if (at->is_object() && at->contains(part)) next = &(*at)[part];
    if (at->is_array()) {
      const bool number = !part.empty() && part.size() < 7 &&
                          part.find_first_not_of("0123456789") == std::string::npos;
      const std::size_t i = number ? std::stoul(part) : at->size();
      if (i < at->size()) next = &(*at)[i];
    }
    if (!next) refuse(path, fmt::format("$ref \"{}\" leads nowhere", ref));
    at = next;
  }
  return *at;
}

/// `schema` without $ref at its top.
Json SchemaRules::follow(const Json& schema, const std::string& path) {
  Json out = copied(schema);
  for (int hops = 0; out.is_object() && out.contains("$ref"); ++hops) {
    step();
    if (hops > 64) refuse(path, "$ref goes round in a circle");
    const Json& to = target(out, path);
    const bool alone = says_only(out, "$ref");
    out.erase("$ref");
    out = alone ? copied(to) : merged(std::move(out), to, path);
  }
  return out;
}

/// What both allow.
Json SchemaRules::merged(Json a, const Json& b_in, const std::string& path) {
  step();
  Json b = b_in.is_object() && b_in.contains("$ref") ? follow(b_in, path) : copied(b_in);
  for (Json* schema : {&a, &b}) {
    if (schema->is_boolean()) {
      if (!schema->get<bool>()) return false;
      return schema == &a ? b : a;
    }
    check_keywords(*schema, path);
    spell_out_nullable(*schema);
  }
  if ((bounds_others(a) && !has_all_properties_of(a, b)) ||
      (bounds_others(b) && !has_all_properties_of(b, a)))
    refuse(path, "additionalProperties beside properties of another schema is not supported");
  const auto about_items = [](const Json& schema) {
    return schema.contains("items") || schema.contains("prefixItems");
  };
  const bool items = about_items(a) && about_items(b);
  if (items) merge_items(a, b, path);
  for (const auto& [key, value] : b.items()) {
    if (items && is_about_items(key)) continue;
    merge_member(a, key, value, path);
    if (a.is_boolean()) break;
  }
  return a;
}

void SchemaRules::merge_member(Json& into, const std::string& key, const Json& value,
                               const std::string& path) {
  const auto it = into.find(key);
  if (it == into.end()) {
    into[key] = value;
    return;
  }
  Json& mine = *it;
  if (mine == value || is_annotation(key)) return;
  const auto bound = [&](bool larger) {
    if (!mine.is_number() || !value.is_number())
      refuse(path, fmt::format("{} is not a number", key));
    if ((mine < value) == larger) mine = value;
  };
  const auto common = [&](const Json& a, const Json& b) {
    const ValueKeys keys = value_keys(b);
    Json out = Json::array();
    for (const Json& x : a) {
      if (keys.contains(value_key(x))) out.push_back(x);
    }
    return out;
  };
  if (key == "properties" && mine.is_object() && value.is_object()) {
    for (const auto& [name, schema] : value.items())
      mine[name] = mine.contains(name) ? all_of(mine[name], schema) : schema;
  } else if (key == "additionalProperties") {
    mine = all_of(mine, value);
  } else if (key == "required" && mine.is_array() && value.is_array()) {
    for (const Json& name : value) {
      if (std::find(mine.begin(), mine.end(), name) == mine.end()) mine.push_back(name);
    }
  } else if (key == "type") {
    const auto types = [&](const Json& of) { return types_of(Json{{"type", of}}, path); };
    const std::vector<std::string> a = types(mine), b = types(value);
    Json both = Json::array();
    for (const std::string& type : a) {
      for (const std::string& other : b) {
        if (type == other) both.push_back(type);
        if ((type == "integer" && other == "number") || (type == "number" && other == "integer"))
          both.push_back("integer");
      }
    }
    if (both.empty())
      into = false;
    else
      mine = both;
  } else if (key.starts_with("min") || key == "exclusiveMinimum") {
    bound(true);
  } else if (key.starts_with("max") || key == "exclusiveMaximum") {
    bound(false);
  } else if (key == "enum" && mine.is_array() && value.is_array()) {
    mine = common(mine, value);
    if (mine.empty()) into = false;
  } else if (key == "const") {
    if (value_key(mine) != value_key(value)) into = false;
  } else if (key == "allOf" && mine.is_array() && value.is_array()) {
    mine.insert(mine.end(), value.begin(), value.end());
  } else if (key == "anyOf" || key == "oneOf") {
    into["allOf"].push_back(Json{{key, value}});
  } else if (key == "uniqueItems") {
    mine = (mine == true) || (value == true);
  } else {
    refuse(path, fmt::format("{} of two schemas together is not supported", key));
  }
}

/// Schemas without $ref, allOf, anyOf and oneOf at their top, of which one must hold.
std::vector<std::pair<Json, std::string>> SchemaRules::flatten(const Json& schema,
                                                               const std::string& path) {
  std::vector<std::pair<Json, std::string>> out;
  std::vector<std::pair<Json, std::string>> todo = {{copied(schema), path}};
  while (!todo.empty()) {
    step();
    auto [next, at] = std::move(todo.back());
    todo.pop_back();
    if (next.is_boolean()) {
      if (next.get<bool>()) out.emplace_back(Json::object(), at);
      continue;
    }
    check_keywords(next, at);
    if (next.contains("$ref")) {
      todo.emplace_back(follow(next, at), at);
    } else if (next.contains("anyOf") || next.contains("oneOf")) {
      // Before allOf, which may hold another anyOf and have to put it beside this one.
      const char* key = next.contains("anyOf") ? "anyOf" : "oneOf";
      if (key == std::string_view("oneOf")) check_exclusive(next[key], at);
      const Json ways = std::move(next[key]);
      next.erase(key);
      for (std::size_t i = ways.size(); i-- > 0;)
        todo.emplace_back(merged(copied(next), ways[i], fmt::format("{}/{}/{}", at, key, i)),
                          fmt::format("{}/{}/{}", at, key, i));
    } else if (next.contains("allOf")) {
      const Json all = std::move(next["allOf"]);
      next.erase("allOf");
      for (std::size_t i = 0; i < all.size(); ++i)
        next = merged(std::move(next), all[i], fmt::format("{}/allOf/{}", at, i));
      todo.emplace_back(std::move(next), at);
    } else {
      out.emplace_back(std::move(next), at);
    }
    if (todo.size() + out.size() > kMostWays)
      refuse(path, fmt::format("more than {} ways in one place", kMostWays));
  }
  return out;
}

/// What of a way of oneOf can keep values out that fit another.
struct SchemaRules::Way {
  bool never = false;
  std::vector<std::string> types;         ///< empty: all
  ValueKeys values;                       ///< of const or enum; empty: all
  std::map<std::string, ValueKeys> tags;  ///< required members with const or enum, of objects alone
};

SchemaRules::Way SchemaRules::way_of(const Json& schema, const std::string& path) {
  const Json flat = follow(schema, path);
  Way way;
  way.never = flat == false;
  if (!flat.is_object()) return way;
  const std::vector<Json> values = values_of(flat);
  way.values = value_keys(values);
  // What only follows from other keywords does not keep other types out.
  if (flat.contains("type") || !values.empty()) {
    way.types = types_of(flat, path);
    for (const Json& value : values) way.types.emplace_back(json_type(value));
    std::replace(way.types.begin(), way.types.end(), std::string("integer"), std::string("number"));
    std::sort(way.types.begin(), way.types.end());
    way.types.erase(std::unique(way.types.begin(), way.types.end()), way.types.end());
  }
  const bool objects = way.types == std::vector<std::string>{"object"};
  if (!objects || !flat.contains("properties") || !flat["properties"].is_object() ||
      !flat.contains("required") || !flat["required"].is_array())
    return way;
  const ValueKeys required = value_keys(flat["required"]);
  for (const auto& [name, of] : flat["properties"].items()) {
    if (!required.contains(value_key(name))) continue;
    ValueKeys tags = value_keys(values_of(follow(of, path)));
    if (!tags.empty()) way.tags.emplace(name, std::move(tags));
  }
  return way;
}

/// oneOf is written as anyOf is, so no value may be in two of its ways.
void SchemaRules::check_exclusive(const Json& ways, const std::string& path) {
  if (ways.size() > kMostWays) refuse(path, fmt::format("oneOf has more than {} ways", kMostWays));
  const auto apart = [](const ValueKeys& x, const ValueKeys& y) {
    const ValueKeys& few = x.size() < y.size() ? x : y;
    const ValueKeys& many = x.size() < y.size() ? y : x;
    return !few.empty() && std::none_of(few.begin(), few.end(),
                                        [&](const auto& key) { return many.contains(key); });
  };
  const auto exclusive = [&](const Way& a, const Way& b) {
    if (a.never || b.never || apart(a.values, b.values)) return true;
    const auto in_b = [&](const auto& t) {
      return std::find(b.types.begin(), b.types.end(), t) != b.types.end();
    };
    if (!a.types.empty() && !b.types.empty() && std::none_of(a.types.begin(), a.types.end(), in_b))
      return true;
    return std::any_of(a.tags.begin(), a.tags.end(), [&](const auto& tag) {
      const auto it = b.tags.find(tag.first);
      return it != b.tags.end() && apart(tag.second, it->second);
    });
  };
  std::vector<Way> known;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    known.push_back(way_of(ways[i], fmt::format("{}/oneOf/{}", path, i)));
    for (std::size_t j = 0; j < i; ++j) {
      if (exclusive(known[j], known[i])) continue;
      refuse(path,
             fmt::format("nothing shows that no value fits both oneOf/{} and oneOf/{}: give them "
                         "different types, or a required property with different const, or "
                         "write anyOf",
                         j, i));
    }
  }
}

}  // namespace palimpsest::grammar
