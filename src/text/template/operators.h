#pragma once

// Python's operators on values. What Python refuses raises an Error with Python's words.

#include "text/template/ast.h"
#include "text/template/value.h"

namespace palimpsest::text::jinja {

/// a == b.
bool equal(const Value& a, const Value& b, Budget& budget, int depth = 0);
/// a < b for op kLess, and so on. Raises for types without an order.
bool ordered(Operator op, const Value& a, const Value& b, Budget& budget, int depth = 0);
/// item in container.
bool contains(const Value& container, const Value& item, Heap& heap);
/// + - * / // % **
Value arithmetic(Operator op, const Value& a, const Value& b, Heap& heap);
Value negate(const Value& value);
Value positive(const Value& value);
/// object[start:stop:step]; kMissing bounds are absent.
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step,
            Heap& heap);
/// Raises "unhashable type" for what cannot be a dict key.
void require_hashable(const Value& value, int depth = 0);
/// format % argument
Value format_percent(const Value& format, const Value& argument, Heap& heap);
/// `items` in ascending order of `keys` (stable); descending if `reverse`.
std::vector<Value> sorted(std::span<const Value> items, std::span<const Value> keys, bool reverse,
                          Budget& budget);

}  // namespace palimpsest::text::jinja
