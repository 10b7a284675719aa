#include "support/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>

namespace palimpsest::test {
namespace {

/// The request line and the headers; an empty method when the client left.
HttpCall read_call(int fd) {
  std::string text;
  char buffer[4096];
  while (text.find("\r\n\r\n") == text.npos) {
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0) return {};
    text.append(buffer, static_cast<std::size_t>(n));
  }
  HttpCall call;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find("\r\n", begin)) != begin; begin = end + 2) {
    const std::string line = text.substr(begin, end - begin);
    if (begin == 0) {
      const std::size_t first = line.find(' '), second = line.find(' ', first + 1);
      call.method = line.substr(0, first);
      call.target = line.substr(first + 1, second - first - 1);
      continue;
    }
    const std::size_t colon = line.find(':');
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    call.headers[name] = line.substr(line.find_first_not_of(' ', colon + 1));
  }
  return call;
}

}  // namespace

void HttpReply::answer(int status, const std::map<std::string, std::string>& headers,
                       std::string_view body, bool head) {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " x\r\nConnection: close\r\n";
  if (!headers.contains("Content-Length") && !headers.contains("Transfer-Encoding")) {
    text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  }
  for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  send(text + "\r\n");
  if (!head) send(body);
}

void HttpReply::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void HttpReply::stall() {
  char byte;
  while (!stopping_) {
    pollfd wait = {fd_, POLLIN, 0};
    if (poll(&wait, 1, 20) > 0 && recv(fd_, &byte, 1, 0) <= 0) return;
  }
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 || bind(listener_, generic, length) != 0 || listen(listener_, 64) != 0 ||
      getsockname(listener_, generic, &length) != 0) {
    throw std::runtime_error("no port for the test server");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  stopping_ = true;
  acceptor_.join();
  close(listener_);
  for (std::thread& thread : threads_) thread.join();
}

void HttpServer::accept_all() {
  while (!stopping_) {
    pollfd wait = {listener_, POLLIN, 0};
    if (poll(&wait, 1, 20) <= 0) continue;
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) threads_.emplace_back([this, fd] { serve(fd); });
  }
}

void HttpServer::serve(int fd) {
  const timeval patience{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const HttpCall call = read_call(fd);
  if (!call.method.empty()) {
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(call);
    }
    HttpReply reply(fd, stopping_);
    handler_(call, reply);
  }
  close(fd);
}

std::vector<HttpCall> HttpServer::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

}  // namespace palimpsest::test
