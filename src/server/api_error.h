#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "palimpsest/error.h"
#include "server/http.h"

// What goes wrong with a request, in the forms that clients read.

namespace palimpsest::server {

/// A refusal: an HTTP status and what the body says.
class ApiError : public std::exception {
 public:
  /// `param`: the field of the request; empty for none (null in the body).
  ApiError(int http_status, std::string text, std::string field = {}, std::string name = {})
      : status(http_status),
        message(std::move(text)),
        param(std::move(field)),
        code(std::move(name)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;
  std::string message, param, code;
  int retry_after = 0;  ///< seconds; 0: not said
};

/// Whose clients read an error.
enum class ErrorForm : std::uint8_t {
  kOpenAi,     ///< {"error": {"message", "type", "param", "code"}}
  kAnthropic,  ///< {"type": "error", "error": {"type", "message"}}
};

/// JSON text; `type` follows from the status.
std::string error_body(const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);
Response error_response(const ApiError& error, ErrorForm form = ErrorForm::kOpenAi);

/// What the exception that is being handled means to a client: OverloadedError is 429 with
/// Retry-After, UnavailableError 503, Error by its code, anything else 500. Texts about files stay
/// in the log. To be called in a catch block.
ApiError current_error();

}  // namespace palimpsest::server
