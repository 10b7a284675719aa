#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// A client that sends what it is told, byte for byte.

namespace palimpsest::test {

using Json = nlohmann::ordered_json;

struct Answer {
  int status = 0;
  std::string head, body;  ///< body without chunk borders
  bool whole = false;      ///< it came to its own end

  Json json() const { return Json::parse(body, nullptr, false); }
  /// The value of a header, its name in lower case.
  std::string header(std::string_view name) const {
    std::string lower = head;
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    const std::size_t at = lower.find("\r\n" + std::string(name) + ": ");
    if (at == lower.npos) return {};
    const std::size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
  /// What follows "data: " of each event.
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t end = std::min(body.find("\n\n", at), body.size());
      if (body.compare(at, 7, "event: ") == 0) at = body.find('\n', at) + 1;  // the name is in the data too
      if (body.compare(at, 6, "data: ") == 0) out.push_back(body.substr(at + 6, end - at - 6));
      at = end + 2;
    }
    return out;
  }
};

class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("cannot connect");
    const timeval longest{120, 0};  // a test that hangs should fail
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
  }
  ~RawClient() { leave(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void leave() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  void end_sending() { shutdown(socket_, SHUT_WR); }
  /// Leaves without a word of farewell, as a process that is killed may.
  void reset() {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    leave();
  }
  /// False when the other side has closed.
  bool send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  /// Reads until `text` has come. False at the end of the connection.
  bool read_until(std::string_view text) {
    while (unread_.find(text) == unread_.npos) {
      if (!more()) return false;
    }
    return true;
  }
  /// One answer, however it is framed.
  Answer read() {
    Answer answer;
    if (!read_until("\r\n\r\n")) return answer;
    const std::size_t end = unread_.find("\r\n\r\n") + 4;
    answer.head = unread_.substr(0, end);
    unread_.erase(0, end);
    answer.status = std::atoi(answer.head.c_str() + 9);
    if (answer.status == 100) return read();
    if (answer.header("transfer-encoding") == "chunked") {
      answer.whole = read_chunks(answer.body);
    } else if (const std::string length = answer.header("content-length"); !length.empty()) {
      const std::size_t size = std::stoull(length);
      while (unread_.size() < size && more()) {
      }
      answer.whole = unread_.size() >= size;
      answer.body = unread_.substr(0, size);
      unread_.erase(0, size);
    } else {
      while (more()) {
      }
      answer.body = std::exchange(unread_, {});
      answer.whole = true;
    }
    return answer;
  }
  /// Whether the other side closes.
  bool closed() {
    while (more()) {
    }
    return true;
  }

 private:
  bool more() {
    char piece[16384];
    const ssize_t n = recv(socket_, piece, sizeof piece, 0);
    if (n > 0) unread_.append(piece, static_cast<std::size_t>(n));
    return n > 0;
  }
  bool read_chunks(std::string& body) {
    while (true) {
      if (!read_until("\r\n")) return false;
      const std::size_t size = std::strtoull(unread_.c_str(), nullptr, 16);
      const std::size_t begin = unread_.find("\r\n") + 2;
      while (unread_.size() < begin + size + 2) {
        if (!more()) return false;
      }
      body += unread_.substr(begin, size);
      unread_.erase(0, begin + size + 2);
      if (size == 0) return true;
    }
  }

  int socket_;
  std::string unread_;
};

inline std::string post_text(const std::string& path, const std::string& body,
                             const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
inline Answer post(std::uint16_t port, const std::string& path, const std::string& body,
                   const std::string& headers = "") {
  RawClient client(port);
  client.send(post_text(path, body, headers));
  return client.read();
}
inline Answer post(std::uint16_t port, const std::string& path, const Json& body,
                   const std::string& headers = "") {
  return post(port, path, body.dump(), headers);
}
inline Answer get(std::uint16_t port, const std::string& path, const std::string& headers = "") {
  RawClient client(port);
  client.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  return client.read();
}

}  // namespace palimpsest::test
