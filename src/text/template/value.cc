#include "text/template/value.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "text/template/characters.h"
#include "text/template/loop.h"
#include "text/template/operators.h"
#include "text/template/printing.h"
#include "text/utf8.h"

namespace palimpsest::text::jinja {

// ---- making values
// ----------------------------------------------------------------------------------------------------

Value Heap::text(std::string_view utf8, bool markup) {
  const std::span<char> bytes = make_span<char>(utf8.size());
  std::copy(utf8.begin(), utf8.end(), bytes.begin());
  Value value = text_view({bytes.data(), bytes.size()});
  value.is_markup = markup;
  return value;
}

Value Heap::text_view(std::string_view utf8) {
  budget_.step(utf8.size() / 64);
  return Value::of_text(make<TextObject>(utf8, count_characters(utf8)));
}

void TextBuilder::append(std::string_view text) {
  heap_.budget().step(heap_.origins().find(text, text_.size(), own_));
  text_ += text;
}

void TextBuilder::append(const Value& value) {
  if (value.is_text()) {
    append(value.text());
  } else {
    append_str(value, text_, heap_.budget());
  }
}

Value TextBuilder::value() {
  const Value value = heap_.text(text_);
  for (const TextRange& range : own_) {
    heap_.budget().charge(Origins::kBytesPerRange);
    heap_.origins().add(value.text().substr(range.begin, range.end - range.begin));
  }
  return value;
}

Value Heap::list(std::span<const Value> items, Kind kind) {
  const std::span<Value> copy = make_span<Value>(items.size());
  std::copy(items.begin(), items.end(), copy.begin());
  return list_view(copy, kind);
}

Value Heap::list_view(std::span<const Value> items, Kind kind) {
  Value value = Value::of(kind);
  value.list = make<ListObject>(items);
  return value;
}

Value Heap::pair(Value first, Value second) {
  const std::span<Value> items = make_span<Value>(2);
  items[0] = first;
  items[1] = second;
  return list_view(items, Kind::kTuple);
}

Value Heap::dict(std::span<const DictEntry> entries) {
  std::vector<DictEntry> unique;
  unique.reserve(entries.size());
  for (const DictEntry& entry : entries) {
    const DictObject so_far{unique};
    if (const Value* old = find(so_far, entry.key, budget_)) {
      const_cast<Value&>(*old) = entry.value;
    } else {
      unique.push_back(entry);
    }
  }
  const std::span<DictEntry> copy = make_span<DictEntry>(unique.size());
  std::copy(unique.begin(), unique.end(), copy.begin());
  Value value = Value::of(Kind::kDict);
  value.dict = make<DictObject>(copy);
  return value;
}

Value Heap::iterator(const std::vector<Value>& items, bool is_reverse) {
  const std::span<Value> copy = make_span<Value>(items.size());
  std::copy(items.begin(), items.end(), copy.begin());
  Value value = Value::of(Kind::kIterator);
  value.iterator = make<IteratorObject>(copy, is_reverse);
  return value;
}

Value Heap::undefined(std::string_view hint) {
  Value value = Value::of(Kind::kUndefined);
  value.undefined = make<UndefinedObject>(text(hint).text());
  return value;
}

Value Heap::undefined(const Value& object, const Value& name) {
  Value value = Value::of(Kind::kUndefined);
  value.undefined = make<UndefinedObject>(std::string_view(), object, name);
  return value;
}

Value Heap::from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxNesting) raise("the chat is nested more than {} deep", kMaxNesting);
  budget_.step();
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return Value::of_bool(json.get<bool>());
    case Type::number_integer:
      return Value::of_int(json.get<std::int64_t>());
    case Type::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      if (number > std::numeric_limits<std::int64_t>::max())
        raise_unsupported("the integer {} of the chat has more than 63 bits", number);
      return Value::of_int(static_cast<std::int64_t>(number));
    }
    case Type::number_float:
      return Value::of_float(json.get<double>());
    case Type::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (!is_valid_utf8(text)) raise("a text of the chat is not valid UTF-8");
      return text_view(text);
    }
    case Type::array: {
      const std::span<Value> items = make_span<Value>(json.size());
      for (std::size_t i = 0; i < items.size(); ++i) items[i] = from_json(json[i], depth + 1);
      return list_view(items);
    }
    case Type::object: {
      const std::span<DictEntry> entries = make_span<DictEntry>(json.size());
      std::size_t i = 0;
      for (const auto& [key, value] : json.items()) {
        if (!is_valid_utf8(key)) raise("a key of the chat is not valid UTF-8");
        entries[i++] = {text_view(key), from_json(value, depth + 1)};
      }
      Value value = Value::of(Kind::kDict);
      value.dict = make<DictObject>(entries);
      return value;
    }
    default:
      return Value::none();
  }
}

// ---- looking at values
// ------------------------------------------------------------------------------------------------

