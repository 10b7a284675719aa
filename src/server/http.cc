// The transport, and the only file that sees Boost. Everything of a connection happens on one
// thread; other threads post to it.

#include "server/http.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "server/api_error.h"
#include "server/reply_state.h"

namespace palimpsest::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Parser = http::request_parser<http::string_body>;

constexpr std::size_t kBufferBytes = 64 << 10;

auto into(error_code& ec) {
  return asio::redirect_error(asio::use_awaitable, ec);
}

bool is_request_id(std::string_view text) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !text.empty() && text.size() <= 64 && text.find_first_not_of(kAllowed) == text.npos;
}

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

/// Letters that are safe in a line of a log.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, 200));
  for (char& c : out) {
    if (c <= ' ' || c > '~') c = '?';
  }
  return out;
}

class Connection;

/// What connections share.
struct Shared {
  Shared(HttpOptions options_in, Handler& handler_in)
      : options(std::move(options_in)),
        handler(handler_in),
        workers(static_cast<std::size_t>(options.workers)) {}

  std::string next_id() { return fmt::format("req-{:08x}-{}", prefix, ++last_id); }

  HttpOptions options;
  Handler& handler;
  std::shared_ptr<asio::io_context> io = std::make_shared<asio::io_context>(1);
  asio::thread_pool workers;
  bool stopping = false;
  std::set<Connection*> connections;
  std::uint32_t prefix = std::random_device{}();
  std::uint64_t last_id = 0;

  std::mutex mutex;  ///< of the two below
  std::condition_variable emptied;
  HttpCounts counts;

