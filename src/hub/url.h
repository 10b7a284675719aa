#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace palimpsest::hub {

/// What has to be known of an address before a request goes there.
struct Url {
  std::string scheme;  ///< "http" or "https"
  std::string host;    ///< lower case
  std::string port;    ///< always there
  bool has_user = false;

  bool is_loopback() const;
  /// The same server: scheme, host and port.
  bool same_origin(const Url& other) const {
    return scheme == other.scheme && host == other.host && port == other.port;
  }
};

/// Nothing when `text` is no absolute http or https address.
std::optional<Url> parse_url(const std::string& text);

/// Where a reference ("?cursor=x", "/path", or an address) leads from the address `base`; nothing
/// where it leads nowhere.
std::optional<std::string> resolve_url(const std::string& base, const std::string& reference);

/// Everything but letters, digits, '-', '.', '_' and '~' as %XX; '/' is kept when `keep_slashes`.
std::string escape_path(std::string_view text, bool keep_slashes);

}  // namespace palimpsest::hub
