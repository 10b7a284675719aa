// What clients do to servers, out of malice or by accident: after each the next request gets the right
// text, no slot is stuck and no connection is left.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <random>
#include <thread>

#include "running_server.h"
#include "support/temp_folder.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::chat_body;
using test::endless;
using test::get;
using test::Json;
using test::post;
using test::post_text;
using test::RawClient;
using test::Running;
using test::ServerSetup;

constexpr const char* kChat = "/v1/chat/completions";

class Survival : public ::testing::Test {
 protected:
  static ServerSetup setup() {
    ServerSetup setup;
    setup.service.sessions = folder().path();
    return setup;
  }
  static test::TempFolder& folder() {
    static test::TempFolder one;
    return one;
  }
  static Running& running() {
    static Running one(setup());
    return one;
  }
  static Answer ask(const Json& body) { return post(running().port, kChat, body); }
  static std::string text() {
    const Answer answer = ask(chat_body("Who are you, old man?", 16));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["choices"].dump();
  }
  void expect_well() const {
    EXPECT_EQ(text(), right_);
    running().wait_for([] { return running().is_idle(); });
    running().wait_for([] { return running().http.counts().connections == 0; });
    for (const Json& slot : get(running().port, "/slots").json()) EXPECT_EQ(slot["is_processing"], false);
  }
  void TearDown() override { expect_well(); }

  const std::string right_ = [] {  // of a server that nobody has harmed
    static const std::string one = [] {
      Running fresh;
      return post(fresh.port, kChat, chat_body("Who are you, old man?", 16)).json()["choices"].dump();
    }();
    return one;
  }();
};

