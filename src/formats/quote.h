#pragma once

#include <string>
#include <string_view>

namespace palimpsest::formats {

/// A name out of an untrusted file, fit for an error text: in single quotes, control characters as \xNN, cut at 200 bytes.
std::string quote(std::string_view name);

}  // namespace palimpsest::formats
