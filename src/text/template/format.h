#pragma once

#include <string_view>

#include "text/template/value.h"

namespace palimpsest::text::jinja {

/// str.format: {}, {0} and {name}, without conversions, attributes and format specifications. (`%`
/// is format_percent in operators.h.)
Value format_braces(std::string_view format, const Arguments& arguments, Heap& heap);

}  // namespace palimpsest::text::jinja