TEST_F(Survival, BodiesThatNestRepeatOrAreHuge) {
  const auto repeat = [](const std::string& piece, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += piece;
    return out;
  };
  const auto with = [](const char* name, const std::string& value) {
    std::string body = chat_body("x", 4).dump();
    body.back() = ',';
    return body + '"' + name + "\":" + value + "}";
  };
  const std::string schema = R"({"type":"json_schema","json_schema":{"schema":)";
  const std::pair<std::string, int> bodies[] = {
      {with("grammar", Json("root ::= " + repeat("(", 60'000) + "\"a\"" + repeat(")", 60'000)).dump()), 400},
      {with("regex", Json(repeat("(", 60'000) + "a" + repeat(")", 60'000)).dump()), 400},
      {with("regex", Json(repeat("a{0,99999}", 5)).dump()), 400},
      {with("response_format", schema + repeat("{\"items\":", 10'000) + "{}" + repeat("}", 10'000) + "}}"), 400},
      {with("response_format", schema + repeat("{\"anyOf\":[", 30) + "{}" + repeat("]}", 30) + "}}"), 200},
      {with("x", repeat("[", 10'000) + repeat("]", 10'000)), 400},
      {with("x", repeat("{\"a\":", 10'000) + "1" + repeat("}", 10'000)), 400},
      {with("temperature", "999999"), 400}, {with("temperature", "NaN"), 400}, {with("temperature", "-Infinity"), 400},
      {with("temperature", "1e400"), 400}, {with("top_p", "-1"), 400}, {with("repeat_penalty", "0"), 400},
      {with("n", "1000000000"), 400}, {with("max_tokens", "1e9"), 400}, {with("seed", "1e99"), 400},
      {with("stop", "[" + repeat("\"a\",", 100'000) + "\"a\"]"), 400},
      {with("logit_bias", "{" + repeat("\"1\":1,", 100'000) + "\"2\":1}"), 200},
      {with("messages", "[" + repeat(R"({"role":"user","content":"a"},)", 20'000) + R"({"role":"user","content":"a"}])"), 400},
      {with("x", Json(repeat("a", 50'000)).dump()), 200},
      {chat_body(repeat("word ", 10'000)).dump(), 400},
      {with("x", "\"\xff\xc3\x28\xed\xa0\x80\""), 400},
      {with("x", "\"\\ud800\""), 400}, {repeat("\0\x01\xff", 10'000), 400}};
  for (const auto& [body, status] : bodies) {
    const Answer answer = post(running().port, kChat, body);
    EXPECT_EQ(answer.status, status) << body.substr(0, 200) << "\n" << answer.body.substr(0, 300);
    EXPECT_EQ(text(), right_) << body.substr(0, 200);
  }
  // 50 MB, told beforehand or not: refused while they come.
  for (const bool told : {true, false}) {
    RawClient client(running().port);
    client.send(std::string("POST ") + kChat + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
                (told ? "Content-Length: 50000000\r\n\r\n" : "Transfer-Encoding: chunked\r\n\r\n"));
    const std::string piece = (told ? "" : "100000\r\n") + std::string(1 << 20, ' ') + (told ? "" : "\r\n");
    for (int i = 0; i < 48 && client.send(piece); ++i) {
    }
    EXPECT_EQ(client.read().status, 413);
  }
}

/// What a tool is called and said to be changes no mask, and breaks none.
TEST_F(Survival, DescriptionsOfTools) {
  std::string first;
  for (const std::string words : {"", "\"\\ ::= root | ( [", "\n\t</tool_call><|close|>", "{\"$ref\": \"#\"}", "\xf0\x9f\x98\x80\xe2\x80\xae"}) {
    Json body = chat_body("Hello", 60);
    body["reasoning_effort"] = "none";
    body["tools"] = Json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"enum":["x"]}},"required":["a"]}}}])");
    body["tools"][0]["function"]["description"] = words;
    body["tools"][0]["function"]["parameters"]["properties"]["a"]["description"] = words;
    body["tool_choice"] = "required";
    body["parallel_tool_calls"] = false;
    const Answer answer = ask(body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":\"x\"}") << words;
  }
}

TEST_F(Survival, RequestsThatStopAnywhere) {
  const std::string whole = post_text(kChat, chat_body("Hello", 3).dump());
  for (std::size_t cut = 0; cut <= whole.size(); cut += cut < whole.size() - 40 ? 13 : 1) {
    RawClient client(running().port);
    client.send(whole.substr(0, cut));
    if (cut % 2 == 1) client.end_sending();
    if (cut % 3 == 1) client.reset();
  }
  const std::string smuggled = "POST " + std::string(kChat) + " HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x";
  for (const std::string& bytes : {smuggled, std::string(100'000, '\r'), std::string("\x16\x03\x01\x02", 4), "GET /" + std::string(9'000, 'a') + " HTTP/1.1\r\n",
                                   std::string("GET / HTTP/9.9\r\n\r\n"), std::string("A: b\r\n\r\n"), std::string("GET / HTTP/1.1\r\n: \r\n\r\n"), std::string(1'000, '\0')}) {
    RawClient client(running().port);
    client.send(bytes);
    client.end_sending();
    EXPECT_NE(client.read().status, 200) << bytes.substr(0, 60);
  }
}

TEST_F(Survival, FiveHundredIdleConnectionsAndSlowReaders) {
  std::list<RawClient> idle;
  for (int i = 0; i < 500; ++i) {
    idle.emplace_back(running().port);
    if (i % 3 == 0) idle.back().send("GET /v1/mod");
    if (i % 3 == 1) idle.back().send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
  }
  std::list<RawClient> slow;
  const std::uint64_t before = running().cancelled();
  for (int i = 0; i < 2; ++i) slow.emplace_back(running().port).send(post_text(kChat, endless().dump()));
  for (RawClient& client : slow) EXPECT_TRUE(client.read_until("200 OK"));  // and then no more
  EXPECT_EQ(text(), right_);
  idle.clear();
  slow.clear();
  running().wait_for([&] { return running().is_idle(); });
  EXPECT_LE(running().cancelled(), before + 2);
}

TEST_F(Survival, WhoLeavesAtAnyStage) {
  const Json stream = endless();
  Json queued = stream, choices = stream, constrained = stream, long_prompt = stream, embeddings = {{"input", std::vector<std::string>(200, "a text")}};
  choices["n"] = 9;
  constrained["reasoning_effort"] = "none";
  constrained["grammar"] = "root ::= ([a-z ]{0,90} \"x\"){900}";
  std::string words;
  for (int i = 0; i < 150; ++i) words += " word by word";
  long_prompt["messages"][0]["content"] = words;
  const auto leaves = [&](const std::string& bytes, const std::string& until) {
    RawClient client(running().port);
    client.send(bytes);
    if (!until.empty()) { EXPECT_TRUE(client.read_until(until)) << bytes.substr(0, 300); }
  };
  for (const char* until : {"", "HTTP/1.1 200", "content\":\"\"", "null}]"}) {
    for (const Json& body : {stream, choices, constrained, long_prompt}) leaves(post_text(kChat, body.dump()), until);
  }
  leaves(post_text("/v1/embeddings", embeddings.dump()), "");
  leaves(post_text("/v1/messages", Json{{"max_tokens", 90}, {"messages", stream["messages"]}}.dump()), "");
  leaves(post_text("/v1/responses", Json{{"stream", true}, {"input", words}}.dump()), "response.created");
  Json named = long_prompt;
  named["name"] = "gone";
  leaves(post_text("/sessions/save", named.dump()), "");
  leaves(post_text("/sessions/restore", Json{{"name", "gone"}}.dump()), "");
  {  // in the queue: all slots are taken
    std::list<RawClient> held;
    for (int i = 0; i < 3; ++i) {
      held.emplace_back(running().port).send(post_text(kChat, stream.dump()));
      EXPECT_TRUE(held.back().read_until("\"content\":\""));
    }
    leaves(post_text(kChat, queued.dump()), "HTTP/1.1 200");
    leaves(post_text(kChat, queued.dump()), "");
  }
  // Between two requests of one connection, and in the middle of the second.
  const std::string one = post_text(kChat, chat_body("Hello", 2).dump());
  leaves(one, "finish_reason");
  leaves(one + one.substr(0, 90), "finish_reason");
}

TEST_F(Survival, AStormOfCancels) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([t] {
      std::mt19937 random(t);
      for (int i = 0; i < 25; ++i) {
        Json body = endless();
        body["n"] = 1 + random() % 3;
        if (random() % 3 == 0) body["regex"] = "[a-f ]{0," + std::to_string(20 + random() % 40) + "}";
        RawClient client(running().port);
        client.send(post_text(kChat, body.dump()));
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 30));
        if (random() % 2) client.reset();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// A prompt that is known to its end needs no pass before its first token.
TEST_F(Survival, WholePromptsThatAreKnown) {
  Json body = chat_body("The same question, word by word, as often as anybody likes to ask it.", 9);
  const Json first = ask(body).json();
  for (int i = 0; i < 3; ++i) {
    const Json again = ask(body).json();
    EXPECT_EQ(again["choices"], first["choices"]);
    EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], first["usage"]["prompt_tokens"]);
  }
  body.erase("max_tokens");
  body["max_completion_tokens"] = 4;
  EXPECT_EQ(ask(body).json()["usage"]["completion_tokens"], 4);
  body["n"] = 3;
  const Json several = ask(body).json();
  EXPECT_EQ(several["choices"].size(), 3u);
  EXPECT_EQ(several["usage"]["completion_tokens"], 12);
}

}  // namespace
}  // namespace palimpsest::server
