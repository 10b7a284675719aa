#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "hub/settings.h"
#include "hub/url.h"

struct sockaddr;

namespace palimpsest::hub {

/// Asked often, from several threads; true ends the work with Error{kCancelled}.
using Stop = std::function<bool()>;

/// A failure that may pass: the connection broke or stalled, or the server is busy (408, 429, 5xx).
class TransientError : public Error {
 public:
  explicit TransientError(Error error, std::chrono::seconds after = {})
      : Error(std::move(error)), retry_after(after) {}
  std::chrono::seconds retry_after;  ///< what the server asked for; 0: nothing
};

using Headers = std::map<std::string, std::string, std::less<>>;  ///< names in lower case

struct HttpResponse {
  long status = 0;
  Headers headers;        ///< of the answer itself
  Headers first_headers;  ///< the hub's own words about a file kept elsewhere: of its last answer
                          ///< before it redirects to another server, or the first that has
                          ///< X-Linked-Etag
  std::chrono::seconds retry_after{0};

  bool ok() const { return status >= 200 && status < 300; }
  /// The value of a header, or "".
  static std::string_view value(const Headers& headers, std::string_view name);
};

struct HttpRequest {
  std::string url;
  bool head =
      false;  ///< ask for the headers alone; a redirection to another server is not followed
  std::uint64_t from = 0;  ///< the first byte that is wanted
  std::string if_range;    ///< the ETag that a range must belong to; told to the first server alone
  std::function<void(const HttpResponse&)> on_start;  ///< before the first byte of a 2xx answer
  std::function<void(std::span<const std::byte>)>
      on_body;  ///< the bytes of a 2xx answer; others are dropped
};

/// What a client may not do, when others name the addresses.
struct HttpRestrictions {
  std::function<bool(const Url& to)> may_follow;              ///< a redirection; empty: wherever the class allows it
  std::function<bool(const sockaddr& address)> may_connect;  ///< empty: anywhere. With it, no proxy is used
};

/// One connection at a time, kept for the next request. Not thread-safe: one client a thread.
///
/// Redirections are followed by hand, at most kRedirects of them, because what may follow depends
/// on where they lead: the token goes to the endpoint's own scheme, host and port, never to
/// another, and not over plain http except to this machine; an https endpoint never leads to http.
class HttpClient {
 public:
  static constexpr int kRedirects = 8;

  HttpClient(const Settings& settings, Stop stop, HttpRestrictions restrictions = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// The last answer, whatever its status. Throws TransientError, Error{kIo} (no such host, a bad
  /// certificate, too many or forbidden redirections), Error{kCancelled}, and what the callbacks
  /// throw.
  HttpResponse perform(const HttpRequest& request);
  const Stop& stop() const { return stop_; }

 private:
  struct Hop;
  /// What a request may go to. Throws Error{kIo}.
  Url checked(const std::string& address) const;
  HttpResponse perform_hop(const HttpRequest& request, const std::string& url, bool trusted);

  const Settings& settings_;
  const Url endpoint_;
  const Stop stop_;
  const HttpRestrictions restrictions_;
  void* curl_;
  std::string redirect_;  ///< where the last answer leads; empty: nowhere
};

}  // namespace palimpsest::hub