  template <class F>
  void count(F f) {
    const std::lock_guard lock(mutex);
    f(counts);
  }
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Shared& shared)
      : shared_(shared),
        stream_(std::move(socket)),
        buffer_(kBufferBytes + shared.options.header_bytes),
        watch_over_(*shared.io, Clock::time_point::max()) {
    error_code ec;
    const auto end = stream_.socket().remote_endpoint(ec);
    if (!ec) peer_ = end.address().to_string();
    stream_.socket().set_option(tcp::no_delay(true), ec);
    shared_.connections.insert(this);
    shared_.count([](HttpCounts& c) { ++c.connections; });
  }
  ~Connection() {
    shared_.connections.erase(this);
    shared_.count([](HttpCounts& c) { --c.connections; });
    shared_.emptied.notify_all();
  }

  void close_if_idle() {
    if (idle_) close();
  }
  void close() {
    if (state_) state_->leave();
    stream_.close();
  }

  awaitable<void> run() {
    bool keep = true;
    while (keep && !shared_.stopping) {
      Parser parser;
      parser.header_limit(static_cast<std::uint32_t>(shared_.options.header_bytes));
      parser.body_limit(shared_.options.body_bytes);
      stream_.expires_after(shared_.options.header_time);
      error_code ec;
      idle_ = true;
      co_await http::async_read_header(stream_, buffer_, parser, into(ec));
      idle_ = false;
      started_ = Clock::now();
      if (ec) {
        co_await refuse_header(ec, parser);
        break;
      }
      keep = co_await exchange(parser);
    }
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
    stream_.close();
  }

  /// Too many are there: says so and closes.
  awaitable<void> turn_away() {
    shared_.count([](HttpCounts& c) { ++c.refused_connections; });
    Response response = error_response(ApiError(503, "too many connections"));
    response.headers.emplace_back("Retry-After", "1");
    const Request unread;  // g++ 12 destroys a temporary in a co_await twice
    co_await write_response(unread, std::move(response), 11, false);
    co_await linger(std::chrono::milliseconds(200));
    stream_.close();
  }

 private:
  /// Broken requests get an answer where one can be given.
  awaitable<void> refuse_header(error_code ec, const Parser& parser) {
    int status = 0;
    std::string text;
    if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
      status = 431;
      text = fmt::format("the header has more than {} bytes", shared_.options.header_bytes);
    } else if (ec == http::error::body_limit) {
      status = 413;
      text = fmt::format("the body has more than {} bytes", shared_.options.body_bytes);
    } else if (ec.category() == http::make_error_code(http::error::bad_method).category() &&
               ec != http::error::end_of_stream && ec != http::error::partial_message) {
      status = 400;
      text = fmt::format("this is not HTTP: {}", ec.message());
    }
    if (status == 0) co_return;  // it left, or said nothing in time
    const Request request = describe(parser.get());
    co_await refuse(request, status, std::move(text));
  }

  awaitable<void> refuse(const Request& request, int status, std::string text) {
    Response response = shared_.handler.refusal(request, status, text);
    co_await write_response(request, std::move(response), 11, false);
    co_await linger(std::chrono::seconds(2));
  }

  Request describe(const http::request<http::string_body>& message) {
    Request request;
    const std::string_view wanted = view(message["X-Request-Id"]);
    request.id = is_request_id(wanted) ? std::string(wanted) : shared_.next_id();
    request.method = view(message.method_string());
    const std::string_view target = view(message.target());
    request.path = target.substr(0, target.find('?'));
    if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
    request.authorization = view(message[http::field::authorization]);
    // Where clients of Anthropic's interface put it.
    if (const std::string_view key = view(message["X-Api-Key"]); request.authorization.empty() && !key.empty())
      request.authorization = "Bearer " + std::string(key);
    request.content_type = view(message[http::field::content_type]);
    request.if_none_match = view(message[http::field::if_none_match]);
    request.peer = peer_;
    return request;
  }

  /// One request and its answer. Whether another may follow.
  awaitable<bool> exchange(Parser& parser) {
    Request request = describe(parser.get());
    const unsigned version = parser.get().version();
    const bool keep = parser.get().keep_alive();
    const bool has_body = !parser.is_done();
    int wrong = 0;
    std::string text = wrong_host(parser.get(), wrong);
    if (wrong != 0) {
      co_await refuse(request, wrong, std::move(text));
      co_return false;
    }
    if (std::optional<Response> refused = shared_.handler.admit(request)) {
      const bool sent = co_await write_response(request, std::move(*refused), version, keep && !has_body);
      if (has_body) co_await linger(std::chrono::seconds(2));
      co_return sent && keep && !has_body;
    }
    error_code ec;
    stream_.expires_after(shared_.options.body_time);
    if (has_body && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      const std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await asio::async_write(stream_, asio::buffer(go_on), into(ec));
      if (ec) co_return false;
    }
    co_await http::async_read(stream_, buffer_, parser, into(ec));
    if (ec) {
      co_await refuse_body(request, ec);
      co_return false;
    }
    request.body = std::move(parser.get().body());
    co_return co_await answer(request, version, keep);
  }

  /// The text of a refusal and its status.
  std::string wrong_host(const http::request<http::string_body>& message, int& status) const {
    const std::string_view host = view(message[http::field::host]);
    if (message.count(http::field::host) > 1) {
      status = 400;
      return "there is more than one Host header";
    }
    if (!shared_.options.hosts || shared_.options.hosts->allows(host)) return {};
    status = 403;
    return fmt::format("the header Host says \"{}\", which is no name of this server (serve --allowed-host NAME lets one in)", host.substr(0, 100));
  }

  awaitable<void> refuse_body(const Request& request, error_code ec) {
    if (ec == http::error::body_limit || ec == http::error::buffer_overflow) {
      std::string text = fmt::format("the body has more than {} bytes", shared_.options.body_bytes);
      co_await refuse(request, 413, std::move(text));
    } else if (ec.category() == http::make_error_code(http::error::bad_method).category() &&
               ec != http::error::partial_message) {
      std::string text = fmt::format("the body is broken: {}", ec.message());
      co_await refuse(request, 400, std::move(text));
    } else {
      shared_.count([](HttpCounts& c) { ++c.gone; });
    }
  }

  /// Hands the request to the handler and its answer to the client.
  awaitable<bool> answer(Request& request, unsigned version, bool keep) {
    const auto state = state_ = std::make_shared<ReplyState>(shared_.io);
    std::string body = std::exchange(request.body, {});
    const Request brief = request;  // without the body, for the log
    request.body = std::move(body);
    asio::post(shared_.workers,
               [&shared = shared_, request = std::move(request),
                reply = std::make_shared<ReplyHandle>(state, shared_.options.unread_bytes)]() mutable {
                 shared.handler.handle(std::move(request), std::move(reply));
               });
    stream_.expires_never();
    watch(state);
    while (!state->whole && !state->streaming && !state->gone) co_await wait(*state);
    bool sent = false;
    if (state->whole)
      sent = co_await write_response(brief, std::move(*state->whole), version, keep);
    else if (!state->gone)
      sent = co_await write_stream(brief, *state, version, keep);
    if (!sent) {
      state->leave();
      shared_.count([](HttpCounts& c) { ++c.gone; });
      if (!state->streaming && !state->whole) log(brief, 499, 0);
    }
    state->finish();
    state_.reset();
    co_await stop_watching();
    co_return sent && keep && !shared_.stopping;
  }

  /// A read that is always pending notices when the client leaves.
  void watch(const std::shared_ptr<ReplyState>& state) {
    if (buffer_.size() + 1024 > buffer_.max_size()) return;
    watching_ = true;
    stream_.async_read_some(buffer_.prepare(1024), [self = shared_from_this(), state](
                                                       error_code ec, std::size_t size) {
      self->buffer_.commit(size);  // of the next request
      self->watching_ = false;
      self->watch_over_.cancel();
      if (ec && ec != asio::error::operation_aborted) state->leave();
    });
  }
  awaitable<void> stop_watching() {
    if (watching_) stream_.cancel();
    while (watching_) {
      error_code ec;
      co_await watch_over_.async_wait(into(ec));
    }
  }

  awaitable<void> wait(ReplyState& state) {
    error_code ec;
    co_await state.changed.async_wait(into(ec));
  }

  awaitable<bool> write_response(const Request& request, Response response, unsigned version,
                                 bool keep) {
    http::response<http::string_body> message;
    message.version(version);
    message.result(static_cast<unsigned>(response.status));
    set_headers(message, request, response.content_type);
    for (const auto& [name, value] : response.headers) message.set(name, value);
    message.keep_alive(keep && !shared_.stopping);
    const std::size_t size = response.body.size();
    if (response.status != 304)
      message.content_length(size);  // it would be that of the body the client has
    if (request.method != "HEAD") message.body() = std::move(response.body);
    stream_.expires_after(shared_.options.write_time);
    error_code ec;
    http::response_serializer<http::string_body> serializer(message);
    co_await http::async_write(stream_, serializer, into(ec));
    log(request, response.status, size);
    co_return !ec;
  }

  template <class Message>
  void set_headers(Message& message, const Request& request, const std::string& content_type) {
    message.set(http::field::content_type, content_type);
    message.set(http::field::cache_control, "no-store");
    message.set("X-Content-Type-Options", "nosniff");
    if (!request.id.empty()) message.set("X-Request-Id", request.id);
  }

  awaitable<bool> write_stream(const Request& request, ReplyState& state, unsigned version,
                               bool keep) {
    http::response<http::empty_body> head;
    head.version(version);
    set_headers(head, request, "text/event-stream");
    const bool chunked = version >= 11;
    head.chunked(chunked);
    head.keep_alive(chunked && keep && !shared_.stopping);
    http::response_serializer<http::empty_body> serializer(head);
    stream_.expires_after(shared_.options.write_time);
    error_code ec;
    co_await http::async_write_header(stream_, serializer, into(ec));
    std::size_t bytes = 0;
    while (!ec && !state.gone) {
      std::string text = std::exchange(state.pending, {});
      if (text.empty() && state.ended) break;
      if (text.empty()) {
        state.changed.expires_after(shared_.options.ping_time);
        co_await wait(state);
        const bool silent = state.pending.empty() && !state.ended && !state.gone;
        if (!silent || state.changed.expiry() > Clock::now()) continue;
        text = ": ping\n\n";
      } else {
        state.unread -= text.size();
      }
      bytes += text.size();
      stream_.expires_after(shared_.options.write_time);
      if (chunked)
        co_await asio::async_write(stream_, http::make_chunk(asio::buffer(text)), into(ec));
      else
        co_await asio::async_write(stream_, asio::buffer(text), into(ec));
    }
    const bool whole = !ec && !state.gone;
    if (whole && chunked) {
      stream_.expires_after(shared_.options.write_time);
      co_await asio::async_write(stream_, http::make_chunk_last(), into(ec));
    }
    log(request, whole && !ec ? 200 : 499, bytes);
    co_return whole && !ec && chunked;
  }

  /// Reads what still comes, so that the answer is not lost with a connection that is reset.
  awaitable<void> linger(std::chrono::milliseconds longest) {
    error_code ec;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ec);
    stream_.expires_after(longest);
    std::vector<char> sink(kBufferBytes);
    while (!ec) co_await stream_.async_read_some(asio::buffer(sink), into(ec));
  }

  void log(const Request& request, int status, std::size_t bytes) {
    shared_.count([&](HttpCounts& c) {
      ++c.requests;
      if (status >= 400 && status < 500) ++c.client_errors;
      if (status >= 500) ++c.server_errors;
    });
    if (!shared_.options.log) return;
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
    shared_.options.log(fmt::format("{} {} {} {} status={} bytes={} ms={:.1f}", request.id,
                                    peer_.empty() ? "-" : peer_, printable(request.method),
                                    printable(request.path), status, bytes, ms));
  }

  Shared& shared_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  asio::steady_timer watch_over_;
  std::string peer_;
  bool idle_ = true, watching_ = false;
  Clock::time_point started_ = Clock::now();
  std::shared_ptr<ReplyState> state_;
};

