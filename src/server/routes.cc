#include "server/routes.h"

#include <charconv>
#include <iterator>
#include <optional>

namespace palimpsest::server {
namespace {

/// What stands in the place of {...}; nothing if the path is another one.
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  const std::size_t brace = pattern.find('{');
  if (brace == pattern.npos)
    return pattern == path ? std::optional<std::string_view>("") : std::nullopt;
  if (path.size() <= brace || !path.starts_with(pattern.substr(0, brace))) return std::nullopt;
  return path.substr(brace);
}

}  // namespace

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && text.size() - i > 2 &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

void Routes::add(std::vector<Route> routes) {
  routes_.insert(routes_.end(), std::make_move_iterator(routes.begin()),
                 std::make_move_iterator(routes.end()));
}

Routes::Match Routes::find(std::string_view method, std::string_view path) const {
  Match found;
  for (const Route& route : routes_) {
    const auto name = match(route.path, path);
    if (!name) continue;
    found.errors = route.errors;
    found.allowed += (found.allowed.empty() ? "" : ", ") + std::string(route.method);
    const bool whole = found.route && found.route->path.find('{') == std::string_view::npos;
    if (route.method != method || whole) continue;
    found.route = &route;
    found.name = percent_decoded(*name);
  }
  return found;
}

}  // namespace palimpsest::server
