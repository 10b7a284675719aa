#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace palimpsest::test {

struct HttpCall {
  std::string method, target;                  ///< "GET", "/path?query"
  std::map<std::string, std::string> headers;  ///< names in lower case

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

/// The client's end of one call. The handler says every byte, so it can lie, stop half way or say
/// nothing.
class HttpReply {
 public:
  HttpReply(int fd, const std::atomic<bool>& stopping) : fd_(fd), stopping_(stopping) {}
  /// "HTTP/1.1 STATUS", the headers, "Connection: close", and a body with its Content-Length unless
  /// the headers have one.
  void answer(int status, const std::map<std::string, std::string>& headers,
              std::string_view body = "", bool head = false);
  void send(std::string_view bytes);
  /// Says nothing until the client gives up or the server stops.
  void stall();

 private:
  int fd_;
  const std::atomic<bool>& stopping_;
};

/// An HTTP/1.1 server on a free port of 127.0.0.1, one call a connection, each on a thread of its
/// own.
class HttpServer {
 public:
  using Handler = std::function<void(const HttpCall&, HttpReply&)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }
  /// All calls so far, in the order in which they came.
  std::vector<HttpCall> calls() const;

 private:
  void accept_all();
  void serve(int fd);

  Handler handler_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<HttpCall> calls_;
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace palimpsest::test