asio::ip::address address_of(const std::string& host) {
  if (host == "localhost") return asio::ip::address_v4::loopback();
  error_code ec;
  const auto address = asio::ip::make_address(host, ec);
  if (ec) {
    throw make_error(ErrorCode::kUsage, "--host: '{}' is neither an address nor localhost", host);
  }
  return address;
}

}  // namespace

bool is_loopback(const std::string& host) {
  return address_of(host).is_loopback();
}

struct HttpServer::Impl {
  Impl(HttpOptions options, Handler& handler)
      : shared(std::move(options), handler), acceptor(*shared.io), signals(*shared.io) {
    listen();
    asio::co_spawn(*shared.io, accept(), asio::detached);
    thread = std::thread([this] { run(); });
  }

  ~Impl() {
    asio::post(*shared.io, [this] {
      stop();
      for (Connection* connection : std::vector(shared.connections.begin(), shared.connections.end()))
        connection->close();
    });
    shared.workers.join();
    std::unique_lock lock(shared.mutex);
    shared.emptied.wait_for(lock, std::chrono::seconds(5),
                            [this] { return shared.counts.connections == 0; });
    lock.unlock();
    work.reset();
    shared.io->stop();
    thread.join();
  }

  void listen() {
    const tcp::endpoint end(address_of(shared.options.host), shared.options.port);
    error_code ec;
    acceptor.open(end.protocol(), ec);
    if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor.bind(end, ec);
    if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
    if (ec) {
      throw make_error(ErrorCode::kIo, "cannot listen on {} port {}: {}", shared.options.host,
                       shared.options.port, ec.message());
    }
    port = acceptor.local_endpoint().port();
  }

