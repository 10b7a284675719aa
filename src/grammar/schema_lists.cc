#include <algorithm>
#include <bit>
#include <set>

#include "base/error.h"
#include "grammar/json_formats.h"
#include "grammar/json_schema.h"
#include "grammar/schema_words.h"
#include "text/json_text.h"

// Arrays and objects.

namespace palimpsest::grammar {
namespace {

using Json = SchemaJson;

constexpr std::size_t kMostOptional = 1'000;  ///< each is a way to go on at once

}  // namespace

ExprId SchemaRules::array(const Json& schema, const std::string& path) {
  const Json* prefix = schema.contains("prefixItems") ? &schema["prefixItems"] : nullptr;
  const Json* items = schema.contains("items") ? &schema["items"] : nullptr;
  std::string items_path = path + "/items", prefix_path = path + "/prefixItems";
  if (items && items->is_array()) {  // as drafts before 2020 wrote it
    if (prefix) refuse(path, "a list of items beside prefixItems");
    prefix = items;
    prefix_path = path + "/items";
    items = schema.contains("additionalItems") ? &schema["additionalItems"] : nullptr;
    items_path = path + "/additionalItems";
  }
  if (prefix && !prefix->is_array()) refuse(prefix_path, "not a list");
  const std::int64_t least = count_in(schema, "minItems", path).value_or(0);
  std::int64_t most = count_in(schema, "maxItems", path).value_or(kNoEnd);
  const auto fixed = static_cast<std::int64_t>(prefix ? prefix->size() : 0);
  if (items && items->is_boolean() && !items->get<bool>())
    most = most == kNoEnd ? fixed : std::min(most, fixed);
  if (most != kNoEnd && most < least) return g_.nothing();
  if (schema.contains("uniqueItems") && !schema["uniqueItems"].is_boolean()) refuse(path, "uniqueItems is neither true nor false");
  if (schema.contains("uniqueItems") && schema["uniqueItems"] == true && (most == kNoEnd || most > 1)) {
    if (prefix) refuse(path, "uniqueItems beside a list of items is not supported");
    return unique_items(schema, path, least, most);
  }
  const auto item = [&](std::int64_t i) {
    if (i < fixed)
      return g_.call(
          rule_of((*prefix)[static_cast<std::size_t>(i)], fmt::format("{}/{}", prefix_path, i)));
    return g_.call(items ? rule_of(*items, items_path) : any_value());
  };
  // From the back: what may follow i items, i > 0.
  const auto first_free = std::max<std::int64_t>(fixed, 1);
  ExprId tail = g_.empty();
  if (most == kNoEnd || most > first_free) {
    try {
      tail = g_.repeat(g_.sequence({comma(), item(fixed)}),
                       std::max<std::int64_t>(0, least - first_free),
                       most == kNoEnd ? kNoEnd : most - first_free);
    } catch (Error& error) {
      throw error.add_context(path);
    }
  }
  for (std::int64_t i = std::min(fixed, most == kNoEnd ? fixed : most) - 1; i > 0; --i) {
    const ExprId on = g_.sequence({comma(), item(i), tail});
    tail = i >= least ? g_.optional(on) : on;
  }
  ExprId list = g_.empty();
  if (most != 0) {
    list = g_.sequence({item(0), tail, space()});
    if (least == 0) list = g_.optional(list);
  }
  return g_.sequence({g_.literal("["), space(), list, g_.literal("]")});
}

SchemaRules::Members SchemaRules::members_of(const Json& schema, const std::string& path) {
  static const Json kAnything(true);
  Members members;
  const Json* others =
      schema.contains("additionalProperties") ? &schema["additionalProperties"] : nullptr;
  members.others = {"", false, others ? others : &kAnything, path + "/additionalProperties"};
  const bool closed = others && others->is_boolean() && !others->get<bool>();
  std::vector<std::string> required;
  if (schema.contains("required")) {
    if (!schema["required"].is_array()) refuse(path, "required is not a list");
    for (const Json& name : schema["required"]) {
      if (!name.is_string()) refuse(path, "required holds something that is not a string");
      required.push_back(name.get<std::string>());
    }
  }
  const auto is_required = [&](const std::string& name) {
    return std::find(required.begin(), required.end(), name) != required.end();
  };
  std::size_t optional = 0;
  if (schema.contains("properties")) {
    if (!schema["properties"].is_object()) refuse(path, "properties is not an object");
    for (const auto& [name, of] : schema["properties"].items()) {
      members.list.push_back({name, is_required(name), &of, path + "/properties/" + name});
      optional += members.list.back().required ? 0 : 1;
    }
  }
  if (optional > kMostOptional)
    refuse(path, fmt::format("{} optional properties, but at most {} are taken", optional,
                             kMostOptional));
  for (const std::string& name : required) {
    const auto same = [&](const Member& m) { return m.name == name; };
    if (std::any_of(members.list.begin(), members.list.end(), same)) continue;
    static const Json kNothing(false);
    members.list.push_back(
        {name, true, closed ? &kNothing : members.others.schema, members.others.path});
  }
  // Where nothing is said about others they stay away, unless there is nothing else.
  members.open = others ? !closed : members.list.empty();
  if (schema.contains("propertyNames")) restrict_names(schema, path, members);
  return members;
}

/// What propertyNames says: names that are listed become members, others are kept for their schema.
void SchemaRules::restrict_names(const Json& schema, const std::string& path, Members& members) {
  const std::string at = path + "/propertyNames";
  Json names = follow(schema["propertyNames"], at);
  if (names == true) return;
  if (names == false) names = Json{{"enum", Json::array()}};
  else check_keywords(names, at);
  spell_out_nullable(names);
  for (const char* key : {"$ref", "allOf", "anyOf", "oneOf"})
    if (names.contains(key)) refuse(at, fmt::format("{} is not supported here", key));
  // Without a type, what is said of other types says nothing of names.
  const bool strings = !names.contains("type") || has_type("", types_of(names, at));
  if (strings && !names.contains("enum") && !names.contains("const")) {
    const auto says = [&](const char* key) { return names.contains(key); };
    if (!says("pattern") && !says("minLength") && !says("maxLength") && format_regex(names).empty()) return;
    if (!members.list.empty()) refuse(at, "beside properties or required, names can be listed only (enum)");
    members.names = &keep(std::move(names));
    return;
  }
  std::vector<std::string> allowed;
  if (strings) {
    for (const Json& name : listed_values(names, at))
      if (name.is_string()) allowed.push_back(name.get<std::string>());
  }
  const std::set<std::string> known(allowed.begin(), allowed.end());
  const auto is_allowed = [&](const Member& m) { return known.contains(m.name); };
  static const Json kNothing(false);
  std::erase_if(members.list, [&](const Member& m) { return !m.required && !is_allowed(m); });
  for (Member& m : members.list)
    if (!is_allowed(m)) m.schema = &kNothing;
  std::set<std::string> there;
  for (const Member& m : members.list) there.insert(m.name);
  for (const std::string& name : allowed) {
    if (members.open && there.insert(name).second) members.list.push_back({name, false, members.others.schema, members.others.path});
  }
  if (members.list.size() > kMostOptional) refuse(at, fmt::format("{} names, but at most {} are taken", members.list.size(), kMostOptional));
  members.open = false;
}

/// Parts in their order with commas between, of which `least` to `most` are written.
struct SchemaRules::List {
  std::vector<std::pair<ExprId, bool>> parts;  ///< whether it has to be there
  std::optional<ExprId> other;                 ///< behind them any number of these, which may be equal
  std::int64_t least = 0, most = kNoEnd;
};

ExprId SchemaRules::in_order(const List& list, const std::string& path) {
  const auto [least, most] = std::pair(list.least, list.most);
  // Beyond `cap` it does not matter how many there are.
  const std::int64_t cap = most == kNoEnd ? least : most;
  const auto count = static_cast<std::int64_t>(list.parts.size());
  const auto more = [&](std::int64_t n) { return std::min(n + 1, cap); };
  const auto others = [&](std::int64_t n, bool first) {
    // Equal ones may count once: of those that have to be there they can be but one.
    if (least - n > (list.other ? 1 : 0) || (most != kNoEnd && n > most)) return g_.nothing();
    const std::int64_t up_to = most == kNoEnd ? kNoEnd : most - n;
    if (!list.other || up_to == 0) return g_.empty();
    const ExprId next = g_.sequence({comma(), *list.other});
    if (!first) return g_.repeat(next, std::max<std::int64_t>(0, least - n), up_to);
    const ExprId some = g_.sequence({*list.other, g_.repeat(next, 0, up_to == kNoEnd ? kNoEnd : up_to - 1), space()});
    return least > 0 ? some : g_.optional(some);
  };
  // What may follow where n > 0 were written (tail) or none was (first), from the back.
  std::vector<ExprId> tail;
  for (std::int64_t n = 0; n <= std::min(cap, count); ++n) tail.push_back(g_.sequence({others(n, false), space()}));
  ExprId first = others(0, true);
  for (std::int64_t i = count; i-- > 0;) {
    const auto& [part, required] = list.parts[static_cast<std::size_t>(i)];
    std::vector<ExprId> rest;
    for (const ExprId expr : tail) rest.push_back(g_.call(g_.add_rule(name_ + path, expr)));
    const auto take = [&](std::int64_t n, ExprId front) {
      return most != kNoEnd && n >= most ? g_.nothing() : g_.sequence({front, rest[static_cast<std::size_t>(more(n))]});
    };
    const ExprId alone = take(0, part), with_comma = g_.sequence({comma(), part});
    first = required ? alone : g_.choice({alone, g_.call(g_.add_rule(name_ + path, first))});
    tail.resize(static_cast<std::size_t>(std::min(cap, i) + 1));
    for (std::int64_t n = 0; n < static_cast<std::int64_t>(tail.size()); ++n) {
      const ExprId taken = take(n, with_comma), left = rest[static_cast<std::size_t>(n)];
      tail[static_cast<std::size_t>(n)] = required ? taken : g_.choice({taken, left});
    }
  }
  return first;
}

/// Items that are all different: of a few values, in any order where that is not too much, else in the
/// order in which the schema has them.
ExprId SchemaRules::unique_items(const Json& schema, const std::string& path, std::int64_t least,
                                 std::int64_t most) {
  constexpr std::size_t kMostSets = 2'000;
  const std::string at = path + "/items";
  const Json items = schema.contains("items") ? follow(schema["items"], at) : Json(true);
  std::vector<Json> values;
  bool listed = items == false;
  if (items.is_object() && (items.contains("const") || items.contains("enum"))) {
    values = listed_values(items, at);
    listed = true;
  } else if (items.is_object() && says_only(items, "type")) {
    const std::vector<std::string> types = types_of(items, at);
    listed = std::all_of(types.begin(), types.end(), [](const auto& type) { return type == "boolean" || type == "null"; });
    for (const std::string& type : types)
      for (const Json& value : type == "null" ? std::vector<Json>{nullptr} : std::vector<Json>{false, true}) values.push_back(value);
  }
  if (!listed) refuse(path, "uniqueItems is supported where items are an enum, a const, booleans or null, or maxItems is at most 1");
  ValueKeys seen;
  std::erase_if(values, [&](const Json& value) { return !seen.insert(value_key(value)).second; });
  const auto count = static_cast<std::int64_t>(values.size());
  most = most == kNoEnd ? count : std::min(most, count);
  if (least > most) return g_.nothing();
  List list{.parts = {}, .other = {}, .least = least, .most = most < count ? most : kNoEnd};
  for (const Json& value : values) list.parts.emplace_back(g_.literal(value.dump()), false);
  double sets = 0, of_size = 1;  // of fewer than `most` values
  for (std::int64_t n = 0; n < most; ++n) {
    sets += of_size;
    of_size = of_size * static_cast<double>(count - n) / static_cast<double>(n + 1);
  }
  ExprId inside = 0;
  if (count > 64 || sets > kMostSets) {
    inside = in_order(list, path);
  } else {
    std::map<std::uint64_t, RuleId> rules = {{0, g_.add_rule(name_ + path)}};  // by what was written
    for (std::vector<std::uint64_t> todo = {0}; !todo.empty();) {
      const std::uint64_t written = todo.back();
      todo.pop_back();
      const std::int64_t n = std::popcount(written);
      std::vector<ExprId> ways;
      if (n >= least) ways.push_back(n == 0 ? g_.empty() : space());
      for (std::size_t i = 0; i < list.parts.size() && n < most; ++i) {
        const std::uint64_t with = written | std::uint64_t{1} << i;
        if (with == written) continue;
        const auto [it, is_new] = rules.emplace(with, 0);
        if (is_new) {
          it->second = g_.add_rule(name_ + path);
          todo.push_back(with);
        }
        ways.push_back(g_.sequence({n == 0 ? g_.empty() : comma(), list.parts[i].first, g_.call(it->second)}));
      }
      g_.define(rules[written], g_.choice(std::move(ways)));
    }
    inside = g_.call(rules[0]);
  }
  return g_.sequence({g_.literal("["), space(), inside, g_.literal("]")});
}

ExprId SchemaRules::object(const Json& schema, const std::string& path) {
  const Members members = members_of(schema, path);
  List list{.parts = {},
            .other = {},
            .least = count_in(schema, "minProperties", path).value_or(0),
            .most = count_in(schema, "maxProperties", path).value_or(kNoEnd)};
  if (list.most != kNoEnd && list.most < list.least) return g_.nothing();
  if (members.list.empty() && members.open && !schema.contains("additionalProperties") && !members.names && list.least == 0 && list.most == kNoEnd)
    return g_.call(any_object());
  const auto known = static_cast<std::int64_t>(members.list.size());
  if (list.least > known + (members.open ? 1 : 0)) {
    if (!members.open) return g_.nothing();
    refuse(path, fmt::format("minProperties of {} is more than 1 beyond the {} names that are listed: nothing keeps others apart", list.least, known));
  }
  if (!members.open && list.most >= known) list.most = kNoEnd;  // says nothing
  for (const Member& m : members.list)
    list.parts.emplace_back(member(g_.literal(text::quote_json(m.name)), g_.call(rule_of(*m.schema, m.path))), m.required);
  if (members.open) {
    const ExprId key = members.names ? string(*members.names, path + "/propertyNames", Spelling::kJson) : other_key(members.list);
    list.other = member(key, g_.call(rule_of(*members.others.schema, members.others.path)));
  }
  return g_.sequence({g_.literal("{"), space(), in_order(list, path), g_.literal("}")});
}

/// A key that is none of the declared ones: letter by letter along them, and off.
ExprId SchemaRules::other_key(const std::vector<Member>& declared) {
  struct Place {
    std::map<char32_t, std::size_t> next;
    bool taken = false;
  };
  const CharSet plain = plain_characters();
  std::vector<Place> places(1);
  for (const Member& m : declared) {
    const std::u32string name = code_points(m.name);
    // Keys are written without escapes, so that those that need them cannot be met.
    if (!std::all_of(name.begin(), name.end(), [&](char32_t c) { return plain.contains(c); }))
      continue;
    std::size_t at = 0;
    for (const char32_t c : name) {
      const auto it = places[at].next.find(c);
      if (it != places[at].next.end()) {
        at = it->second;
        continue;
      }
      places[at].next.emplace(c, places.size());
      at = places.size();
      places.emplace_back();
    }
    places[at].taken = true;
  }
  const ExprId quote = g_.literal("\"");
  const ExprId off = g_.call(
      g_.add_rule("other key", g_.sequence({g_.repeat(g_.chars(plain), 0, kNoEnd), quote}), true));
  std::vector<RuleId> rules;
  for (std::size_t i = 0; i < places.size(); ++i) rules.push_back(g_.add_rule("other key", true));
  for (std::size_t i = 0; i < places.size(); ++i) {
    CharSet rest = plain;
    std::vector<ExprId> ways;
    CharSet along;
    for (const auto& [c, to] : places[i].next) {
      along.add(c, c);
      ways.push_back(g_.sequence({g_.chars(CharSet::of(c)), g_.call(rules[to])}));
    }
    ways.push_back(g_.sequence({g_.chars(rest.remove(along)), off}));
    if (!places[i].taken) ways.push_back(quote);
    g_.define(rules[i], g_.choice(std::move(ways)));
  }
  return g_.sequence({quote, g_.call(rules[0])});
}

}  // namespace palimpsest::grammar
