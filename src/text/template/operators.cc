#include "text/template/operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "text/template/characters.h"
#include "text/template/printing.h"

namespace palimpsest::text::jinja {
namespace {

void check_depth(int depth) {
  if (depth > kMaxNesting) raise("values nested more than {} deep are compared", kMaxNesting);
}

std::string_view symbol_of(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    case Operator::kPower:
      return "** or pow()";
    case Operator::kLess:
      return "<";
    case Operator::kLessEqual:
      return "<=";
    case Operator::kGreater:
      return ">";
    case Operator::kGreaterEqual:
      return ">=";
    default:
      return "?";
  }
}

/// Exact for every pair of int and float: long double has 64 bits of mantissa.
long double exact(const Value& number) {
  return number.is(Kind::kFloat) ? static_cast<long double>(number.real)
                                 : static_cast<long double>(number.as_integer());
}

bool equal_items(std::span<const Value> a, std::span<const Value> b, Budget& budget, int depth) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i], budget, depth + 1)) return false;
  }
  return true;
}

bool equal_dicts(const DictObject& a, const DictObject& b, Budget& budget, int depth) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const DictEntry& entry : a.entries) {
    const Value* other = find(b, entry.key, budget);
    if (other == nullptr || !equal(entry.value, *other, budget, depth + 1)) return false;
  }
  return true;
}

template <class T>
bool holds(Operator op, const T& a, const T& b) {
  switch (op) {
    case Operator::kLess:
      return a < b;
    case Operator::kLessEqual:
      return a <= b;
    case Operator::kGreater:
      return a > b;
    default:
      return a >= b;
  }
}

[[noreturn]] void refuse_operands(Operator op, const Value& a, const Value& b) {
  if (op == Operator::kAdd && (a.is_text() || a.is_sequence())) {
    raise("can only concatenate {0} (not \"{1}\") to {0}", type_name(a), type_name(b));
  }
  raise("unsupported operand type(s) for {}: '{}' and '{}'", symbol_of(op), type_name(a),
        type_name(b));
}

std::int64_t integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  bool overflow = false;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) overflow = overflow || __builtin_mul_overflow(result, base, &result);
    if (exponent > 1) overflow = overflow || __builtin_mul_overflow(base, base, &base);
    if (overflow && base != 0) raise_unsupported("an integer power has more than 64 bits");
  }
  return result;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_arithmetic(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kPower:
      return Value::of_int(integer_power(a, b));
    default:
      if (b == 0)
        raise("{}",
              op == Operator::kDivide ? "division by zero" : "integer division or modulo by zero");
      if (op == Operator::kDivide) {
        return Value::of_float(
            static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
      }
      if (b == -1) {  // the one quotient that may not fit
        if (op == Operator::kModulo) return Value::of_int(0);
        overflow = __builtin_sub_overflow(std::int64_t{0}, a, &result);
      } else {
        result = op == Operator::kFloorDivide ? floor_divide(a, b) : a - floor_divide(a, b) * b;
      }
  }
  if (overflow)
    raise_unsupported("the integer {} {} {} has more than 64 bits", a, symbol_of(op), b);
  return Value::of_int(result);
}

double float_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

double float_floor_divide(double a, double b) {
  double quotient = (a - float_modulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value float_power(double a, double b) {
  if (a == 0 && b < 0) raise("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
    raise_unsupported("a complex power is not supported");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
    raise("numerical result out of range");
  return Value::of_float(result);
}

Value float_arithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::of_float(a + b);
    case Operator::kSubtract:
      return Value::of_float(a - b);
    case Operator::kMultiply:
      return Value::of_float(a * b);
    case Operator::kPower:
      return float_power(a, b);
    default:
      if (b == 0)
        raise("{}", op == Operator::kDivide ? "float division by zero"
                                            : "float floor division or modulo by zero");
      return Value::of_float(op == Operator::kDivide   ? a / b
                             : op == Operator::kModulo ? float_modulo(a, b)
                                                       : float_floor_divide(a, b));
  }
}

Value concatenate(const Value& a, const Value& b, Heap& heap) {
  const bool markup = a.is_markup || b.is_markup;
  const std::string left = markup && !a.is_markup ? escape_html(a.text()) : std::string();
  const std::string right = markup && !b.is_markup ? escape_html(b.text()) : std::string();
  const std::string_view first = left.empty() ? a.text() : std::string_view(left);
  const std::string_view second = right.empty() ? b.text() : std::string_view(right);
  TextBuilder both(heap);
  heap.budget().charge(first.size() + second.size());
  both.append(first);
  both.append(second);
  Value value = both.value();
  value.is_markup = markup;
  return value;
}

Value join_lists(const Value& a, const Value& b, Heap& heap) {
  const auto x = a.list->items, y = b.list->items;
  const std::span<Value> items = heap.make_span<Value>(x.size() + y.size());
  std::copy(y.begin(), y.end(), std::copy(x.begin(), x.end(), items.begin()));
  return heap.list_view(items, a.kind);
}

Value repeat(const Value& value, std::int64_t times, Heap& heap) {
  const std::size_t size = value.is_text() ? value.text().size() : value.list->items.size();
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  std::size_t total = 0;
  if (__builtin_mul_overflow(size, count, &total)) heap.budget().charge(UINT64_MAX);
  if (value.is_text()) {
    const std::span<char> bytes = heap.make_span<char>(total);
    for (std::size_t i = 0; i < total; i += size) std::copy_n(value.text().data(), size, &bytes[i]);
    Value text = heap.text_view({bytes.data(), total});
    text.is_markup = value.is_markup;
    return text;
  }
  const std::span<Value> items = heap.make_span<Value>(total);
  for (std::size_t i = 0; i < total; i += size)
    std::copy_n(value.list->items.data(), size, &items[i]);
  return heap.list_view(items, value.kind);
}

bool can_repeat(const Value& value) {
  return value.is_text() || value.is_sequence();
}

}  // namespace

