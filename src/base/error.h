#pragma once

#include <fmt/format.h>

#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "palimpsest/error.h"

namespace palimpsest {

/// What parsers of untrusted bytes return instead of throwing.
template <class T>
using Result = tl::expected<T, Error>;

/// make_error(ErrorCode::kInvalidFile, "tensor '{}': ...", name)
template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// For the error side of a Result: `return fail(ErrorCode::kInvalidFile, "...", ...)`.
template <class... Args>
tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::make_unexpected(make_error(code, format, std::forward<Args>(args)...));
}

/// The value of a Result, or its error thrown with `context` in front.
template <class T>
T value_or_throw(Result<T> result, std::string_view context = {}) {
  if (!result) {
    Error error = std::move(result.error());
    if (!context.empty()) error.add_context(context);
    throw error;
  }
  return std::move(*result);
}

}  // namespace palimpsest
