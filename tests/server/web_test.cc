// The web page's files and the stream of its memory view, through raw sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "running_server.h"
#include "server/memory_stream.h"
#include "server/web_page.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::get;
using test::Json;
using test::post;
using test::RawClient;
using test::Running;
using test::shared;
using ::testing::HasSubstr;
using ::testing::Not;

/// Keeps the engine from computing anything until it is released: what is asked meanwhile waits.
struct Hold {
  explicit Hold(Engine& engine) {
    engine.submit({.prompt = {1}, .max_tokens = 0},
                  [waits = released.get_future().share()](const EngineEvent& event) {
                    if (std::holds_alternative<StartedEvent>(event)) waits.wait();
                    return true;
                  });
  }
  ~Hold() { release(); }
  void release() {
    if (!std::exchange(done, true)) released.set_value();
  }
  std::promise<void> released;
  bool done = false;
};

Json body_of(std::int64_t tokens) {
  return {{"prompt", "It was a dark night, and"},
          {"temperature", 1},
          {"seed", 5},
          {"max_tokens", tokens},
          {"logprobs", 2},
          {"stream", true},
          {"logit_bias", {{"3842", -100}}}};
}
std::string post_with_id(const Json& body, const std::string& id, const std::string& more = "") {
  return test::post_text("/v1/completions", body.dump(), "X-Request-Id: " + id + "\r\n" + more);
}

TEST(WebPage, ServesItsFiles) {
  ASSERT_GE(web_files().size(), 7u);
  for (const WebFile& file : web_files()) {
    const Answer answer = get(shared().port, "/" + std::string(file.name));
    EXPECT_EQ(answer.status, 200) << file.name;
    EXPECT_EQ(answer.body, file.body);
    EXPECT_EQ(answer.header("etag"), file.etag);
    EXPECT_EQ(answer.header("cache-control"), "no-cache");
    EXPECT_EQ(answer.header("x-content-type-options"), "nosniff");
    // Whatever is written into the page, it can neither run nor fetch.
    const std::string policy = answer.header("content-security-policy");
    for (const char* part :
         {"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self';",
          "frame-ancestors 'none'", "require-trusted-types-for 'script'"})
      EXPECT_THAT(policy, HasSubstr(part));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  }
  const Answer index = get(shared().port, "/");
  EXPECT_EQ(index.header("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(index.body, HasSubstr("<!doctype html>"));
  EXPECT_EQ(get(shared().port, "/app.js?v=1").header("content-type"),
            "text/javascript; charset=utf-8");
  EXPECT_EQ(get(shared().port, "/style.css").header("content-type"), "text/css; charset=utf-8");
}

// What the policy forbids anyway is not there in the first place.
TEST(WebPage, AsksNobodyElseAndMakesNoMarkup) {
  for (const WebFile& file : web_files()) {
    const std::string body(file.body);
    for (const char* word :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
          "style=", "onclick=\"", "<script>", "src=\"http", "href=\"http", "@import", "url(http"})
      EXPECT_THAT(body, Not(HasSubstr(word))) << file.name;
  }
}

TEST(WebPage, IsNotSentAgainToWhoHasIt) {
  RawClient client(shared().port);
  client.send("GET /app.js HTTP/1.1\r\nHost: test\r\n\r\n");
  const std::string etag = client.read().header("etag");
  ASSERT_FALSE(etag.empty());
  client.send("GET /app.js HTTP/1.1\r\nHost: test\r\nIf-None-Match: \"x\", " + etag + "\r\n\r\n");
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  // The next answer begins right behind the header: a 304 has no body.
  client.send("GET /health HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
  const Answer both = client.read();
  EXPECT_EQ(both.status, 304);
  EXPECT_EQ(both.header("content-length"), "");
  EXPECT_EQ(both.header("etag"), etag);
  EXPECT_THAT(both.body, HasSubstr("HTTP/1.1 200"));
  EXPECT_EQ(get(shared().port, "/app.js", "If-None-Match: \"other\"\r\n").status, 200);
}

TEST(WebPage, NeedsNoKeyAndCanBeLeftOut) {
  Running locked({.service = {.keys = {"secret"}}});
  EXPECT_EQ(get(locked.port, "/").status, 200);
  EXPECT_EQ(get(locked.port, "/props").status, 401);
  EXPECT_EQ(get(locked.port, "/v1/memory?request=x").status, 401);
  EXPECT_EQ(get(locked.port, "/props", "Authorization: Bearer secret\r\n").status, 200);
  Running bare({.service = {.web = false}});
  EXPECT_EQ(get(bare.port, "/").status, 404);
  EXPECT_EQ(get(bare.port, "/app.js").status, 404);
  EXPECT_EQ(get(bare.port, "/props").status, 200);
}

TEST(WebPage, PropsSayWhatTheServerDoes) {
  const Json props = get(shared().port, "/props").json();
  EXPECT_EQ(props["n_ctx"], 1024);
  EXPECT_EQ(props["chat"], true);
  EXPECT_EQ(props["modalities"]["vision"], false);
  EXPECT_TRUE(props["default_generation_settings"].contains("temperature"));
}

// -- the memory view ----------------------------------------------------------------------------

std::string unpacked(const std::string& base64) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : base64) {
    const auto digit =
        std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
            .find(c);
    if (digit == std::string_view::npos) break;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if ((count += 6) >= 8) out += static_cast<char>(bits >> (count -= 8) & 255);
  }
  return out;
}