bool equal(const Value& a, const Value& b, Budget& budget, int depth) {
  check_depth(depth);
  budget.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_integer() == b.as_integer();
    return exact(a) == exact(b);
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return equal_items(a.list->items, b.list->items, budget, depth);
    case Kind::kDict:
      return equal_dicts(*a.dict, *b.dict, budget, depth);
    case Kind::kRange: {
      const std::int64_t size = a.range->size();
      if (size != b.range->size()) return false;
      return size == 0 ||
             (a.range->start == b.range->start && (size == 1 || a.range->step == b.range->step));
    }
    case Kind::kView:
    case Kind::kMethod:
      raise_unsupported("comparing values of type '{}' is not supported", type_name(a));
    default:
      return a.macro == b.macro;  // the same object
  }
}

bool ordered(Operator op, const Value& a, const Value& b, Budget& budget, int depth) {
  check_depth(depth);
  require_defined(a);
  require_defined(b);
  budget.step();
  if (a.is_number() && b.is_number()) return holds(op, exact(a), exact(b));
  if (a.is_text() && b.is_text()) return holds(op, a.text(), b.text());
  if (a.is_sequence() && a.kind == b.kind) {
    const auto x = a.list->items, y = b.list->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], budget, depth + 1)) return ordered(op, x[i], y[i], budget, depth + 1);
    }
    return holds(op, x.size(), y.size());
  }
  raise("'{}' not supported between instances of '{}' and '{}'", symbol_of(op), type_name(a),
        type_name(b));
}

bool contains(const Value& container, const Value& item, Heap& heap) {
  if (container.is_text()) {
    if (!item.is_text())
      raise("'in <string>' requires string as left operand, not {}", type_name(item));
    heap.budget().step(container.text().size() / 64);
    return container.text().size() >= item.text().size() &&
           (item.text().empty() || memmem(container.text().data(), container.text().size(),
                                          item.text().data(), item.text().size()) != nullptr);
  }
  if (container.is(Kind::kDict)) return find(*container.dict, item, heap.budget()) != nullptr;
  if (container.is(Kind::kView) && container.view->what == ViewObject::What::kKeys) {
    return find(*container.view->dict, item, heap.budget()) != nullptr;
  }
  const auto items = try_iterate(container, heap);
  if (!items) raise("argument of type '{}' is not iterable", type_name(container));
  return std::any_of(items->begin(), items->end(),
                     [&](const Value& v) { return equal(v, item, heap.budget()); });
}

Value arithmetic(Operator op, const Value& a, const Value& b, Heap& heap) {
  require_defined(a);
  if (op == Operator::kModulo && a.is_text()) return format_percent(a, b, heap);
  require_defined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral() && !(op == Operator::kPower && b.as_integer() < 0)) {
      return integer_arithmetic(op, a.as_integer(), b.as_integer());
    }
    return float_arithmetic(op, a.as_double(), b.as_double());
  }
  if (op == Operator::kAdd) {
    if (a.is_text() && b.is_text()) return concatenate(a, b, heap);
    if (a.is_sequence() && a.kind == b.kind) return join_lists(a, b, heap);
  }
  if (op == Operator::kMultiply) {
    if (can_repeat(a) && b.is_integral()) return repeat(a, b.as_integer(), heap);
    if (can_repeat(b) && a.is_integral()) return repeat(b, a.as_integer(), heap);
  }
  refuse_operands(op, a, b);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is_integral()) return integer_arithmetic(Operator::kSubtract, 0, value.as_integer());
  if (value.is(Kind::kFloat)) return Value::of_float(-value.real);
  raise("bad operand type for unary -: '{}'", type_name(value));
}