std::string_view type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return value.is_markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
      switch (value.view->what) {
        case ViewObject::What::kKeys:
          return "dict_keys";
        case ViewObject::What::kValues:
          return "dict_values";
        case ViewObject::What::kItems:
          return "dict_items";
      }
      return "dict_items";
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return value.iterator->is_reverse ? "list_reverseiterator" : "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kMethod:
      return "builtin_function_or_method";
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

namespace {

/// How jinja2 calls the type of an object that lacks an attribute.
std::string object_description(const Value& object) {
  switch (object.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kNamespace:
      return "jinja2.utils.Namespace object";
    case Kind::kLoop:
      return "jinja2.runtime.LoopContext object";
    case Kind::kMacro:
      return "jinja2.runtime.Macro object";
    default:
      return fmt::format("{} object", type_name(object));
  }
}

std::string undefined_message(const UndefinedObject& undefined) {
  if (!undefined.hint.empty()) return std::string(undefined.hint);
  Budget budget{TemplateLimits{}};
  std::string name;
  append_repr(undefined.name, name, budget);
  if (undefined.object.is(Kind::kMissing)) return name + " is undefined";
  const std::string object = object_description(undefined.object);
  return undefined.name.is_text() ? fmt::format("'{}' has no attribute {}", object, name)
                                  : fmt::format("{} has no element {}", object, name);
}

}  // namespace

void require_defined(const Value& value) {
  if (value.is(Kind::kUndefined)) raise("{}", undefined_message(*value.undefined));
}

std::int64_t RangeObject::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

bool is_true(const Value& value) {
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.real != 0;
    default: {
      if (value.is(Kind::kLoop)) return true;  // a loop that is running has elements
      const auto length = length_of(value);
      return !length || *length > 0;
    }
  }
}

std::optional<std::int64_t> length_of(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kText:
      return static_cast<std::int64_t>(value.text_object->length);
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<std::int64_t>(value.list->items.size());
    case Kind::kDict:
      return static_cast<std::int64_t>(value.dict->entries.size());
    case Kind::kView:
      return static_cast<std::int64_t>(value.view->dict->entries.size());
    case Kind::kRange:
      return value.range->size();
    case Kind::kLoop:
      return static_cast<std::int64_t>(value.loop->length());
    default:
      return std::nullopt;
  }
}

namespace {

std::span<const Value> characters(std::string_view text, std::size_t length, Heap& heap) {
  const std::span<Value> items = heap.make_span<Value>(length);
  for (Value& item : items) {
    const std::size_t size = next_utf8(text).size;
    item = heap.text_view(text.substr(0, size));
    text.remove_prefix(size);
  }
  return items;
}

std::span<const Value> entries(const DictObject& dict, ViewObject::What what, Heap& heap) {
  const std::span<Value> items = heap.make_span<Value>(dict.entries.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const DictEntry& entry = dict.entries[i];
    items[i] = what == ViewObject::What::kKeys     ? entry.key
               : what == ViewObject::What::kValues ? entry.value
                                                   : heap.pair(entry.key, entry.value);
  }
  return items;
}

}  // namespace

std::optional<std::span<const Value>> try_iterate(const Value& value, Heap& heap) {
  switch (value.kind) {
    case Kind::kUndefined:
      return std::span<const Value>();
    case Kind::kText:
      return characters(value.text(), value.text_object->length, heap);
    case Kind::kList:
    case Kind::kTuple:
      return value.list->items;
    case Kind::kDict:
      return entries(*value.dict, ViewObject::What::kKeys, heap);
    case Kind::kView:
      return entries(*value.view->dict, value.view->what, heap);
    case Kind::kRange: {
      const std::span<Value> items =
          heap.make_span<Value>(static_cast<std::size_t>(value.range->size()));
      for (std::size_t i = 0; i < items.size(); ++i)
        items[i] = Value::of_int(value.range->at(static_cast<std::int64_t>(i)));
      return items;
    }
    case Kind::kIterator:
      return std::exchange(value.iterator->items, {});
    default:
      return std::nullopt;
  }
}

std::span<const Value> iterate(const Value& value, Heap& heap) {
  const auto items = try_iterate(value, heap);
  if (!items) raise("'{}' object is not iterable", type_name(value));
  return *items;
}

const Value* find(const DictObject& dict, const Value& key, Budget& budget) {
  require_hashable(key);
  budget.step(dict.entries.size() / 4);
  for (const DictEntry& entry : dict.entries) {
    if (equal(entry.key, key, budget)) return &entry.value;
  }
  return nullptr;
}

const Value* find(const DictObject& dict, std::string_view key) {
  for (const DictEntry& entry : dict.entries) {
    if (entry.key.is_text() && entry.key.text() == key) return &entry.value;
  }
  return nullptr;
}

}  // namespace palimpsest::text::jinja