TEST(MemoryEndpoint, StreamsWhatTheAnswerDoesAndChangesNothing) {
  const Json body = body_of(60);
  const Answer alone = post(shared().port, "/v1/completions", body);
  ASSERT_EQ(alone.status, 200);

  RawClient asker(shared().port), watcher(shared().port);
  Hold hold(shared().engine);
  asker.send(post_with_id(body, "watched.1"));
  ASSERT_TRUE(asker.read_until("\r\n\r\n"));  // from here on it is known
  watcher.send("GET /v1/memory?x=1&request=cmpl-watched.1&layer=4 HTTP/1.1\r\nHost: test\r\n\r\n");
  ASSERT_TRUE(watcher.read_until("memory.model"));
  hold.release();
  const Answer seen = watcher.read(), watched = asker.read();
  ASSERT_EQ(seen.status, 200) << seen.body;
  ASSERT_TRUE(seen.whole);

  // The watched answer is the other one, but for its id and time.
  const auto plain = alone.events(), same = watched.events();
  ASSERT_EQ(plain.size(), same.size());
  for (std::size_t i = 0; i + 1 < plain.size(); ++i)
    EXPECT_EQ(Json::parse(plain[i])["choices"], Json::parse(same[i])["choices"]);

  const auto events = seen.events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json model = Json::parse(events.front());
  EXPECT_EQ(model["object"], "memory.model");
  EXPECT_EQ(model["layer"], 4);
  EXPECT_EQ(model["all_pages"], true);
  ASSERT_EQ(model["layers"].size(), 8u);
  EXPECT_EQ(model["layers"][4]["page"], Json::array({3, 128, 128}));
  EXPECT_FALSE(model["layers"][3].contains("page"));
  EXPECT_EQ(model["layers"][3]["list_bytes_per_token"], 320 * 2) << "BF16";
  EXPECT_EQ(model["bytes_per_token"], 2 * 320 * 2);
  EXPECT_EQ(model["fixed_bytes"].get<std::int64_t>(), 6 * (3 * 128 * 128 + 3 * 3 * 384) * 4);

  std::int64_t position = -1, tokens = 0, pages = 0;
  for (std::size_t i = 1; i + 1 < events.size(); ++i) {
    const Json sample = Json::parse(events[i]);
    EXPECT_EQ(sample["object"], "memory.sample");
    for (const Json& token : sample["tokens"]) {
      EXPECT_GT(token["position"].get<std::int64_t>(), position);
      position = token["position"];
      ++tokens;
      EXPECT_EQ(token["write"].size(), 6u);
      EXPECT_EQ(token["beta"].size(), 6u);
      EXPECT_EQ(token["head_write"].size(), 3u);
      EXPECT_EQ(unpacked(token["retention"]).size(), 3u * 128);
      EXPECT_EQ(token["experts"].size(), 7u * 4);
      EXPECT_EQ(unpacked(token["depth"]).size(), 8u * 2 + 8 * 3);
      EXPECT_TRUE(token["text"].is_string());
    }
    EXPECT_EQ(sample["length"].get<std::int64_t>(), position + 1);
    for (const Json& page : sample["pages"]) {
      ++pages;
      EXPECT_EQ(unpacked(page["cells"]).size(), 32u * 32);
      EXPECT_GT(page["peak"].get<double>(), 0);
    }
  }
  EXPECT_GT(tokens, 0);
  EXPECT_EQ(pages % 18, 0) << "all pages at once";
}

TEST(MemoryEndpoint, ShowsAnswersOfTheOtherInterfaces) {
  Running server;
  const Json messages = {{"max_tokens", 20}, {"stream", true}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}},
             responses = {{"max_output_tokens", 20}, {"stream", true}, {"input", "Hello"}};
  for (const auto& [path, body, id] : {std::tuple("/v1/messages", messages, "msg_seen"), {"/v1/responses", responses, "resp_seen"}}) {
    const std::string ask = std::string("/v1/memory?request=") + id;
    EXPECT_EQ(get(server.port, ask).status, 404) << "not yet";
    RawClient asker(server.port), watcher(server.port);
    Hold hold(server.engine);
    asker.send(test::post_text(path, body.dump(), "X-Request-Id: seen\r\n"));
    ASSERT_TRUE(asker.read_until("\r\n\r\n"));
    watcher.send("GET " + ask + " HTTP/1.1\r\nHost: test\r\n\r\n");
    ASSERT_TRUE(watcher.read_until("memory.model")) << id;
    hold.release();
    EXPECT_TRUE(watcher.read_until("memory.sample")) << id;
    EXPECT_EQ(watcher.read().events().back(), "[DONE]");
    EXPECT_THAT(asker.read().body, HasSubstr(id)) << "the id that its client is told";
    EXPECT_EQ(get(server.port, ask).status, 404) << "it is over";
  }
}