Value positive(const Value& value) {
  require_defined(value);
  if (value.is_integral()) return Value::of_int(value.as_integer());
  if (value.is(Kind::kFloat)) return value;
  raise("bad operand type for unary +: '{}'", type_name(value));
}

namespace {

/// A slice against a length, as Python's slice.indices() resolves it.
struct SliceIndices {
  std::int64_t start, stop, step;
};

std::int64_t slice_bound(const Value& bound, std::int64_t length, std::int64_t step,
                         std::int64_t absent) {
  if (bound.is(Kind::kMissing) || bound.is(Kind::kNone)) return absent;
  if (!bound.is_integral())
    raise("slice indices must be integers or None or have an __index__ method");
  std::int64_t index = bound.as_integer();
  if (index < 0) index = index < -length ? -1 : index + length;
  const std::int64_t low = step < 0 ? -1 : 0;
  return std::clamp(index, low, step < 0 ? length - 1 : length);
}

SliceIndices resolve(const Value& start, const Value& stop, const Value& step,
                     std::int64_t length) {
  std::int64_t by = 1;
  if (!step.is(Kind::kMissing) && !step.is(Kind::kNone)) {
    if (!step.is_integral())
      raise("slice indices must be integers or None or have an __index__ method");
    by = std::clamp<std::int64_t>(step.as_integer(), -length - 1, length + 1);
    if (step.as_integer() == 0) raise("slice step cannot be zero");
  }
  return {slice_bound(start, length, by, by < 0 ? length - 1 : 0),
          slice_bound(stop, length, by, by < 0 ? -1 : length), by};
}

Value slice_text(const Value& object, const RangeObject& picked, Heap& heap) {
  const std::string_view text = object.text();
  const auto count = static_cast<std::size_t>(picked.size());
  Value result;
  if (picked.step == 1 || count == 0) {
    const std::size_t from =
        count == 0 ? 0 : character_offset(text, static_cast<std::size_t>(picked.start));
    result = heap.text_view(text.substr(from, character_offset(text.substr(from), count)));
  } else {
    const auto characters = iterate(object, heap);
    std::string out;
    for (std::size_t i = 0; i < count; ++i)
      out += characters[static_cast<std::size_t>(picked.at(static_cast<std::int64_t>(i)))].text();
    result = heap.text(out);
  }
  result.is_markup = object.is_markup;
  return result;
}

}  // namespace

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step,
            Heap& heap) {
  require_defined(object);
  if (!object.is_text() && !object.is_sequence() && !object.is(Kind::kRange)) {
    if (object.is(Kind::kDict)) raise("unhashable type: 'slice'");
    raise("'{}' object is not subscriptable", type_name(object));
  }
  const SliceIndices indices = resolve(start, stop, step, *length_of(object));
  const RangeObject picked{indices.start, indices.stop, indices.step};
  if (object.is_text()) {
    heap.budget().step(object.text().size() / 64);
    return slice_text(object, picked, heap);
  }
  if (object.is(Kind::kRange)) {
    Value range = Value::of(Kind::kRange);
    const RangeObject& from = *object.range;
    range.range = heap.make<RangeObject>(from.at(indices.start), from.at(indices.stop),
                                         from.step * indices.step);
    return range;
  }
  const std::span<Value> items = heap.make_span<Value>(static_cast<std::size_t>(picked.size()));
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] =
        object.list->items[static_cast<std::size_t>(picked.at(static_cast<std::int64_t>(i)))];
  }
  return heap.list_view(items, object.kind);
}

void require_hashable(const Value& value, int depth) {
  check_depth(depth);
  if (value.is(Kind::kList) || value.is(Kind::kDict) || value.is(Kind::kView))
    raise("unhashable type: '{}'", type_name(value));
  if (value.is(Kind::kTuple)) {
    for (const Value& item : value.list->items) require_hashable(item, depth + 1);
  }
}

std::vector<Value> sorted(std::span<const Value> items, std::span<const Value> keys, bool reverse,
                          Budget& budget) {
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? ordered(Operator::kLess, keys[b], keys[a], budget)
                   : ordered(Operator::kLess, keys[a], keys[b], budget);
  });
  std::vector<Value> result;
  result.reserve(items.size());
  for (const std::size_t i : order) result.push_back(items[i]);
  return result;
}

}  // namespace palimpsest::text::jinja
