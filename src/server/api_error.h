#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "palimpsest/error.h"
#include "server/http.h"

// What goes wrong with a request, in the form that clients of OpenAI's interface read.

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

/// {"error": {"message", "type", "param", "code"}}; `type` and a missing code follow from the
/// status.
std::string error_body(int status, std::string_view message, std::string_view param = {},
                       std::string_view code = {});
Response error_response(int status, std::string_view message, std::string_view param = {},
                        std::string_view code = {});
Response error_response(const ApiError& error);

/// What the exception that is being handled means to a client: OverloadedError is 429 with
/// Retry-After, UnavailableError 503, Error by its code, anything else 500. To be called in a catch
/// block.
ApiError current_error();

}  // namespace palimpsest::server
