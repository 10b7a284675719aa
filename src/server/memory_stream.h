#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "palimpsest/engine.h"
#include "palimpsest/tokenizer.h"
#include "server/fields.h"
#include "server/http.h"

// What GET /v1/memory streams (docs/web.md): first what the model is made of, then samples, then
// [DONE].

namespace palimpsest::server {

/// The value of `name` in a query ("a=1&b=2"), as it came; nothing where it is missing.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name);

/// What does not change while one watches: layers, their heads and sizes, bytes of a sequence.
/// `watched` has its layer resolved.
Json memory_model(const Engine& engine, const WatchOptions& watched);

/// Turns an engine's looks at a request into events, at most ten a second. Holds `place` as long as
/// it lives.
class MemoryStream {
 public:
  MemoryStream(Tokenizer tokenizer, std::shared_ptr<Reply> reply, std::shared_ptr<void> place);
  /// The first event.
  void begin(const Json& model);
  /// On the engine's thread.
  bool hear(const MemoryView& view);
  /// The last event, once.
  void end();

 private:
  void add(const TokenView& token);
  void add(const PageView& page);
  bool flush();

  Tokenizer tokenizer_;
  std::shared_ptr<Reply> reply_;
  std::shared_ptr<void> place_;
  std::int64_t length_ = 0;
  std::string tokens_, pages_;  ///< JSON, with commas between
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace palimpsest::server
