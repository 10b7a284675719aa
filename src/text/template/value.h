#pragma once

// The values of a rendering: Python's, as far as templates see them. A Value is two words and
// trivially copyable; what it points to lives in the rendering's Heap (literals: in the Program's
// arena) and never changes, except namespaces, loops and half-read iterators.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/template/arena.h"
#include "text/template/budget.h"
#include "text/template/origins.h"

namespace palimpsest::text::jinja {

enum class Kind : std::uint8_t {
  kMissing,  ///< no value at all: an argument that was not passed, a variable that was not set
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kList,
  kTuple,
  kDict,
  kView,  ///< dict.keys(), .values(), .items()
  kRange,
  kIterator,  ///< what map, select, items and their like return: can be walked once
  kNamespace,
  kLoop,
  kMacro,
  kMethod,    ///< a method with its object
  kFunction,  ///< a global function
};

struct Value;
struct TextObject;
struct ListObject;
struct DictObject;
struct UndefinedObject;
struct ViewObject;
struct RangeObject;
struct IteratorObject;
struct NamespaceObject;
struct MethodObject;
struct FunctionObject;
class LoopState;
struct MacroObject;

struct Value {
  Kind kind = Kind::kMissing;
  bool is_markup = false;  ///< kText: went through `safe` or `escape`
  union {
    std::int64_t integer = 0;
    bool boolean;
    double real;
    const TextObject* text_object;
    const ListObject* list;  // kList, kTuple
    const DictObject* dict;
    const UndefinedObject* undefined;
    const ViewObject* view;
    const RangeObject* range;
    IteratorObject* iterator;
    NamespaceObject* name_space;
    LoopState* loop;
    const MacroObject* macro;
    const MethodObject* method;
    const FunctionObject* function;
  };

  static Value none() { return of(Kind::kNone); }
  static Value of(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
  }
  static Value of_bool(bool b) {
    Value value = of(Kind::kBool);
    value.boolean = b;
    return value;
  }
  static Value of_int(std::int64_t i) {
    Value value = of(Kind::kInt);
    value.integer = i;
    return value;
  }
  static Value of_float(double d) {
    Value value = of(Kind::kFloat);
    value.real = d;
    return value;
  }
  static Value of_text(const TextObject* text, bool markup = false) {
    Value value = of(Kind::kText);
    value.text_object = text;
    value.is_markup = markup;
    return value;
  }

  bool is(Kind k) const { return kind == k; }
  bool is_text() const { return kind == Kind::kText; }
  bool is_sequence() const { return kind == Kind::kList || kind == Kind::kTuple; }
  /// int or bool, as Python's arithmetic takes them.
  bool is_integral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_number() const { return is_integral() || kind == Kind::kFloat; }
  std::int64_t as_integer() const { return kind == Kind::kBool ? (boolean ? 1 : 0) : integer; }
  double as_double() const {
    return kind == Kind::kFloat ? real : static_cast<double>(as_integer());
  }
  std::string_view text() const;
};

struct TextObject {
  std::string_view bytes;  ///< valid UTF-8
  std::size_t length;      ///< in code points
};
struct ListObject {
  std::span<const Value> items;
};
struct DictEntry {
  Value key, value;
};
struct DictObject {
  std::span<const DictEntry> entries;
};
/// Where an undefined value comes from, which is what it says when it is used: a hint, a variable's
/// name (object kMissing), or an attribute or element that `object` lacks.
struct UndefinedObject {
  std::string_view hint;
  Value object, name;
};
struct ViewObject {
  enum class What : std::uint8_t { kKeys, kValues, kItems } what;
  const DictObject* dict;
};
struct RangeObject {
  std::int64_t start, stop, step;
  std::int64_t size() const;
  std::int64_t at(std::int64_t index) const { return start + index * step; }
};
struct IteratorObject {
  std::span<const Value> items;
  bool is_reverse;  ///< what `reverse` gives
};
struct NamespaceEntry {
  std::string_view name;
  Value value;
  NamespaceEntry* next;
};
struct NamespaceObject {
  NamespaceEntry* first;
};

inline std::string_view Value::text() const {
  return text_object->bytes;
}

/// Arguments of a call, filter or test.
struct NamedValue {
  std::string_view name;
  Value value;
};
struct Arguments {
  std::span<const Value> positional;
  std::span<const NamedValue> named;
};

/// Where a rendering's values are made; every byte is charged to its budget.
class Heap {
 public:
  explicit Heap(Budget& budget) : budget_(budget) {}
  Budget& budget() { return budget_; }
  Origins& origins() { return origins_; }

  template <class T, class... Args>
  T* make(Args&&... args) {
    budget_.charge(sizeof(T));
    return arena_.make<T>(std::forward<Args>(args)...);
  }
  template <class T>
  std::span<T> make_span(std::size_t count) {
    if (count > UINT32_MAX) budget_.charge(UINT64_MAX);
    budget_.charge(count * sizeof(T));
    budget_.step(count / 8);
    return arena_.make_span<T>(count);
  }

  /// A copy of `utf8`.
  Value text(std::string_view utf8, bool markup = false);
  /// `utf8` itself, which outlives the rendering.
  Value text_view(std::string_view utf8);
  Value list(std::span<const Value> items, Kind kind = Kind::kList);
  Value list(const std::vector<Value>& items, Kind kind = Kind::kList) {
    return list(std::span<const Value>(items), kind);
  }
  /// `items` itself, which came from make_span.
  Value list_view(std::span<const Value> items, Kind kind = Kind::kList);
  Value pair(Value first, Value second);
  /// Of equal keys the first keeps its place and the last its value. Throws if a key cannot be one.
  Value dict(std::span<const DictEntry> entries);
  Value iterator(const std::vector<Value>& items, bool is_reverse = false);
  Value undefined(std::string_view hint);
  Value undefined(const Value& object, const Value& name);
  /// `value`, whose texts are not copied; nested at most kMaxNesting deep.
  Value from_json(const nlohmann::ordered_json& value, int depth = 0);

 private:
  Budget& budget_;
  Arena arena_;
  Origins origins_;
};

/// A text in the making that remembers which of its bytes are the template's own.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(heap) {}
  void append(std::string_view text);
  /// str(value).
  void append(const Value& value);
  std::size_t size() const { return text_.size(); }
  Value value();
  RenderedTemplate take() { return {std::move(text_), std::move(own_)}; }

 private:
  Heap& heap_;
  std::string text_;
  std::vector<TextRange> own_;
};

/// Values nested deeper than this are not printed, compared or converted.
inline constexpr int kMaxNesting = 200;

/// "str", "NoneType", "dict", ...: Python's type(value).__name__.
std::string_view type_name(const Value& value);
/// TypeError and its like: what a template did that Python refuses.
template <class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kInvalidRequest, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void raise_unsupported(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::kUnsupported, fmt::format(format, std::forward<Args>(args)...));
}
/// Raises if `value` is undefined: what any use but printing, testing and walking does.
void require_defined(const Value& value);

bool is_true(const Value& value);

/// len(value), or nothing if the type has none.
std::optional<std::int64_t> length_of(const Value& value);
/// The elements of `value` as iter() gives them; nothing if it cannot be walked. Empties an
/// iterator.
std::optional<std::span<const Value>> try_iterate(const Value& value, Heap& heap);
/// The same; raises "'int' object is not iterable".
std::span<const Value> iterate(const Value& value, Heap& heap);

/// The value of `key`, or null.
const Value* find(const DictObject& dict, const Value& key, Budget& budget);
const Value* find(const DictObject& dict, std::string_view key);

}  // namespace palimpsest::text::jinja