TEST(MemoryEndpoint, RefusesWhatItCannotShow) {
  RawClient asker(shared().port);
  const Hold hold(shared().engine);
  asker.send(post_with_id(body_of(9), "busy"));
  ASSERT_TRUE(asker.read_until("\r\n\r\n"));
  const auto status = [](const std::string& query) {
    const Answer answer = get(shared().port, "/v1/memory" + query);
    return std::pair(answer.status, answer.json()["error"]["param"]);
  };
  EXPECT_EQ(status(""), std::pair(400, Json("request")));
  EXPECT_EQ(status("?request=cmpl-unknown"), std::pair(404, Json("request")));
  EXPECT_EQ(status("?request=busy"), std::pair(404, Json("request")));
  for (const char* layer : {"3", "8", "-1", "x", "4x", "", "99999999999999999999", "%ff"})
    EXPECT_EQ(status(std::string("?request=cmpl-busy&layer=") + layer),
              std::pair(400, Json("layer")))
        << layer;
  EXPECT_EQ(test::post(shared().port, "/v1/memory", Json::object()).status, 405);
}

TEST(MemoryEndpoint, TakesFourWatchersAndForgetsWhoLeaves) {
  Running server;
  RawClient asker(server.port);
  Hold hold(server.engine);
  asker.send(post_with_id(body_of(400), "long"));
  ASSERT_TRUE(asker.read_until("\r\n\r\n"));
  const std::string ask = "GET /v1/memory?request=cmpl-long HTTP/1.1\r\nHost: test\r\n\r\n";
  std::vector<std::unique_ptr<RawClient>> watchers;
  for (int i = 0; i < 4; ++i) {
    watchers.push_back(std::make_unique<RawClient>(server.port));
    watchers.back()->send(ask);
    ASSERT_TRUE(watchers.back()->read_until("memory.model")) << i;
  }
  const Answer fifth = get(server.port, "/v1/memory?request=cmpl-long");
  EXPECT_EQ(fifth.status, 429);
  EXPECT_EQ(fifth.header("retry-after"), "1");
  watchers.clear();
  hold.release();
  for (int i = 0; i < 3000 && !server.is_idle(); ++i) {
    RawClient next(server.port);
    next.send(ask);
    if (next.read().status == 200) break;  // a place was free again; or else the answer is over
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(asker.read().status, 200) << "the answer goes on whoever watches";
  EXPECT_EQ(get(server.port, "/v1/memory?request=cmpl-long").status, 404) << "it is over";
}

TEST(MemoryEndpoint, ShowsAnAnswerToWhoAskedForItOnly) {
  Running server({.service = {.keys = {"mine", "yours"}}});
  RawClient asker(server.port);
  Hold hold(server.engine);
  asker.send(post_with_id(body_of(20), "private", "Authorization: Bearer mine\r\n"));
  ASSERT_TRUE(asker.read_until("\r\n\r\n"));
  EXPECT_EQ(get(server.port, "/v1/memory?request=cmpl-private").status, 401);
  EXPECT_EQ(
      get(server.port, "/v1/memory?request=cmpl-private", "Authorization: Bearer yours\r\n").status,
      404);
  RawClient watcher(server.port);
  watcher.send(
      "GET /v1/memory?request=cmpl-private HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer "
      "mine\r\n\r\n");
  ASSERT_TRUE(watcher.read_until("memory.model"));
  hold.release();
  EXPECT_TRUE(watcher.read_until("memory.sample"));
}

TEST(MemoryEndpoint, ReadsItsQuery) {
  EXPECT_EQ(query_value("a=1&b=2", "b"), "2");
  EXPECT_EQ(query_value("a=1&b=2", "a"), "1");
  EXPECT_EQ(query_value("ab=1", "b"), std::nullopt);
  EXPECT_EQ(query_value("b&c=b=3", "b"), std::nullopt);
  EXPECT_EQ(query_value("b&b=", "b"), "");
  EXPECT_EQ(query_value("", "b"), std::nullopt);
  EXPECT_EQ(query_value("&&=&a", "a"), std::nullopt);
}

}  // namespace
}  // namespace palimpsest::server
