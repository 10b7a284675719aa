#pragma once

// String work that methods and filters share.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/template/value.h"

namespace palimpsest::text::jinja {

/// `text` without white space, or without the characters of `chars` unless that is kMissing or
/// None, at either side asked for.
Value strip(Heap& heap, const Value& text, const Value& chars, bool front, bool back);

/// str.splitlines(): at every line end that Python knows; views into `text`.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

/// An int argument; raises for any other type.
std::int64_t integer_argument(const Value& value);
/// `count` spaces, charged; none for a negative count.
std::string repeat_space(Budget& budget, std::int64_t count);
/// Raises for a text that went through `safe` or `escape`, where markupsafe would escape what is
/// put into it.
void refuse_markup(const Value& text, std::string_view operation);

}  // namespace palimpsest::text::jinja
