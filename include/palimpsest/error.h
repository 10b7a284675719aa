#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace palimpsest {

/// What went wrong, as far as a caller can act on it.
enum class ErrorCode {
  kUsage,           ///< a flag or an argument is wrong: exit code 2, HTTP 400
  kInvalidFile,     ///< a model, tokenizer or chat file does not hold what it should
  kInvalidRequest,  ///< a prompt, id or option that this model cannot serve
  kUnsupported,     ///< well formed, but not something this build can run
  kOutOfMemory,     ///< the plan needs more bytes than there are
  kIo,              ///< the operating system refused a read, write or map
  kNumeric,         ///< non-finite values where finite ones are required
  kCancelled,       ///< the caller asked to stop
  kInternal,        ///< a bug in this library
};

/// The one exception type of the library. Thrown while loading, for requests and at API edges, never by kernels.
///
/// `what()` is the whole text: the trail of contexts from the outermost inwards, then the message, joined by ": "
/// ("models/demo: model.safetensors: tensor 'lm_head.weight': expected [4096, 384], found [4096, 383]").
/// Not thread-safe while being built; immutable once thrown.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message) : code_(code), text_(std::move(message)) {}

  ErrorCode code() const noexcept { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }
  const std::string& text() const noexcept { return text_; }

  /// Puts `context` (a file, tensor or field) in front of the text and returns *this.
  Error& add_context(std::string_view context) {
    text_.insert(0, ": ").insert(0, context);
    return *this;
  }

 private:
  ErrorCode code_;
  std::string text_;
};

/// "usage", "invalid file", ...: stable names for logs and JSON.
std::string_view error_code_name(ErrorCode code) noexcept;

/// 2 for kUsage, 1 for everything else.
int exit_code(ErrorCode code) noexcept;

}  // namespace palimpsest
