#include "server/host_check.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/error.h"

namespace palimpsest::server {
namespace {

/// An address in its one spelling; nothing for what is none of `family`.
std::optional<std::string> address(int family, const std::string& text) {
  unsigned char bytes[sizeof(in6_addr)];
  char out[INET6_ADDRSTRLEN];
  if (inet_pton(family, text.c_str(), bytes) != 1) return std::nullopt;
  return inet_ntop(family, bytes, out, sizeof out);
}

bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-_") == text.npos;
}

/// A colon and digits, or nothing.
bool is_port(std::string_view text) {
  return text.empty() || (text[0] == ':' && text.find_first_not_of("0123456789", 1) == text.npos);
}

}  // namespace

std::optional<std::string> plain_host(std::string_view host) {
  std::string lower(host);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  const bool bracket = lower.starts_with('[');
  const std::size_t end = bracket ? lower.find(']') : std::min(lower.find(':'), lower.size());
  if (end == lower.npos || !is_port(std::string_view(lower).substr(end + (bracket ? 1 : 0)))) return std::nullopt;
  const std::string name = bracket ? lower.substr(1, end - 1) : lower.substr(0, end);
  if (bracket) return address(AF_INET6, name);
  if (auto four = address(AF_INET, name)) return four;
  return is_name(name) ? std::optional(name) : std::nullopt;
}

HostCheck::HostCheck(const std::string& bound, const std::vector<std::string>& lists) {
  const auto name_in = [](const std::string& text) {  // without a port, so ':' is one of an address
    const auto six = address(AF_INET6, text);
    const bool has_port = text.find(':') != text.npos && !text.ends_with(']');
    return six || has_port ? six : plain_host(text);
  };
  if (const auto name = name_in(bound)) names_.insert(*name);  // that of another kind no Host can say
  for (const std::string& list : lists) {
    for (std::size_t at = 0; at <= list.size();) {
      const std::size_t end = std::min(list.find(',', at), list.size());
      const std::string text = list.substr(at, end - at);
      const auto name = name_in(text);
      if (!name) throw make_error(ErrorCode::kUsage, "--allowed-host: '{}' is neither a name nor an address (without scheme, port and path)", text);
      names_.insert(*name);
      at = end + 1;
    }
  }
}

bool HostCheck::allows(std::string_view host) const {
  if (host.empty()) return true;
  const auto name = plain_host(host);
  if (!name) return false;
  const bool loopback = *name == "localhost" || *name == "::1" || (name->starts_with("127.") && address(AF_INET, *name));
  return loopback || names_.contains(*name);
}

}  // namespace palimpsest::server
