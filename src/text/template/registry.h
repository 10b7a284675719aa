#pragma once

// The filters, tests, methods and global functions that exist here, by name.

#include <string_view>

#include "text/template/macro.h"
#include "text/template/value.h"

namespace palimpsest::text::jinja {

class Evaluator;

struct FilterFunction {
  std::string_view name;
  Value (*function)(Evaluator&, const Value& input, const Arguments& arguments);
};
struct TestFunction {
  std::string_view name;
  bool (*function)(Evaluator&, const Value& input, const Arguments& arguments);
};

/// Null if there is none of that name. The throwing forms say "no filter named 'x'" or "the filter
/// 'x' is not supported".
const FilterFunction* find_filter(std::string_view name);
const TestFunction* find_test(std::string_view name);
const FilterFunction& require_filter(std::string_view name);
const TestFunction& require_test(std::string_view name);

/// The method `name` of a value of this kind; null if Python has none. Throws kUnsupported for one
/// that Python has and this interpreter lacks.
const MethodEntry* find_method(const Value& object, std::string_view name);
/// Whether the sandbox refuses this attribute of `object`: list.append and its like, names with
/// underscores in front.
bool is_unsafe_attribute(const Value& object, std::string_view name);

/// range, namespace, dict, raise_exception, strftime_now.
const MethodEntry* find_global(std::string_view name);

}  // namespace palimpsest::text::jinja
