// Filters on sequences and mappings.

#include <algorithm>
#include <array>
#include <charconv>

#include "text/template/characters.h"
#include "text/template/evaluator.h"
#include "text/template/filters.h"
#include "text/template/methods.h"
#include "text/template/operators.h"
#include "text/template/printing.h"

namespace palimpsest::text::jinja {
namespace {

using Names = std::string_view;

Value length(Evaluator&, const Value& input, const Arguments& arguments) {
  read_arguments("length", arguments, std::array<Names, 0>{});
  const auto size = length_of(input);
  if (!size) raise("object of type '{}' has no len()", type_name(input));
  return Value::of_int(*size);
}

// ---- attributes by path
// -------------------------------------------------------------------------------------------------

/// "address.city", 0: the path that map, sort, selectattr and join take. Parts of digits are
/// indices.
std::vector<Value> attribute_path(Evaluator& e, const Value& attribute) {
  std::vector<Value> parts;
  if (attribute.is(Kind::kMissing) || attribute.is(Kind::kNone)) return parts;
  if (!attribute.is_text()) return {attribute};
  std::string_view rest = attribute.text();
  for (;;) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index =
        error == std::errc() && end == part.data() + part.size() && !part.starts_with('-');
    parts.push_back(is_index ? Value::of_int(index) : e.heap().text_view(part));
    if (dot == rest.npos) return parts;
    rest.remove_prefix(dot + 1);
  }
}

Value follow(Evaluator& e, Value value, const std::vector<Value>& path,
             const Value& fallback = {}) {
  for (const Value& part : path) {
    value = e.get_item(value, part);
    if (value.is(Kind::kUndefined) && !fallback.is(Kind::kMissing) && !fallback.is(Kind::kNone))
      value = fallback;
  }
  return value;
}

Value without_case(Evaluator& e, const Value& value) {
  return value.is_text() ? e.heap().text(to_lower(value.text())) : value;
}

/// What sort, unique, min and max compare.
std::vector<Value> keys_of(Evaluator& e, std::span<const Value> items, const Value& attribute,
                           bool case_sensitive) {
  const std::vector<Value> path = attribute_path(e, attribute);
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    const Value key = follow(e, item, path);
    keys.push_back(case_sensitive ? key : without_case(e, key));
  }
  return keys;
}

// ---- picking
// ------------------------------------------------------------------------------------------------------------

Value first(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("first", arguments, std::array<Names, 0>{});
  if (input.is(Kind::kIterator)) {
    auto& items = input.iterator->items;
    if (items.empty()) return e.heap().undefined("No first item, sequence was empty.");
    const Value item = items[0];
    items = items.subspan(1);
    return item;
  }
  const auto items = iterate(input, e.heap());
  return items.empty() ? e.heap().undefined("No first item, sequence was empty.") : items[0];
}

bool is_reversible(const Value& value) {
  return !value.is(Kind::kIterator) && !value.is(Kind::kLoop);
}

Value last(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("last", arguments, std::array<Names, 0>{});
  if (!is_reversible(input)) raise("'{}' object is not reversible", type_name(input));
  const auto items = iterate(input, e.heap());
  return items.empty() ? e.heap().undefined("No last item, sequence was empty.") : items.back();
}

template <bool largest>
Value extreme(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [case_sensitive, attribute] =
      read_arguments("min", arguments, std::array<Names, 2>{"case_sensitive", "attribute"});
  const auto items = iterate(input, e.heap());
  if (items.empty()) return e.heap().undefined("No aggregated item, sequence was empty.");
  const auto keys = keys_of(e, items, attribute, is_true(case_sensitive));
  std::size_t best = 0;
  for (std::size_t i = 1; i < keys.size(); ++i) {
    if (ordered(largest ? Operator::kGreater : Operator::kLess, keys[i], keys[best], e.budget()))
      best = i;
  }
  return items[best];
}

