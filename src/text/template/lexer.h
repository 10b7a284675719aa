#pragma once

#include <string_view>
#include <vector>

#include "text/template/arena.h"

namespace palimpsest::text::jinja {

struct Token {
  enum class Kind : unsigned char {
    kData,           ///< text to be written as it is
    kVariableBegin,  ///< {{
    kVariableEnd,    ///< }}
    kBlockBegin,     ///< {%
    kBlockEnd,       ///< %}
    kName,
    kInteger,  ///< as written
    kFloat,    ///< as written
    kString,   ///< escapes resolved
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string_view text;
  int line;
};

/// The tokens of `source`, closed by one kEnd. Line ends become "\n", one at the end of the source
/// is dropped, white space around tags is cut as trim_blocks, lstrip_blocks and the signs '-' and
/// '+' say. Texts live in `arena`. Throws Error; its text begins with the line.
std::vector<Token> tokenize(std::string_view source, Arena& arena);

}  // namespace palimpsest::text::jinja
