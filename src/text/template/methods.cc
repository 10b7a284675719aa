// The methods of strings, dicts, lists and loops.

#include "text/template/methods.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "text/template/characters.h"
#include "text/template/evaluator.h"
#include "text/template/format.h"
#include "text/template/operators.h"
#include "text/template/printing.h"
#include "text/template/registry.h"
#include "text/utf8.h"

namespace palimpsest::text::jinja {

Value strip(Heap& heap, const Value& text, const Value& chars, bool front, bool back) {
  std::string_view view = text.text();
  heap.budget().step(view.size() / 64);
  if (chars.is(Kind::kMissing) || chars.is(Kind::kNone)) {
    if (front) view = strip_front(view);
    if (back) view = strip_back(view);
  } else {
    if (!chars.is_text()) raise("strip arg must be None or str");
    heap.budget().step(chars.text().size());
    if (front) view = strip_front(view, chars.text());
    if (back) view = strip_back(view, chars.text());
  }
  Value value = heap.text_view(view);
  value.is_markup = text.is_markup;
  return value;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Unit unit = next_utf8(text.substr(i));
    const char32_t c = unit.code_point;
    std::size_t end = i + unit.size;
    if ((c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
        c == 0x2029) {
      if (c == '\r' && end < text.size() && text[end] == '\n') ++end;
      lines.push_back(text.substr(start, (keep_ends ? end : i) - start));
      start = end;
    }
    i = end;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::int64_t integer_argument(const Value& value) {
  require_defined(value);
  if (!value.is_integral())
    raise("'{}' object cannot be interpreted as an integer", type_name(value));
  return value.as_integer();
}

std::string repeat_space(Budget& budget, std::int64_t count) {
  const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0));
  budget.charge(size);
  return std::string(size, ' ');
}

void refuse_markup(const Value& text, std::string_view operation) {
  if (text.is_markup)
    raise_unsupported("'{}' of a string that is marked safe is not supported", operation);
}

namespace {

using Names = std::string_view;

std::string_view text_argument(const Value& value, std::string_view method) {
  require_defined(value);
  if (!value.is_text()) raise("{}() argument must be str, not {}", method, type_name(value));
  return value.text();
}

/// Part of `self`, or a change of it: markup if it is.
Value part(Evaluator& e, const Value& self, std::string_view view) {
  Value value = e.heap().text_view(view);
  value.is_markup = self.is_markup;
  return value;
}

/// Byte offset of `needle` in `text`, or npos; linear, whatever the texts.
std::size_t search(std::string_view text, std::string_view needle) {
  if (needle.empty()) return 0;
  const void* at = text.size() >= needle.size()
                       ? memmem(text.data(), text.size(), needle.data(), needle.size())
                       : nullptr;
  return at != nullptr ? static_cast<std::size_t>(static_cast<const char*>(at) - text.data())
                       : text.npos;
}

template <std::string (*change)(std::string_view)>
Value changed(Evaluator& e, const Value& self, const Arguments& arguments) {
  read_arguments("method", arguments, std::array<Names, 0>{});
  e.budget().step(self.text().size() / 16);
  return e.heap().text(change(self.text()), self.is_markup);
}

template <bool front, bool back>
Value stripped(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [chars] = read_arguments("strip", arguments, std::array<Names, 1>{"chars"});
  return strip(e.heap(), self, chars, front, back);
}

// ---- searching
// ----------------------------------------------------------------------------------------------------------

/// self[start:end], and how many characters lie before it. Empty where start is beyond the end.
struct Window {
  std::string_view text;
  std::int64_t before;
  bool exists;
};

Window window(const Value& self, const Value& start, const Value& end) {
  const auto length = static_cast<std::int64_t>(self.text_object->length);
  const auto resolve = [&](const Value& bound, std::int64_t absent) {
    if (bound.is(Kind::kMissing) || bound.is(Kind::kNone)) return absent;
    const std::int64_t index = integer_argument(bound);
    return index < 0 ? std::max<std::int64_t>(index < -length ? 0 : index + length, 0) : index;
  };
  const std::int64_t from = resolve(start, 0), to = std::min(resolve(end, length), length);
  if (from > to) return {{}, from, false};
  const std::size_t first = character_offset(self.text(), static_cast<std::size_t>(from));
  const std::string_view rest = self.text().substr(first);
  return {rest.substr(0, character_offset(rest, static_cast<std::size_t>(to - from))), from, true};
}

template <bool last, bool raises>
Value found_at(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [sub, start, end] =
      read_arguments("find", arguments, std::array<Names, 3>{"sub", "start", "end"}, 1);
  const std::string_view needle = text_argument(sub, "find");
  const Window w = window(self, start, end);
  std::size_t at = w.exists ? search(w.text, needle) : w.text.npos;
  if (last && at != w.text.npos) {
    e.budget().step(w.text.size() * (needle.size() + 1) / 16);
    at = w.text.rfind(needle);
  }
  if (at == w.text.npos) {
    if (raises) raise("substring not found");
    return Value::of_int(-1);
  }
  return Value::of_int(w.before +
                       static_cast<std::int64_t>(count_characters(w.text.substr(0, at))));
}

Value count(Evaluator&, const Value& self, const Arguments& arguments) {
  const auto [sub, start, end] =
      read_arguments("count", arguments, std::array<Names, 3>{"sub", "start", "end"}, 1);
  const std::string_view needle = text_argument(sub, "count");
  const Window w = window(self, start, end);
  if (!w.exists) return Value::of_int(0);
  if (needle.empty()) return Value::of_int(static_cast<std::int64_t>(count_characters(w.text)) + 1);
  std::int64_t count = 0;
  std::string_view rest = w.text;
  for (std::size_t at = search(rest, needle); at != rest.npos; at = search(rest, needle)) {
    ++count;
    rest.remove_prefix(at + needle.size());
  }
  return Value::of_int(count);
}

template <bool at_end>
Value has_affix(Evaluator&, const Value& self, const Arguments& arguments) {
  constexpr std::string_view kName = at_end ? "endswith" : "startswith";
  const auto [affix, start, end] =
      read_arguments(kName, arguments, std::array<Names, 3>{"prefix", "start", "end"}, 1);
  require_defined(affix);
  const Window w = window(self, start, end);
  const auto matches = [&](const Value& one) {
    if (!one.is_text())
      raise("{} first arg must be str or a tuple of str, not {}", kName, type_name(one));
    return w.exists && (at_end ? w.text.ends_with(one.text()) : w.text.starts_with(one.text()));
  };
  if (!affix.is(Kind::kTuple)) return Value::of_bool(matches(affix));
  return Value::of_bool(std::any_of(affix.list->items.begin(), affix.list->items.end(), matches));
}

template <bool at_end>
Value without_affix(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [affix] = read_arguments("removeprefix", arguments, std::array<Names, 1>{"prefix"}, 1);
  const std::string_view view = text_argument(affix, "removeprefix");
  std::string_view text = self.text();
  if (at_end && text.ends_with(view)) text.remove_suffix(view.size());
  if (!at_end && text.starts_with(view)) text.remove_prefix(view.size());
  return part(e, self, text);
}

// ---- taking apart and putting together
// ----------------------------------------------------------------------------------

/// The pieces of `text` between white space; the last takes the rest after `limit` cuts (negative:
/// no limit).
std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t limit,
                                             bool from_back) {
  std::vector<std::string_view> pieces;
  text = from_back ? strip_back(text) : strip_front(text);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<std::int64_t>(pieces.size()) == limit) {
      pieces.push_back(from_back ? strip_back(text) : text);
      break;
    }
    std::size_t size = 0;
    while (size < text.size()) {
      const std::string_view rest =
          from_back ? text.substr(0, text.size() - size) : text.substr(size);
      const std::string_view unit =
          from_back ? last_character(rest) : rest.substr(0, next_utf8(rest).size);
      if (is_space(next_utf8(unit).code_point)) break;
      size += unit.size();
    }
    pieces.push_back(from_back ? text.substr(text.size() - size) : text.substr(0, size));
    text =
        from_back ? strip_back(text.substr(0, text.size() - size)) : strip_front(text.substr(size));
  }
  if (from_back) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t limit, bool from_back) {
  std::vector<std::string_view> pieces;
  while (limit < 0 || static_cast<std::int64_t>(pieces.size()) < limit) {
    const std::size_t at = from_back ? text.rfind(separator) : search(text, separator);
    if (at == text.npos) break;
    const std::string_view before = text.substr(0, at), after = text.substr(at + separator.size());
    pieces.push_back(from_back ? after : before);
    text = from_back ? before : after;
  }
  pieces.push_back(text);
  if (from_back) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

template <bool from_back>
Value split(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [separator, maximum] =
      read_arguments("split", arguments, std::array<Names, 2>{"sep", "maxsplit"});
  const std::int64_t limit = maximum.is(Kind::kMissing) ? -1 : integer_argument(maximum);
  e.budget().step(self.text().size() / 16);
  std::vector<std::string_view> pieces;
  if (separator.is(Kind::kMissing) || separator.is(Kind::kNone)) {
    pieces = split_at_space(self.text(), limit, from_back);
  } else {
    const std::string_view view = text_argument(separator, "split");
    if (view.empty()) raise("empty separator");
    if (from_back) e.budget().step(self.text().size() * view.size() / 16);
    pieces = split_at(self.text(), view, limit, from_back);
  }
  const std::span<Value> items = e.heap().make_span<Value>(pieces.size());
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = part(e, self, pieces[i]);
  return e.heap().list_view(items);
}

template <bool from_back>
Value partition(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [separator] = read_arguments("partition", arguments, std::array<Names, 1>{"sep"}, 1);
  const std::string_view view = text_argument(separator, "partition");
  if (view.empty()) raise("empty separator");
  if (from_back) e.budget().step(self.text().size() * view.size() / 16);
  const auto pieces = split_at(self.text(), view, 1, from_back);
  std::vector<Value> items(3, part(e, self, ""));
  if (pieces.size() == 2) {
    items = {part(e, self, pieces[0]), separator, part(e, self, pieces[1])};
  } else {
    items[from_back ? 2 : 0] = self;
  }
  return e.heap().list(items, Kind::kTuple);
}

Value lines(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [keep_ends] =
      read_arguments("splitlines", arguments, std::array<Names, 1>{"keepends"});
  e.budget().step(self.text().size() / 16);
  std::vector<Value> items;
  for (const std::string_view line : split_lines(self.text(), is_true(keep_ends)))
    items.push_back(part(e, self, line));
  return e.heap().list(items);
}

Value replace(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [old, by, limit] =
      read_arguments("replace", arguments, std::array<Names, 3>{"old", "new", "count"}, 2);
  refuse_markup(self, "replace");
  const std::string_view from = text_argument(old, "replace"), to = text_argument(by, "replace");
  std::int64_t left = limit.is(Kind::kMissing) ? -1 : integer_argument(limit);
  std::string_view rest = self.text();
  std::string out;
  const auto put = [&](std::string_view piece) {
    out += piece;
    e.budget().step();
    if (out.size() > e.budget().limits().value_bytes) e.budget().charge(out.size());
  };
  e.budget().step(rest.size() / 16);
  while (left != 0) {
    const std::size_t at = search(rest, from);
    if (at == rest.npos) break;
    put(rest.substr(0, at));
    put(to);
    rest.remove_prefix(at + from.size());
    --left;
    if (!from.empty()) continue;
    if (rest.empty()) break;
    const std::size_t size = next_utf8(rest).size;  // between all characters
    put(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  put(rest);
  return e.heap().text(out);
}

Value join(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [iterable] = read_arguments("join", arguments, std::array<Names, 1>{"iterable"}, 1);
  refuse_markup(self, "join");
  TextBuilder out(e.heap());
  std::size_t i = 0;
  for (const Value& item : iterate(iterable, e.heap())) {
    if (!item.is_text())
      raise("sequence item {}: expected str instance, {} found", i, type_name(item));
    if (i++ > 0) out.append(self);
    out.append(item);
    if (out.size() > e.budget().limits().value_bytes) e.budget().charge(out.size());
  }
  return out.value();
}

enum class Side { kLeft, kRight, kCenter };

template <Side side>
Value justified(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [width, fill] =
      read_arguments("ljust", arguments, std::array<Names, 2>{"width", "fillchar"}, 1);
  refuse_markup(self, "ljust");
  const std::string_view with = fill.is(Kind::kMissing) ? " " : text_argument(fill, "ljust");
  if (count_characters(with) != 1) raise("The fill character must be exactly one character long");
  const std::int64_t target = integer_argument(width);
  const auto length = static_cast<std::int64_t>(self.text_object->length);
  if (target <= length) return self;
  const std::int64_t pad = target - length;
  const std::int64_t left = side == Side::kLeft    ? 0
                            : side == Side::kRight ? pad
                                                   : pad / 2 + (pad & target & 1);
  const auto fill_text = [&](std::int64_t times) {
    return arithmetic(Operator::kMultiply, e.heap().text(with), Value::of_int(times), e.heap());
  };
  const Value front = arithmetic(Operator::kAdd, fill_text(left), self, e.heap());
  return arithmetic(Operator::kAdd, front, fill_text(pad - left), e.heap());
}

Value zero_filled(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [width] = read_arguments("zfill", arguments, std::array<Names, 1>{"width"}, 1);
  refuse_markup(self, "zfill");
  const std::int64_t pad =
      integer_argument(width) - static_cast<std::int64_t>(self.text_object->length);
  if (pad <= 0) return self;
  const std::size_t sign = self.text().starts_with('-') || self.text().starts_with('+') ? 1 : 0;
  e.budget().charge(static_cast<std::uint64_t>(pad));
  return e.heap().text(std::string(self.text().substr(0, sign)) +
                       std::string(static_cast<std::size_t>(pad), '0') +
                       std::string(self.text().substr(sign)));
}

Value formatted(Evaluator& e, const Value& self, const Arguments& arguments) {
  refuse_markup(self, "format");
  return format_braces(self.text(), arguments, e.heap());
}

// ---- asking
// -------------------------------------------------------------------------------------------------------------

template <bool (*predicate)(unsigned char)>
Value all_ascii(Evaluator&, const Value& self, const Arguments& arguments) {
  read_arguments("method", arguments, std::array<Names, 0>{});
  bool all = !self.text().empty();
  for (const char c : self.text()) {
    if (static_cast<unsigned char>(c) >= 0x80)
      raise_unsupported("the kind of characters beyond ASCII is not known");
    all = all && predicate(static_cast<unsigned char>(c));
  }
  return Value::of_bool(all);
}

bool is_alpha(unsigned char c) {
  return std::isalpha(c) != 0;
}
bool is_digit(unsigned char c) {
  return std::isdigit(c) != 0;
}
bool is_alnum(unsigned char c) {
  return std::isalnum(c) != 0;
}

Value all_space(Evaluator&, const Value& self, const Arguments& arguments) {
  read_arguments("isspace", arguments, std::array<Names, 0>{});
  return Value::of_bool(!self.text().empty() && strip_front(self.text()).empty());
}

template <std::string (*change)(std::string_view)>
Value has_case(Evaluator& e, const Value& self, const Arguments& arguments) {
  read_arguments("islower", arguments, std::array<Names, 0>{});
  e.budget().step(self.text().size() / 16);
  const std::string text(self.text());
  return Value::of_bool(change(text) == text && (to_upper(text) != text || to_lower(text) != text));
}

// ---- dicts, lists, loops
// ------------------------------------------------------------------------------------------------

Value dict_get(Evaluator& e, const Value& self, const Arguments& arguments) {
  if (!arguments.named.empty()) raise("dict.get() takes no keyword arguments");
  const auto [key, fallback] =
      read_arguments("get", arguments, std::array<Names, 2>{"key", "default"}, 1);
  if (const Value* value = find(*self.dict, key, e.budget())) return *value;
  return fallback.is(Kind::kMissing) ? Value::none() : fallback;
}

template <ViewObject::What what>
Value dict_view(Evaluator& e, const Value& self, const Arguments& arguments) {
  read_arguments("items", arguments, std::array<Names, 0>{});
  Value value = Value::of(Kind::kView);
  value.view = e.heap().make<ViewObject>(what, self.dict);
  return value;
}

/// A copy of what never changes is the thing itself.
Value itself(Evaluator&, const Value& self, const Arguments& arguments) {
  read_arguments("copy", arguments, std::array<Names, 0>{});
  return self;
}

Value list_count(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [item] = read_arguments("count", arguments, std::array<Names, 1>{"value"}, 1);
  const auto& items = self.list->items;
  return Value::of_int(std::count_if(items.begin(), items.end(),
                                     [&](const Value& v) { return equal(v, item, e.budget()); }));
}

Value list_index(Evaluator& e, const Value& self, const Arguments& arguments) {
  const auto [item] = read_arguments("index", arguments, std::array<Names, 1>{"value"}, 1);
  const auto& items = self.list->items;
  const auto at = std::find_if(items.begin(), items.end(),
                               [&](const Value& v) { return equal(v, item, e.budget()); });
  if (at == items.end()) raise("the value is not in the {}", type_name(self));
  return Value::of_int(at - items.begin());
}

Value loop_cycle(Evaluator&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) raise("no items for cycling given");
  const auto index = static_cast<std::size_t>(self.loop->index0());
  return arguments.positional[index % arguments.positional.size()];
}

Value loop_changed(Evaluator& e, const Value& self, const Arguments& arguments) {
  e.budget().charge(arguments.positional.size_bytes());
  return Value::of_bool(self.loop->changed(arguments.positional, e.budget()));
}

constexpr MethodEntry kTextMethods[] = {
    {"capitalize", changed<capitalize>},
    {"center", justified<Side::kCenter>},
    {"count", count},
    {"endswith", has_affix<true>},
    {"find", found_at<false, false>},
    {"format", formatted},
    {"index", found_at<false, true>},
    {"isalnum", all_ascii<is_alnum>},
    {"isalpha", all_ascii<is_alpha>},
    {"isdecimal", all_ascii<is_digit>},
    {"isdigit", all_ascii<is_digit>},
    {"islower", has_case<to_lower>},
    {"isnumeric", all_ascii<is_digit>},
    {"isspace", all_space},
    {"isupper", has_case<to_upper>},
    {"join", join},
    {"ljust", justified<Side::kLeft>},
    {"lower", changed<to_lower>},
    {"lstrip", stripped<true, false>},
    {"partition", partition<false>},
    {"removeprefix", without_affix<false>},
    {"removesuffix", without_affix<true>},
    {"replace", replace},
    {"rfind", found_at<true, false>},
    {"rindex", found_at<true, true>},
    {"rjust", justified<Side::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", stripped<false, true>},
    {"split", split<false>},
    {"splitlines", lines},
    {"startswith", has_affix<false>},
    {"strip", stripped<true, true>},
    {"title", changed<title_case>},
    {"upper", changed<to_upper>},
    {"zfill", zero_filled},
};
constexpr std::string_view kMissingTextMethods[] = {
    "casefold",    "encode",  "expandtabs", "format_map", "isascii",  "isidentifier",
    "isprintable", "istitle", "maketrans",  "swapcase",   "translate"};
constexpr MethodEntry kDictMethods[] = {
    {"copy", itself},
    {"get", dict_get},
    {"items", dict_view<ViewObject::What::kItems>},
    {"keys", dict_view<ViewObject::What::kKeys>},
    {"values", dict_view<ViewObject::What::kValues>},
};
constexpr std::string_view kMissingDictMethods[] = {"fromkeys"};
constexpr MethodEntry kListMethods[] = {
    {"copy", itself}, {"count", list_count}, {"index", list_index}};
constexpr MethodEntry kTupleMethods[] = {{"count", list_count}, {"index", list_index}};
constexpr MethodEntry kLoopMethods[] = {{"changed", loop_changed}, {"cycle", loop_cycle}};
constexpr std::string_view kMissingNumberMethods[] = {
    "real",       "imag",      "numerator",        "denominator", "conjugate",
    "bit_length", "bit_count", "as_integer_ratio", "is_integer",  "hex"};

struct MethodTable {
  std::span<const MethodEntry> methods;
  std::span<const std::string_view> missing;
};

MethodTable methods_of(const Value& object) {
  switch (object.kind) {
    case Kind::kText:
      return {kTextMethods, kMissingTextMethods};
    case Kind::kDict:
      return {kDictMethods, kMissingDictMethods};
    case Kind::kList:
      return {kListMethods, {}};
    case Kind::kTuple:
      return {kTupleMethods, {}};
    case Kind::kLoop:
      return {kLoopMethods, {}};
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return {{}, kMissingNumberMethods};
    default:
      return {};
  }
}

}  // namespace

const MethodEntry* find_method(const Value& object, std::string_view name) {
  const MethodTable table = methods_of(object);
  const auto at = std::find_if(table.methods.begin(), table.methods.end(),
                               [&](const MethodEntry& m) { return m.name == name; });
  if (at != table.methods.end()) return &*at;
  if (std::find(table.missing.begin(), table.missing.end(), name) != table.missing.end()) {
    raise_unsupported("the attribute '{}' of '{}' is not supported", name, type_name(object));
  }
  return nullptr;
}

bool is_unsafe_attribute(const Value& object, std::string_view name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return true;
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  switch (object.kind) {
    case Kind::kList:
      return is_one_of({"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
    case Kind::kDict:
      return is_one_of({"clear", "pop", "popitem", "setdefault", "update"});
    case Kind::kNamespace:
      return name.starts_with('_');
    default:
      return false;
  }
}

}  // namespace palimpsest::text::jinja