Value sum(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [attribute, start] =
      read_arguments("sum", arguments, std::array<Names, 2>{"attribute", "start"});
  const std::vector<Value> path = attribute_path(e, attribute);
  Value total = start.is(Kind::kMissing) ? Value::of_int(0) : start;
  if (total.is_text()) raise("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : iterate(input, e.heap()))
    total = arithmetic(Operator::kAdd, total, follow(e, item, path), e.heap());
  return total;
}

Value join(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [separator, attribute] =
      read_arguments("join", arguments, std::array<Names, 2>{"d", "attribute"});
  const Value between = separator.is(Kind::kMissing) ? e.heap().text("") : separator;
  const std::vector<Value> path = attribute_path(e, attribute);
  TextBuilder out(e.heap());
  bool is_first = true;
  for (const Value& item : iterate(input, e.heap())) {
    if (!is_first) out.append(between);
    is_first = false;
    out.append(follow(e, item, path));
    e.budget().step();
    if (out.size() > e.budget().limits().value_bytes) e.budget().charge(out.size());
  }
  return out.value();
}

// ---- whole sequences
// ----------------------------------------------------------------------------------------------------

Value list(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("list", arguments, std::array<Names, 0>{});
  return e.heap().list(iterate(input, e.heap()));
}

Value items(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("items", arguments, std::array<Names, 0>{});
  std::vector<Value> pairs;
  if (!input.is(Kind::kUndefined)) {
    if (!input.is(Kind::kDict)) raise("Can only get item pairs from a mapping.");
    for (const DictEntry& entry : input.dict->entries)
      pairs.push_back(e.heap().pair(entry.key, entry.value));
  }
  return e.heap().iterator(pairs);
}

Value reverse(Evaluator& e, const Value& input, const Arguments& arguments) {
  read_arguments("reverse", arguments, std::array<Names, 0>{});
  if (input.is_text()) return slice(input, {}, {}, Value::of_int(-1), e.heap());
  const auto walked = try_iterate(input, e.heap());
  if (!walked) raise("argument must be iterable");
  std::vector<Value> reversed(walked->rbegin(), walked->rend());
  if (!is_reversible(input))
    return e.heap().list(reversed);  // an iterator is read into a list first
  return e.heap().iterator(reversed, true);
}

Value sort(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [reverse, case_sensitive, attribute] = read_arguments(
      "sort", arguments, std::array<Names, 3>{"reverse", "case_sensitive", "attribute"});
  const auto items = iterate(input, e.heap());
  if (attribute.is_text() && attribute.text().find(',') != std::string_view::npos) {
    raise_unsupported("the filter 'sort' by several attributes is not supported");
  }
  return e.heap().list(sorted(items, keys_of(e, items, attribute, is_true(case_sensitive)),
                              is_true(reverse), e.budget()));
}

Value dict_sort(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [case_sensitive, by, reverse] = read_arguments(
      "dictsort", arguments, std::array<Names, 3>{"case_sensitive", "by", "reverse"});
  require_defined(input);
  const std::string_view what = by.is_text() ? by.text() : "key";
  if (what != "key" && what != "value") raise("You can only sort by either \"key\" or \"value\"");
  if (!input.is(Kind::kDict)) raise("'{}' object has no attribute 'items'", type_name(input));
  std::vector<Value> pairs, keys;
  for (const DictEntry& entry : input.dict->entries) {
    pairs.push_back(e.heap().pair(entry.key, entry.value));
    const Value& key = what == "key" ? entry.key : entry.value;
    keys.push_back(is_true(case_sensitive) ? key : without_case(e, key));
  }
  return e.heap().list(sorted(pairs, keys, is_true(reverse), e.budget()));
}

Value unique(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [case_sensitive, attribute] =
      read_arguments("unique", arguments, std::array<Names, 2>{"case_sensitive", "attribute"});
  const auto items = iterate(input, e.heap());
  const auto keys = keys_of(e, items, attribute, is_true(case_sensitive));
  std::vector<Value> seen, kept;
  for (std::size_t i = 0; i < items.size(); ++i) {
    require_hashable(keys[i]);
    if (std::any_of(seen.begin(), seen.end(),
                    [&](const Value& key) { return equal(key, keys[i], e.budget()); }))
      continue;
    seen.push_back(keys[i]);
    kept.push_back(items[i]);
  }
  return e.heap().iterator(kept);
}

Value batch(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [size, fill] =
      read_arguments("batch", arguments, std::array<Names, 2>{"linecount", "fill_with"}, 1);
  const std::int64_t count = integer_argument(size);
  if (count < 1) raise_unsupported("the filter 'batch' with lines of {} is not supported", count);
  std::vector<Value> lines, line;
  for (const Value& item : iterate(input, e.heap())) {
    if (static_cast<std::int64_t>(line.size()) == count) {
      lines.push_back(e.heap().list(line));
      line.clear();
    }
    line.push_back(item);
  }
  if (!line.empty()) {
    const bool fills = !fill.is(Kind::kMissing) && !fill.is(Kind::kNone);
    if (fills) e.budget().charge(static_cast<std::uint64_t>(count) * sizeof(Value));
    if (fills) line.resize(static_cast<std::size_t>(count), fill);
    lines.push_back(e.heap().list(line));
  }
  return e.heap().iterator(lines);
}

Value attribute(Evaluator& e, const Value& input, const Arguments& arguments) {
  const auto [name] = read_arguments("attr", arguments, std::array<Names, 1>{"name"}, 1);
  require_defined(input);
  if (input.is(Kind::kDict) || !name.is_text())
    return e.heap().undefined(input, name);  // attributes, never elements
  return e.get_attribute(input, name);
}

// ---- by filter or test
// --------------------------------------------------------------------------------------------------

Value map(Evaluator& e, const Value& input, const Arguments& arguments) {
  std::vector<Value> results;
  if (!is_true(input)) return e.heap().iterator(results);
  if (arguments.positional.empty()) {
    Value attribute, fallback;
    for (const NamedValue& named : arguments.named) {
      if (named.name != "attribute" && named.name != "default")
        raise("Unexpected keyword argument '{}'", named.name);
      (named.name == "attribute" ? attribute : fallback) = named.value;
    }
    if (attribute.is(Kind::kMissing)) raise("map requires a filter argument");
    const std::vector<Value> path = attribute_path(e, attribute);
    for (const Value& item : iterate(input, e.heap()))
      results.push_back(follow(e, item, path, fallback));
    return e.heap().iterator(results);
  }
  const Value& name = arguments.positional[0];
  if (!name.is_text()) raise("the name of a filter is a string, not '{}'", type_name(name));
  const FilterFunction& filter = require_filter(name.text());
  const Arguments rest{arguments.positional.subspan(1), arguments.named};
  for (const Value& item : iterate(input, e.heap()))
    results.push_back(filter.function(e, item, rest));
  return e.heap().iterator(results);
}

template <bool keeps, bool by_attribute>
Value select(Evaluator& e, const Value& input, const Arguments& arguments) {
  std::vector<Value> kept;
  if (!is_true(input)) return e.heap().iterator(kept);
  std::vector<Value> path;
  std::size_t next = 0;
  if (by_attribute) {
    if (arguments.positional.empty()) raise("Missing parameter for attribute name");
    path = attribute_path(e, arguments.positional[next++]);
  }
  const TestFunction* test = nullptr;
  Arguments rest;
  if (next < arguments.positional.size()) {
    const Value& name = arguments.positional[next];
    if (!name.is_text()) raise("the name of a test is a string, not '{}'", type_name(name));
    test = &require_test(name.text());
    rest = {arguments.positional.subspan(next + 1), arguments.named};
  }
  for (const Value& item : iterate(input, e.heap())) {
    e.budget().step();
    const Value value = follow(e, item, path);
    if ((test != nullptr ? test->function(e, value, rest) : is_true(value)) == keeps)
      kept.push_back(item);
  }
  return e.heap().iterator(kept);
}

constexpr FilterFunction kFilters[] = {
    {"attr", attribute},
    {"batch", batch},
    {"count", length},
    {"dictsort", dict_sort},
    {"first", first},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"reverse", reverse},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

std::span<const FilterFunction> sequence_filters() {
  return kFilters;
}

}  // namespace palimpsest::text::jinja
