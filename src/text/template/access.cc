#include <algorithm>

#include "text/template/evaluator.h"
#include "text/template/operators.h"

namespace palimpsest::text::jinja {

Value Evaluator::get_attribute(const Value& object, const Value& name) {
  require_defined(object);
  const Value found = python_attribute(object, name);
  if (!found.is(Kind::kMissing)) return found;
  if (object.is(Kind::kDict)) {
    budget_.step(object.dict->entries.size() / 4);
    if (const Value* item = find(*object.dict, name.text())) return *item;
  }
  return heap_.undefined(object, name);
}

Value Evaluator::get_item(const Value& object, const Value& key) {
  require_defined(object);
  const Value item = element(object, key);
  if (!item.is(Kind::kMissing)) return item;
  if (key.is_text()) {
    const Value found = python_attribute(object, key);
    if (!found.is(Kind::kMissing)) return found;
  }
  return heap_.undefined(object, key);
}

namespace {

bool is_hashable(const Value& key) {
  return !key.is(Kind::kList) && !key.is(Kind::kDict) && !key.is(Kind::kView) &&
         (!key.is(Kind::kTuple) ||
          std::all_of(key.list->items.begin(), key.list->items.end(), is_hashable));
}

}  // namespace

/// object[key] as Python has it; kMissing where that raises TypeError or LookupError.
Value Evaluator::element(const Value& object, const Value& key) {
  if (object.is(Kind::kDict)) {
    if (!is_hashable(key)) return {};
    const Value* item = find(*object.dict, key, budget_);
    return item != nullptr ? *item : Value();
  }
  const bool is_indexed = object.is_text() || object.is_sequence() || object.is(Kind::kRange);
  if (!is_indexed || !key.is_integral()) return {};
  const std::int64_t length = *length_of(object);
  const std::int64_t index = key.as_integer() < 0 ? key.as_integer() + length : key.as_integer();
  if (index < 0 || index >= length) return {};
  if (object.is(Kind::kRange)) return Value::of_int(object.range->at(index));
  if (object.is_sequence()) return object.list->items[static_cast<std::size_t>(index)];
  return slice(object, Value::of_int(index), Value::of_int(index + 1), {}, heap_);
}

Value Evaluator::python_attribute(const Value& object, const Value& name) {
  const std::string_view text = name.text();
  if (is_unsafe_attribute(object, text)) {
    return heap_.undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", text, type_name(object)));
  }
  if (object.is(Kind::kNamespace)) {
    for (const NamespaceEntry* entry = object.name_space->first; entry != nullptr;
         entry = entry->next) {
      budget_.step();
      if (entry->name == text) return entry->value;
    }
    return {};
  }
  if (object.is(Kind::kLoop)) return loop_attribute(*object.loop, object, name);
  const MethodEntry* entry = find_method(object, text);
  if (entry == nullptr) return {};
  Value method = Value::of(Kind::kMethod);
  method.method = heap_.make<MethodObject>(object, entry);
  return method;
}

Value Evaluator::loop_attribute(LoopState& loop, const Value& loop_value, const Value& name) {
  const std::string_view text = name.text();
  if (text == "index0") return Value::of_int(loop.index0());
  if (text == "index") return Value::of_int(loop.index0() + 1);
  if (text == "first") return Value::of_bool(loop.index0() == 0);
  if (text == "last") return Value::of_bool(loop.is_last());
  if (text == "length") return Value::of_int(static_cast<std::int64_t>(loop.length()));
  if (text == "revindex0")
    return Value::of_int(static_cast<std::int64_t>(loop.length()) - loop.index0() - 1);
  if (text == "revindex")
    return Value::of_int(static_cast<std::int64_t>(loop.length()) - loop.index0());
  if (text == "depth0") return Value::of_int(0);  // of recursion, which there is none
  if (text == "depth") return Value::of_int(1);
  if (text == "previtem") {
    const Value* item = loop.previous();
    return item != nullptr ? *item : heap_.undefined("there is no previous item");
  }
  if (text == "nextitem") {
    const Value* item = loop.following();
    return item != nullptr ? *item : heap_.undefined("there is no next item");
  }
  const MethodEntry* entry = find_method(loop_value, text);
  if (entry == nullptr) return {};
  Value method = Value::of(Kind::kMethod);
  method.method = heap_.make<MethodObject>(loop_value, entry);
  return method;
}

}  // namespace palimpsest::text::jinja
