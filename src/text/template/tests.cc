// The tests behind `is`.

#include <algorithm>
#include <array>

#include "text/template/characters.h"
#include "text/template/evaluator.h"
#include "text/template/operators.h"
#include "text/template/printing.h"
#include "text/template/registry.h"

namespace palimpsest::text::jinja {
namespace {

using Test = bool (*)(Evaluator&, const Value&, const Arguments&);

void expect_arguments(std::string_view name, const Arguments& arguments, std::size_t count) {
  if (arguments.positional.size() != count || !arguments.named.empty()) {
    raise("the test '{}' takes {} argument(s)", name, count);
  }
}

template <bool (*predicate)(const Value&)>
bool simple(Evaluator&, const Value& value, const Arguments& arguments) {
  expect_arguments("is", arguments, 0);
  return predicate(value);
}

bool is_undefined(const Value& v) {
  return v.is(Kind::kUndefined) || v.is(Kind::kMissing);
}
bool is_defined(const Value& v) {
  return !is_undefined(v);
}
bool is_none(const Value& v) {
  return v.is(Kind::kNone);
}
bool is_boolean(const Value& v) {
  return v.is(Kind::kBool);
}
bool is_true_constant(const Value& v) {
  return v.is(Kind::kBool) && v.boolean;
}
bool is_false_constant(const Value& v) {
  return v.is(Kind::kBool) && !v.boolean;
}
bool is_string(const Value& v) {
  return v.is_text();
}
bool is_number(const Value& v) {
  return v.is_number();
}
bool is_integer(const Value& v) {
  return v.is(Kind::kInt);
}
bool is_float(const Value& v) {
  return v.is(Kind::kFloat);
}
bool is_mapping(const Value& v) {
  return v.is(Kind::kDict);
}
bool is_callable(const Value& v) {
  // An undefined value has a __call__, which raises.
  return v.is(Kind::kMacro) || v.is(Kind::kMethod) || v.is(Kind::kFunction) || v.is(Kind::kLoop) ||
         is_undefined(v);
}
bool is_markup(const Value& v) {
  return v.is_text() && v.is_markup;
}
/// What has a length and elements by index; a dict counts, as does an undefined value.
bool is_sequence(const Value& v) {
  return v.is_text() || v.is_sequence() || v.is(Kind::kDict) || v.is(Kind::kRange) ||
         is_undefined(v);
}
bool is_iterable(const Value& v) {
  return is_sequence(v) || v.is(Kind::kView) || v.is(Kind::kIterator) || v.is(Kind::kLoop);
}

template <Operator op>
bool compare(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  expect_arguments("comparison", arguments, 1);
  const Value& other = arguments.positional[0];
  if (op == Operator::kEqual) return equal(value, other, evaluator.budget());
  if (op == Operator::kNotEqual) return !equal(value, other, evaluator.budget());
  if (op == Operator::kIn) return contains(other, value, evaluator.heap());
  return ordered(op, value, other, evaluator.budget());
}

Value remainder(Evaluator& evaluator, const Value& value, const Value& divisor) {
  return arithmetic(Operator::kModulo, value, divisor, evaluator.heap());
}

template <int rest>
bool has_parity(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  expect_arguments(rest == 0 ? "even" : "odd", arguments, 0);
  return equal(remainder(evaluator, value, Value::of_int(2)), Value::of_int(rest),
               evaluator.budget());
}

bool is_divisible(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  expect_arguments("divisibleby", arguments, 1);
  return equal(remainder(evaluator, value, arguments.positional[0]), Value::of_int(0),
               evaluator.budget());
}

/// The same object: what None, True and False are for.
bool is_same(Evaluator&, const Value& value, const Arguments& arguments) {
  expect_arguments("sameas", arguments, 1);
  const Value& other = arguments.positional[0];
  if (value.kind != other.kind) return false;
  switch (value.kind) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
      return value.boolean == other.boolean;
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kText:
      raise_unsupported("the test 'sameas' is not supported for values of type '{}'",
                        type_name(value));
    default:
      return value.list == other.list;
  }
}

template <std::string (*change)(std::string_view)>
bool has_case(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  expect_arguments("case", arguments, 0);
  const std::string text = to_str(value, evaluator.budget());
  // str.islower(): all cased letters are lower, and there is one.
  return change(text) == text && (to_upper(text) != text || to_lower(text) != text);
}

template <bool is_filter>
bool exists(Evaluator&, const Value& value, const Arguments& arguments) {
  expect_arguments(is_filter ? "filter" : "test", arguments, 0);
  if (!value.is_text()) return false;
  return is_filter ? find_filter(value.text()) != nullptr : find_test(value.text()) != nullptr;
}

constexpr TestFunction kTests[] = {
    {"!=", compare<Operator::kNotEqual>},
    {"boolean", simple<is_boolean>},
    {"callable", simple<is_callable>},
    {"defined", simple<is_defined>},
    {"divisibleby", is_divisible},
    {"eq", compare<Operator::kEqual>},
    {"equalto", compare<Operator::kEqual>},
    {"==", compare<Operator::kEqual>},
    {"escaped", simple<is_markup>},
    {"even", has_parity<0>},
    {"false", simple<is_false_constant>},
    {"filter", exists<true>},
    {"float", simple<is_float>},
    {"ge", compare<Operator::kGreaterEqual>},
    {">=", compare<Operator::kGreaterEqual>},
    {"greaterthan", compare<Operator::kGreater>},
    {"gt", compare<Operator::kGreater>},
    {">", compare<Operator::kGreater>},
    {"in", compare<Operator::kIn>},
    {"integer", simple<is_integer>},
    {"iterable", simple<is_iterable>},
    {"le", compare<Operator::kLessEqual>},
    {"<=", compare<Operator::kLessEqual>},
    {"lessthan", compare<Operator::kLess>},
    {"lt", compare<Operator::kLess>},
    {"<", compare<Operator::kLess>},
    {"lower", has_case<to_lower>},
    {"mapping", simple<is_mapping>},
    {"ne", compare<Operator::kNotEqual>},
    {"none", simple<is_none>},
    {"number", simple<is_number>},
    {"odd", has_parity<1>},
    {"sameas", is_same},
    {"sequence", simple<is_sequence>},
    {"string", simple<is_string>},
    {"test", exists<false>},
    {"true", simple<is_true_constant>},
    {"undefined", simple<is_undefined>},
    {"upper", has_case<to_upper>},
};

}  // namespace

const TestFunction* find_test(std::string_view name) {
  const auto* at = std::find_if(std::begin(kTests), std::end(kTests),
                                [&](const TestFunction& t) { return t.name == name; });
  return at != std::end(kTests) ? at : nullptr;
}

const TestFunction& require_test(std::string_view name) {
  if (const TestFunction* test = find_test(name)) return *test;
  throw make_error(ErrorCode::kInvalidFile, "no test named '{}'", name);
}

}  // namespace palimpsest::text::jinja
