#pragma once

// Of http.cc alone: this header sees Boost.

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/api_error.h"
#include "server/http.h"

namespace palimpsest::server {

/// What a handler says, on its way to the connection. Belongs to the transport's thread, but for
/// the atomics.
struct ReplyState {
  explicit ReplyState(std::shared_ptr<boost::asio::io_context> context)
      : io(std::move(context)), changed(*io, boost::asio::steady_timer::time_point::max()) {}

  void notify() { changed.cancel(); }
  void leave() {
    if (finished) return;
    gone = left = true;
    if (auto f = std::exchange(when_gone, nullptr)) f();
    notify();
  }
  void finish() {
    finished = true;
    gone = true;  // nothing that comes now is read
    when_gone = nullptr;
  }

  std::shared_ptr<boost::asio::io_context> io;
  boost::asio::steady_timer changed;  ///< cancelled whenever something below has changed
  std::optional<Response> whole;
  bool streaming = false, ended = false;
  bool left = false;      ///< the client, before the end
  bool finished = false;  ///< nothing is sent any more
  std::string pending;
  std::function<void()> when_gone;
  std::atomic<bool> gone{false};
  std::atomic<std::size_t> unread{0};
};

class ReplyHandle final : public Reply {
 public:
  ReplyHandle(std::shared_ptr<ReplyState> state, std::size_t unread_bytes)
      : state_(std::move(state)), unread_bytes_(unread_bytes) {}
  ~ReplyHandle() override {
    if (answered_) return;
    post([](ReplyState& state) {
      if (state.streaming)
        state.leave();
      else
        state.whole = error_response(ApiError(500, "the request was dropped"));
    });
  }

  void send(Response response) override {
    answered_ = true;
    post([response = std::move(response)](ReplyState& state) mutable {
      if (!state.streaming && !state.whole) state.whole = std::move(response);
    });
  }
  void begin_stream() override {
    post([](ReplyState& state) { state.streaming = true; });
  }
  bool write(std::string text) override {
    if (state_->gone) return false;
    const std::size_t size = text.size();
    if (state_->unread.fetch_add(size) + size > unread_bytes_) {
      post([](ReplyState& state) { state.leave(); });
      return false;
    }
    post([text = std::move(text)](ReplyState& state) {
      state.streaming = true;
      state.pending += text;
    });
    return true;
  }
  void end() override {
    answered_ = true;
    post([](ReplyState& state) { state.ended = true; });
  }
  void on_gone(std::function<void()> f) override {
    post([f = std::move(f)](ReplyState& state) mutable {
      if (state.left)
        f();
      else if (!state.finished)
        state.when_gone = std::move(f);
    });
  }

 private:
  template <class F>
  void post(F f) {
    boost::asio::post(*state_->io, [state = state_, f = std::move(f)]() mutable {
      f(*state);
      state->notify();
    });
  }

  std::shared_ptr<ReplyState> state_;
  std::size_t unread_bytes_;
  std::atomic<bool> answered_{false};
};

}  // namespace palimpsest::server
