#pragma once

#include <cstdio>

namespace palimpsest::report {

/// What a stream can show. Asked once, when a command starts.
struct Terminal {
  bool interactive = false;  ///< a person looks at it, and lines may be rewritten
  bool color = false;        ///< interactive, and NO_COLOR is not set (https://no-color.org)
  int width = 80;            ///< columns; 80 where the system does not say
};

/// Looks at the file behind `stream`, at TERM ("dumb" is not interactive) and at NO_COLOR.
Terminal inspect_terminal(std::FILE* stream);

}  // namespace palimpsest::report
