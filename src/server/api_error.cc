#include "server/api_error.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "palimpsest/engine.h"

namespace palimpsest::server {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 413:
      return "request_too_large";
    case 500:
      return "api_error";
    default:
      return error_type(status);
  }
}

/// "messages[2].content: not a list" begins with the field it is about.
std::string field_in_front(const std::string& text) {
  const std::size_t end = text.find(": ");
  if (end == std::string::npos) return {};
  const std::string front = text.substr(0, end);
  for (const char* field : {"messages", "input[", "tools", "tool_choice", "reasoning_effort"}) {
    if (front.starts_with(field)) return front;
  }
  return {};
}

ApiError from_library(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kUsage:
    case ErrorCode::kInvalidRequest:
    case ErrorCode::kUnsupported:
      return {400, error.text(), field_in_front(error.text())};
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kCancelled:
      return {503, error.text()};
    case ErrorCode::kIo:
    case ErrorCode::kInvalidFile:
      log::warning("{}", error.text());
      return {500, "the server could not read or write one of its files; its log says which"};
    default:
      return {500, error.text()};
  }
}

}  // namespace

std::string error_body(const ApiError& error, ErrorForm form) {
  nlohmann::ordered_json body;
  if (form == ErrorForm::kAnthropic) {
    body = {{"type", "error"},
            {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}}}};
  } else {
    body["error"] = {{"message", error.message},
                     {"type", error_type(error.status)},
                     {"param", nullptr},
                     {"code", nullptr}};
    if (!error.param.empty()) body["error"]["param"] = error.param;
    if (!error.code.empty()) body["error"]["code"] = error.code;
  }
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Response error_response(const ApiError& error, ErrorForm form) {
  Response response;
  response.status = error.status;
  response.body = error_body(error, form);
  if (error.retry_after > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  return response;
}

ApiError current_error() {
  try {
    throw;
  } catch (const ApiError& error) {
    return error;
  } catch (const OverloadedError& error) {
    ApiError answer(429, error.text(), {}, "overloaded");
    answer.retry_after = static_cast<int>(std::ceil(error.retry_after_seconds()));
    return answer;
  } catch (const UnavailableError&) {
    return {503, "the server is shutting down", {}, "shutting_down"};
  } catch (const Error& error) {
    return from_library(error);
  } catch (const std::bad_alloc&) {
    return {503, "out of memory"};
  } catch (const std::exception& error) {
    return {500, std::string("unexpected: ") + error.what()};
  } catch (...) {
    return {500, "unexpected"};
  }
}

}  // namespace palimpsest::server
