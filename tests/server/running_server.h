#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "palimpsest/engine.h"
#include "raw_client.h"
#include "server/service.h"
#include "support/shared_data.h"
#include "support/test_model.h"

// The whole server over the demo model, in this process.

namespace palimpsest::test {

using server::HttpOptions;
using server::HttpServer;
using server::Service;
using server::ServiceOptions;

inline std::filesystem::path demo() {
  return project_path("models/demo");
}
inline std::shared_ptr<const Model> demo_model() {
  static const auto model = test::load_model(demo());
  return model;
}
inline const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(demo(), demo_model()->config().vocab_size);
  return loaded;
}

struct ServerSetup {
  EngineOptions engine = {.threads = 1, .sequences = 3, .context = 1024};
  ServiceOptions service = {};
  HttpOptions http = {};
};

/// A server of its own on a free port.
struct Running {
  explicit Running(ServerSetup setup = {})
      : engine(demo_model(), setup.engine),
        service(engine, tokenizer(), with_format(setup.service)),
        http(with_port(setup.http), service),
        port(http.port()) {}
  ~Running() { engine.stop(std::chrono::milliseconds(0)); }

  static ServiceOptions with_format(ServiceOptions options) {
    options.name = "demo";
    options.format = ChatFormat::create(tokenizer(), demo());
    return options;
  }
  static HttpOptions with_port(HttpOptions options) {
    options.port = 0;
    return options;
  }
  /// Waits for what must come about; a failure if it does not.
  template <class F>
  void wait_for(F f) const {
    for (int i = 0; i < 6000 && !f(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(f());
  }
  bool is_idle() const {
    const EngineMetrics m = engine.metrics();
    return m.running == 0 && m.waiting == 0;
  }
  std::uint64_t cancelled() const {
    return engine.metrics().choices_ended[static_cast<std::size_t>(FinishReason::kCancelled)];
  }

  Engine engine;
  Service service;
  HttpServer http;
  std::uint16_t port;
};

inline Running& shared() {
  static Running running;
  return running;
}

inline Json chat_body(const std::string& text, std::int64_t max_tokens = 12) {
  return {{"model", "demo"},
          {"messages", {{{"role", "user"}, {"content", text}}}},
          {"temperature", 0},
          {"max_tokens", max_tokens}};
}

/// A stream that goes on until somebody ends it.
inline Json endless() {
  Json body = chat_body("Tell me a long story.", 900);
  body["stream"] = true;
  body["logit_bias"] = Json::object();
  for (const TokenId id : tokenizer().stop_ids()) body["logit_bias"][std::to_string(id)] = -100;
  return body;
}

}  // namespace palimpsest::test
