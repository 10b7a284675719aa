#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "hub/url.h"

struct sockaddr;

namespace palimpsest::hub {

/// Fetches small files whose addresses others name, from hosts of a list. Redirections stay on their host. Connections go to public addresses only, whatever
/// a name leads to, unless the address itself is in the list.
class ListedFetch {
 public:
  struct Options {
    std::int64_t bytes = 16 << 20;  ///< of a file
    std::chrono::milliseconds time{10'000};
    int at_once = 4;
  };
  /// `hosts`: names and addresses with commas between them, each with a port (HOST:PORT; without one 80 and 443 are meant), or * for every host. Throws
  /// Error{kUsage} naming the entry.
  explicit ListedFetch(std::string_view hosts) : ListedFetch(hosts, Options()) {}
  ListedFetch(std::string_view hosts, const Options& options);

  /// Any thread. Error (kInvalidRequest) with a reason that may be told to strangers.
  Result<std::vector<std::byte>> get(const std::string& url) const;

 private:
  struct Entry {
    std::string host;                 ///< "*": every one
    std::optional<std::string> port;  ///< nothing: 80 and 443
  };
  bool lists(const Url& url) const;
  bool may_connect(const sockaddr& address) const;

  Options options_;
  std::vector<Entry> entries_;
  mutable std::atomic<int> running_{0};
};

}  // namespace palimpsest::hub
