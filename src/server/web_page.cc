#include "server/web_page.h"

#include <algorithm>

namespace palimpsest::server {
namespace {

std::string_view type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "image/svg+xml";
}

// The page runs its own scripts and talks to its own server, and that is all: whatever a model
// writes can be neither script, style nor request.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

}  // namespace

std::optional<Response> web_page(const Request& request) {
  if (request.method != "GET" || !request.path.starts_with('/')) return std::nullopt;
  const std::string_view path = std::string_view(request.path).substr(1),
                         name = path.empty() ? "index.html" : path;
  const auto files = web_files();
  const auto file =
      std::find_if(files.begin(), files.end(), [&](const WebFile& f) { return f.name == name; });
  if (file == files.end()) return std::nullopt;
  Response response;
  response.content_type = type_of(name);
  response.headers = {{"ETag", std::string(file->etag)},
                      {"Cache-Control", "no-cache"},
                      {"Content-Security-Policy", kPolicy},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Permissions-Policy", "camera=(), microphone=(), geolocation=()"}};
  if (request.if_none_match.find(file->etag) != std::string::npos)
    response.status = 304;
  else
    response.body = file->body;
  return response;
}

}  // namespace palimpsest::server
