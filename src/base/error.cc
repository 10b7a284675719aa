#include "base/error.h"

#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace palimpsest {

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kUsage: return "usage";
    case ErrorCode::kInvalidFile: return "invalid file";
    case ErrorCode::kInvalidRequest: return "invalid request";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kOutOfMemory: return "out of memory";
    case ErrorCode::kIo: return "input/output";
    case ErrorCode::kNumeric: return "numeric";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kInternal: return "internal";
  }
  return "internal";
}

int exit_code(ErrorCode code) noexcept { return code == ErrorCode::kUsage ? 2 : 1; }

namespace base {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "%s:%d: check failed: %s (%s)\nThis is a bug in palimpsest; please report it.\n", file, line,
               condition, message);
  std::abort();
}

}  // namespace base
}  // namespace palimpsest
