#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "server/http.h"

namespace palimpsest::server {

/// A file of src/server/web/, compiled in by cmake/embed_files.cmake.
struct WebFile {
  std::string_view name;  ///< "app.js"
  std::string_view body;
  std::string_view etag;  ///< quoted, a hash of the body
};
std::span<const WebFile> web_files();

/// The answer to a GET for a file of the web page ("/" is index.html); nothing for any other path.
/// 304 without a body where the client has it.
std::optional<Response> web_page(const Request& request);

}  // namespace palimpsest::server