  void run() {
    while (true) {
      try {
        shared.io->run();
        return;
      } catch (const std::exception& error) {  // ends one connection, never the server
        if (shared.options.log) shared.options.log(fmt::format("unexpected: {}", error.what()));
      }
    }
  }

  awaitable<void> accept() {
    while (acceptor.is_open()) {
      error_code ec;
      tcp::socket socket = co_await acceptor.async_accept(into(ec));
      if (ec == asio::error::operation_aborted || !acceptor.is_open()) co_return;
      if (ec) {  // out of files: later ones may be lucky
        asio::steady_timer pause(*shared.io, std::chrono::milliseconds(50));
        co_await pause.async_wait(into(ec));
        continue;
      }
      const std::size_t held = shared.connections.size();
      if (held >= shared.options.connections + 64) continue;  // closes it
      const bool full = held >= shared.options.connections;
      auto connection = std::make_shared<Connection>(std::move(socket), shared);
      asio::co_spawn(
          *shared.io,
          [connection, full]() -> awaitable<void> {
            if (full)
              co_await connection->turn_away();
            else
              co_await connection->run();
          },
          [connection](std::exception_ptr error) {
            if (error) connection->close();
          });
    }
  }

  void stop() {
    shared.stopping = true;
    error_code ignored;
    acceptor.close(ignored);
    for (Connection* connection : std::vector(shared.connections.begin(), shared.connections.end()))
      connection->close_if_idle();
  }

  Shared shared;
  tcp::acceptor acceptor;
  asio::signal_set signals;
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(*shared.io);
  std::uint16_t port = 0;
  std::thread thread;
};

HttpServer::HttpServer(HttpOptions options, Handler& handler)
    : impl_(std::make_unique<Impl>(std::move(options), handler)) {}
HttpServer::~HttpServer() = default;

std::uint16_t HttpServer::port() const {
  return impl_->port;
}

HttpCounts HttpServer::counts() const {
  const std::lock_guard lock(impl_->shared.mutex);
  return impl_->shared.counts;
}

void HttpServer::wait_for_signal() {
  std::mutex mutex;
  std::condition_variable told;
  bool stopped = false;
  asio::post(*impl_->shared.io, [&] {
    impl_->signals.add(SIGINT);
    impl_->signals.add(SIGTERM);
    impl_->signals.async_wait([&, impl = impl_.get()](error_code, int) {
      impl->signals.async_wait([](error_code ec, int) {
        if (!ec) std::_Exit(130);
      });
      const std::lock_guard lock(mutex);
      stopped = true;
      told.notify_all();
    });
  });
  std::unique_lock lock(mutex);
  told.wait(lock, [&] { return stopped; });
}

void HttpServer::stop_accepting() {
  asio::post(*impl_->shared.io, [impl = impl_.get()] { impl->stop(); });
}

bool HttpServer::drain(std::chrono::milliseconds longest) {
  std::unique_lock lock(impl_->shared.mutex);
  return impl_->shared.emptied.wait_for(
      lock, longest, [this] { return impl_->shared.counts.connections == 0; });
}

}  // namespace palimpsest::server
