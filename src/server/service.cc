#include "server/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "server/api_error.h"
#include "server/constraint_fields.h"
#include "server/endpoints.h"
#include "server/picture_fields.h"
#include "server/web_page.h"

namespace palimpsest::server {
namespace {

/// Requests that may wait for their grammar to be made, and for their pictures to be read.
constexpr std::size_t kMostPreparing = 64;
/// Threads that fetch pictures.
constexpr std::size_t kFetching = 4;

bool is_json_type(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  std::string lower(type);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower == "application/json";
}

}  // namespace

Service::Service(Engine& engine, Tokenizer tokenizer, ServiceOptions options)
    : backend_(engine, std::move(tokenizer), std::move(options)),
      preparing_(base::TaskThread::AtEnd::kDrop, kMostPreparing) {
  for (std::size_t i = 0; i < (backend_.options.fetch ? 1 + kFetching : 1); ++i)
    reading_.emplace_back(base::TaskThread::AtEnd::kDrop, kMostPreparing);
  for (auto* group : {&completion_routes, &messages_routes, &responses_routes, &embedding_routes, &model_routes,
                      &text_routes, &session_routes, &status_routes, &memory_routes})
    routes_.add(group(backend_));
}

std::optional<Response> Service::admit(const Request& request) {
  if (backend_.options.web) {
    if (auto file = web_page(request)) return file;
  }
  const Routes::Match match = routes_.find(request.method, request.path);
  const Route* route = match.route;
  const auto refused = [&](int status, std::string text, std::string code) {
    return error_response(ApiError(status, std::move(text), {}, std::move(code)), match.errors);
  };
  if (!backend_.options.keys.empty() && !(route && route->open) && !backend_.key_of(request)) {
    Response response = refused(
        401, "the header \"Authorization: Bearer KEY\" is missing or its key is not known",
        "invalid_api_key");
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (match.allowed.empty()) return refused(404, "no such path", "unknown_path");
  if (!route) {
    Response response =
        refused(405, "this path takes " + match.allowed + " only", "method_not_allowed");
    response.headers.emplace_back("Allow", match.allowed);
    return response;
  }
  // Pages of other sites cannot send JSON without asking first; a body without any type they can.
  if (route->method == "POST" && !is_json_type(request.content_type))
    return refused(415, "the body must be application/json", "unsupported_media_type");
  return std::nullopt;
}

void Service::handle(Request request, std::shared_ptr<Reply> reply) {
  Routes::Match match = routes_.find(request.method, request.path);  // admit() has found it
  request.name = std::move(match.name);
  perform(*match.route, std::make_shared<Request>(std::move(request)), reply);
}

void Service::perform(const Route& route, std::shared_ptr<Request> request,
                      const std::shared_ptr<Reply>& reply) {
  try {
    route.action(*request, reply);
  } catch (const GrammarNotMade&) {
    prepare(preparing_, "grammars to be made", route, std::move(request), reply);
  } catch (const PicturesNotRead& pictures) {
    prepare(reader(pictures.remote), "pictures to be read", route, std::move(request), reply);
  } catch (...) {
    reply->send(error_response(current_error(), route.errors));
  }
}

base::TaskThread& Service::reader(bool remote) {
  if (!remote || reading_.size() == 1) return reading_.front();
  return reading_[1 + fetches_++ % kFetching];
}

/// Handles a request again, where that may take long. Who leaves in the meantime is forgotten.
void Service::prepare(base::TaskThread& thread, const char* what, const Route& route,
                      std::shared_ptr<Request> request, const std::shared_ptr<Reply>& reply) {
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  reply->on_gone([gone] { *gone = true; });
  request->may_take_long = true;
  const bool taken = thread.post([this, &route, request = std::move(request), reply, gone] {
    if (!*gone) perform(route, request, reply);
    warm();
  });
  if (taken) return;
  ApiError error(429, fmt::format("{} requests wait for their {}, and no more may", kMostPreparing, what), {}, "overloaded");
  error.retry_after = 1;
  reply->send(error_response(error, route.errors));
}

/// Makes masks ahead, a few at a time, so that requests which come meanwhile need not wait for all.
void Service::warm() {
  // Not taken: many wait, each of which will come here again.
  (void)preparing_.post([this] {
    if (backend_.constraints.warm()) warm();
  });
}

Response Service::refusal(const Request& request, int status, const std::string& text) {
  return error_response(ApiError(status, text),
                        routes_.find(request.method, request.path).errors);
}

}  // namespace palimpsest::server
