#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/host_check.h"

// HTTP/1.1 without any of its library showing: requests in, whole answers or server-sent events out.

namespace palimpsest::server {

struct Request {
  std::string id;      ///< the client's X-Request-Id where it is [A-Za-z0-9._-]{1,64}, else a new one
  std::string method;  ///< "GET"
  std::string path;    ///< without query, as it came
  std::string query;   ///< behind the '?', as it came
  std::string name;    ///< what {...} of a route's path stands for (server/routes.h)
  /// Headers; empty: none. X-Api-Key counts as authorization "Bearer" where there is no other.
  std::string authorization, content_type, if_none_match;
  std::string peer;                         ///< address of the client
  std::string body;
  bool may_take_long = false;  ///< it is handled on a thread that no other request waits for
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  ///< more of them
};

/// Where the answer to one request goes: either send(), or write()s and end(). All methods return at
/// once and may be called from any thread, one at a time. Dropping the last reference to a reply
/// that was not answered answers it with 500, or breaks its stream off.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void send(Response response) = 0;
  /// Begins a text/event-stream: from here on a comment is sent now and then, so that nobody in
  /// between takes a long prompt for a dead connection. write() begins it too.
  virtual void begin_stream() = 0;
  /// Appends `text` to the stream. False when nobody will read it: the client has left, or has so
  /// much unread (HttpOptions::unread_bytes) that it is given up.
  virtual bool write(std::string text) = 0;
  virtual void end() = 0;
  /// `f` is called once if the client leaves before the answer's end, at once if it has left. On
  /// the transport's thread: it must not wait.
  virtual void on_gone(std::function<void()> f) = 0;
};

class Handler {
 public:
  virtual ~Handler() = default;
  /// Is shown a request whose body has not been read yet; an answer given here spares it. On the
  /// transport's thread: it must not wait. Throws nothing.
  virtual std::optional<Response> admit(const Request& request) = 0;
  /// What a client is told of a request that HTTP itself refuses: a header or a body that is broken
  /// or too large. `request` may be empty. On the transport's thread. Throws nothing.
  virtual Response refusal(const Request& request, int status, const std::string& text) = 0;
  /// On one of HttpOptions::workers threads. Throws nothing.
  virtual void handle(Request request, std::shared_ptr<Reply> reply) = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";  ///< an address of this machine, or "localhost"
  std::uint16_t port = 8080;       ///< 0: a free one
  int workers = 2;                 ///< threads that read requests and turn text into tokens
  std::size_t header_bytes = 16 << 10;
  std::size_t body_bytes = 16 << 20;
  std::size_t connections = 1024;        ///< more are told 503
  std::size_t unread_bytes = 1 << 20;    ///< of one stream
  std::chrono::milliseconds header_time{30'000};  ///< from the connection, or the last answer, until a header is whole
  std::chrono::milliseconds body_time{60'000};    ///< until a body is whole
  std::chrono::milliseconds write_time{30'000};   ///< until the client has taken what was written
  std::chrono::milliseconds ping_time{15'000};    ///< between comments of a stream that has nothing to say
  /// One line for each request, without anything of its body. On the transport's thread.
  std::function<void(std::string_view line)> log;
  std::optional<HostCheck> hosts;  ///< requests for other hosts are told 403; nothing: any host will do
};

/// Whether `host` can be reached from this machine only.
bool is_loopback(const std::string& host);

/// Counts from the start.
struct HttpCounts {
  std::uint64_t requests = 0, client_errors = 0, server_errors = 0, gone = 0, refused_connections = 0;
  std::int64_t connections = 0;  ///< now
};

/// Listens, on one thread of its own, from construction on. Methods may be called from any thread.
class HttpServer {
 public:
  /// Throws Error{kUsage} for a host that is no address, Error{kIo} when it cannot listen there.
  /// `handler` outlives the server.
  HttpServer(HttpOptions options, Handler& handler);
  /// Gives up what is still there.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  HttpCounts counts() const;
  /// Returns at the first SIGINT or SIGTERM, whose handlers it replaces; at the second the process
  /// ends with code 130.
  void wait_for_signal();
  /// Takes no more connections and closes idle ones; answers under way go on, and are the last of
  /// their connection.
  void stop_accepting();
  /// Waits until all connections are closed, at most `longest`. False: some are left.
  bool drain(std::chrono::milliseconds longest);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace palimpsest::server
