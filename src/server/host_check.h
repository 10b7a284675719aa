#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::server {

/// Whether the Host header of a request is a name of this server. A page whose own name is made to
/// lead to this machine (DNS rebinding) is of one origin with the server to a browser, which then
/// lets it read all answers; but the header names the page's site. Immutable.
class HostCheck {
 public:
  /// `bound`: the address that is listened on, or "localhost". Each of `lists` is a name or an
  /// address without a port, or several with commas between. Error{kUsage} for what is neither.
  HostCheck(const std::string& bound, const std::vector<std::string>& lists);

  /// `host`, with or without a port, is localhost, in 127.0.0.0/8, ::1, `bound` or in the lists.
  /// Letters count in either case. An empty one (no header) is: browsers always send one.
  bool allows(std::string_view host) const;

 private:
  std::set<std::string> names_;  ///< as plain_host() gives them
};

/// "[::1]:8080" is "::1", "Example.org:80" "example.org"; nothing for what is no host.
std::optional<std::string> plain_host(std::string_view host);

}  // namespace palimpsest::server
