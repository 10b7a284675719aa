// The whole server over the demo model, through raw sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "running_server.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::chat_body;
using test::demo;
using test::endless;
using test::get;
using test::Json;
using test::post;
using test::RawClient;
using test::Running;
using test::ServerSetup;
using test::shared;
using test::tokenizer;
using ::testing::HasSubstr;

/// A stream put together, in the form of a whole answer's choices.
Json add_up(const Answer& answer, bool chat) {
  Json choices = Json::array();
  for (const std::string& event : answer.events()) {
    if (event == "[DONE]") break;
    const Json chunk = Json::parse(event);
    for (const Json& piece : chunk["choices"]) {
      const std::size_t index = piece["index"];
      while (choices.size() <= index) choices.push_back({{"text", ""}, {"reasoning", ""}, {"tokens", Json::array()}, {"finish", nullptr}});
      Json& sum = choices[index];
      EXPECT_TRUE(sum["finish"].is_null()) << "nothing follows the end";
      const Json& delta = chat ? piece["delta"] : piece;
      const char* name = chat ? "content" : "text";
      if (delta.contains(name)) sum["text"] = sum["text"].get<std::string>() + delta[name].get<std::string>();
      if (delta.contains("reasoning_content"))
        sum["reasoning"] = sum["reasoning"].get<std::string>() + delta["reasoning_content"].get<std::string>();
      if (!piece["logprobs"].is_null()) {
        for (const Json& token : piece["logprobs"][chat ? "content" : "tokens"]) sum["tokens"].push_back(token);
      }
      if (!piece["finish_reason"].is_null()) sum["finish"] = piece["finish_reason"];
    }
  }
  return choices;
}
Json whole_choices(const Json& answer, bool chat) {
  Json choices = Json::array();
  for (const Json& choice : answer["choices"]) {
    Json sum = {{"text", chat ? choice["message"]["content"] : choice["text"]}, {"reasoning", ""}, {"tokens", Json::array()}, {"finish", choice["finish_reason"]}};
    if (chat && choice["message"].contains("reasoning_content")) sum["reasoning"] = choice["message"]["reasoning_content"];
    if (!choice["logprobs"].is_null()) sum["tokens"] = choice["logprobs"][chat ? "content" : "tokens"];
    choices.push_back(std::move(sum));
  }
  return choices;
}

TEST(Server, CompletionIsTheRecordedText) {
  std::ifstream file(demo() / "golden/greedy.json");
  const Json golden = Json::parse(file)[0];
  const Answer answer = post(shared().port, "/v1/completions",
                             Json{{"prompt", golden["prompt_text"]}, {"temperature", 0}, {"max_tokens", 64}},
                             "X-Request-Id: my-id.1\r\n");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.json();
  EXPECT_EQ(json["choices"][0]["text"], golden["text"]);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["usage"]["completion_tokens"], 64);
  EXPECT_EQ(json["usage"]["prompt_tokens"].get<std::size_t>(),
            prompt_ids(tokenizer(), golden["prompt_text"].get<std::string>()).size());
  EXPECT_TRUE(json["usage"]["prompt_tokens_details"].contains("cached_tokens"));
  EXPECT_TRUE(json["usage"]["prompt_tokens_details"].contains("replayed_tokens"));
  EXPECT_EQ(answer.header("x-request-id"), "my-id.1");
}

TEST(Server, StreamsAddUpToWholeAnswers) {
  Json chat = chat_body("The password of Alder House is 48213. What is the password of Alder House?", 40);
  chat["logprobs"] = true, chat["top_logprobs"] = 2;
  Json sampled = chat_body("Hello", 30);
  sampled["temperature"] = 1, sampled["seed"] = 7, sampled["n"] = 3, sampled["stop"] = {"the", "."};
  const Json text = {{"prompt", "It was a dark night"}, {"max_tokens", 30}, {"seed", 3}, {"n", 2},
                     {"logprobs", 1}, {"echo", true}, {"stop", ", and"}};
  for (const auto& [path, body] : {std::pair{"/v1/chat/completions", chat},
                                   {"/v1/chat/completions", sampled},
                                   {"/v1/completions", text}}) {
    const bool is_chat = path == std::string("/v1/chat/completions");
    const Answer whole = post(shared().port, path, body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    Json streamed_body = body;
    streamed_body["stream"] = true, streamed_body["stream_options"] = {{"include_usage", true}};
    const Answer streamed = post(shared().port, path, streamed_body);
    ASSERT_EQ(streamed.status, 200) << streamed.body;
    EXPECT_TRUE(streamed.whole);
    EXPECT_THAT(streamed.header("content-type"), HasSubstr("text/event-stream"));
    EXPECT_EQ(add_up(streamed, is_chat), whole_choices(whole.json(), is_chat));
    const auto events = streamed.events();
    ASSERT_GE(events.size(), 3u);
    EXPECT_EQ(events.back(), "[DONE]");
    const Json usage = Json::parse(events[events.size() - 2]);
    EXPECT_TRUE(usage["choices"].empty());
    EXPECT_EQ(usage["usage"]["completion_tokens"], whole.json()["usage"]["completion_tokens"]);
    if (is_chat) {
      EXPECT_EQ(Json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
    }
  }
}

TEST(Server, LogprobsAndEcho) {
  const Answer answer = post(shared().port, "/v1/completions",
                             Json{{"prompt", "The old man"}, {"temperature", 0}, {"max_tokens", 3}, {"echo", true}, {"logprobs", 2}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json choice = answer.json()["choices"][0];
  EXPECT_THAT(choice["text"].get<std::string>(), ::testing::StartsWith("The old man"));
  const Json& lists = choice["logprobs"];
  const std::size_t prompt = answer.json()["usage"]["prompt_tokens"];
  EXPECT_EQ(lists["tokens"].size(), prompt + 3);
  EXPECT_TRUE(lists["token_logprobs"][0].is_null());
  for (std::size_t i = 1; i < lists["tokens"].size(); ++i) {
    EXPECT_LE(lists["token_logprobs"][i].get<double>(), 0);
    EXPECT_GE(lists["top_logprobs"][i].size(), 1u);
  }
  const std::size_t last = lists["text_offset"].back();
  EXPECT_EQ(choice["text"].get<std::string>().substr(last), lists["tokens"].back());
}

TEST(Server, TwoAtOnceWriteWhatEachWritesAlone) {
  std::vector<Json> bodies;
  for (const char* text : {"Tell me of the sea.", "Continue this sentence:\nThe old man", "Hello", "Who are you?"})
    bodies.push_back(chat_body(text, 24));
  bodies[1]["temperature"] = 1, bodies[1]["seed"] = 5;
  std::vector<std::string> alone(bodies.size()), together(bodies.size());
  const auto text = [](const Answer& answer) { return whole_choices(answer.json(), true).dump(); };
  for (std::size_t i = 0; i < bodies.size(); ++i)
    alone[i] = text(post(shared().port, "/v1/chat/completions", bodies[i]));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] {
      together[i] = text(post(shared().port, "/v1/chat/completions", bodies[i]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(alone, together);
}

TEST(Server, SmallEndpoints) {
  const std::uint16_t port = shared().port;
  EXPECT_EQ(get(port, "/v1/models").json()["data"][0]["id"], "demo");
  EXPECT_EQ(get(port, "/health?x=1").json()["status"], "ok");
  const Answer metrics = get(port, "/metrics");
  EXPECT_THAT(metrics.body, HasSubstr("\npalimpsest_tokens_written_total "));
  EXPECT_THAT(metrics.body, HasSubstr("palimpsest_step_seconds_bucket{le=\"+Inf\"} "));
  const Json tokens = post(port, "/tokenize", Json{{"content", "Grüße, old man"}}).json();
  EXPECT_EQ(tokens["tokens"], Json(tokenizer().encode("Grüße, old man")));
  EXPECT_EQ(post(port, "/detokenize", tokens).json()["content"], "Grüße, old man");
  const Json prompt = post(port, "/apply-template", chat_body("Hello")).json();
  EXPECT_THAT(prompt["prompt"].get<std::string>(), HasSubstr("Hello"));
}

TEST(Server, UserTextNeverBecomesControlTokens) {
  const std::string name = "<|end_of_msg|>";
  const Json tokens = post(shared().port, "/tokenize", Json{{"content", name}}).json();
  for (const Json& id : tokens["tokens"]) EXPECT_FALSE(tokenizer().is_control(id.get<TokenId>()));
  const auto prompt_tokens = [&](const std::string& text) {
    return post(shared().port, "/v1/chat/completions", chat_body(text, 0)).json()["usage"]["prompt_tokens"].get<std::size_t>();
  };
  EXPECT_EQ(prompt_tokens(name) - prompt_tokens("a"),
            tokenizer().encode(name).size() - tokenizer().encode("a").size());
}

TEST(Server, RefusesImpossibleValuesByTheFieldsName) {
  const std::uint16_t port = shared().port;
  const std::pair<const char*, const char*> chat[] = {
      {"temperature", "999999"}, {"temperature", "-1"}, {"temperature", "\"hot\""}, {"top_p", "-1"},
      {"top_p", "1.5"}, {"min_p", "2"}, {"top_k", "-2"}, {"top_k", "1.5"}, {"n", "0"}, {"n", "1000000000"},
      {"n", "99999999999999999999999"}, {"max_tokens", "-5"}, {"max_completion_tokens", "1.5"},
      {"presence_penalty", "3"}, {"frequency_penalty", "-3"}, {"repeat_penalty", "0"}, {"seed", "\"x\""},
      {"seed", "18446744073709551615"}, {"stop", "5"}, {"stop", "[\"\"]"}, {"stop", "[1]"},
      {"logit_bias", "[]"}, {"logit_bias", "{\"x\": 1}"}, {"logit_bias", "{\"4096\": 1}"}, {"logit_bias", "{\"1\": 101}"},
      {"top_logprobs", "3"}, {"logprobs", "5"}, {"stream", "1"}, {"stream_options", "{\"include_usage\": true}"},
      {"messages", "[]"}, {"messages", "\"hi\""}, {"tool_choice", "\"required\""}, {"tool_choice", "{\"type\": \"function\"}"},
      {"response_format", "{\"type\": \"xml\"}"}, {"reasoning_effort", "\"a lot\""}, {"model", "7"},
      {"tools", "5"}};
  for (const auto& [name, value] : chat) {
    Json body = chat_body("Hello");
    body.erase(name);
    std::string text = body.dump();
    text.back() = ',';
    text += "\"" + std::string(name) + "\": " + value + "}";
    const Answer answer = post(port, "/v1/chat/completions", text);
    ASSERT_EQ(answer.status, 400) << name << " " << value << " " << answer.body;
    const Json error = answer.json()["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(name)) << value;
    if (std::string(name) != "tools") {
      EXPECT_EQ(error["param"], name) << answer.body;
    }
  }
  for (const auto& [name, value] : {std::pair{"logprobs", "21"}, {"prompt", "\"\""}, {"prompt", "[4096]"}, {"prompt", "[-1]"},
                                    {"prompt", "[\"a\", 5]"}, {"prompt", "{}"}, {"best_of", "2"}, {"suffix", "\"x\""}, {"echo", "1"}}) {
    std::string text = "{\"" + std::string(name) + "\": " + value + (std::string(name) == "prompt" ? "}" : ", \"prompt\": \"a\"}");
    const Answer answer = post(port, "/v1/completions", text);
    ASSERT_EQ(answer.status, 400) << name << " " << value << " " << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], name) << answer.body;
  }
  Json image = chat_body("x");
  image["messages"][0]["content"] = Json::parse(R"([{"type": "image_url", "image_url": {"url": "http://x"}}])");
  EXPECT_EQ(post(port, "/v1/chat/completions", image).status, 400);
  std::string words;
  for (int i = 0; i < 2000; ++i) words += " word";
  const Answer longer = post(port, "/v1/completions", Json{{"prompt", words}});
  EXPECT_EQ(longer.status, 400);
  EXPECT_THAT(longer.body, HasSubstr("1024"));
  Json unknown = chat_body("Hello", 1);
  unknown["no_such_field"] = {1, 2}, unknown["top_k"] = 1000000000, unknown["tool_choice"] = nullptr;
  EXPECT_EQ(post(port, "/v1/chat/completions", unknown).status, 200);
}

TEST(Server, BrokenBodies) {
  const std::uint16_t port = shared().port;
  const std::string deep(100000, '[');
  for (const std::string& body : {std::string(), std::string("{"), std::string("[]"), std::string("5"), deep,
                                  "{\"a\":" + deep, std::string("{\"prompt\": \"\xff\xfe\"}"), std::string("{\"temperature\": NaN}"),
                                  std::string("{\"temperature\": 1e999}"), std::string("{\"prompt\": \"a\"}\0x", 17)}) {
    const Answer answer = post(port, "/v1/completions", body);
    EXPECT_EQ(answer.status, 400) << body.substr(0, 40);
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
    EXPECT_TRUE(answer.json()["error"].contains("param"));
    EXPECT_TRUE(answer.json()["error"].contains("code"));
  }
  EXPECT_EQ(post(port, "/v1/completions", Json{{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
}

TEST(Server, HttpRefusals) {
  const std::uint16_t port = shared().port;
  EXPECT_EQ(get(port, "/nowhere").status, 404);
  const Answer method = get(port, "/v1/completions");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.header("allow"), "POST");
  const auto say = [&](const std::string& text) {
    RawClient client(port);
    client.send(text);
    const Answer answer = client.read();
    EXPECT_TRUE(answer.status == 0 || !answer.json()["error"]["message"].is_null()) << answer.body;
    return answer.status;
  };
  EXPECT_EQ(say("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}"), 415);
  EXPECT_EQ(say("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"), 415);  // as a Blob of another site's page comes
  EXPECT_EQ(say("this is not HTTP\r\n\r\n"), 400);
  EXPECT_EQ(say("GET / HTTP/1.1\r\nA: " + std::string(20000, 'a')), 431);
  EXPECT_EQ(say("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 52428800\r\n\r\n"), 413);
  EXPECT_EQ(say("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"), 400);
  EXPECT_EQ(say("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  const std::string chunk = "10000\r\n" + std::string(65536, ' ') + "\r\n";
  std::string chunks = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 300; ++i) chunks += chunk;
  EXPECT_EQ(say(chunks), 413);
}

TEST(Server, ConnectionsAreKeptAndTakeTheNextRequestEarly) {
  RawClient client(shared().port);
  const std::string one = test::post_text("/tokenize", "{\"content\": \"a\"}");
  client.send(one + one + one.substr(0, 20));
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 200);
  client.send(one.substr(20));
  EXPECT_EQ(client.read().status, 200);
  RawClient expecting(shared().port);
  const std::string body = Json{{"content", "b"}}.dump();
  const std::string text = test::post_text("/tokenize", body, "Expect: 100-continue\r\n");
  expecting.send(text.substr(0, text.size() - body.size()));
  EXPECT_TRUE(expecting.read_until("100 Continue"));
  expecting.send(body);
  EXPECT_EQ(expecting.read().status, 200);
}

TEST(Server, WhoLeavesIsCancelled) {
  Running running;
  Json body = endless();
  for (const bool stream : {true, false}) {
    body["stream"] = stream;
    const std::uint64_t before = running.cancelled();
    RawClient client(running.port);
    client.send(test::post_text("/v1/chat/completions", body.dump()));
    if (stream) {
      EXPECT_TRUE(client.read_until("\"content\":\""));
    } else {
      running.wait_for([&] { return running.engine.metrics().running > 0; });
    }
    client.leave();
    running.wait_for([&] { return running.cancelled() == before + 1; });
    running.wait_for([&] { return running.is_idle(); });
  }
  // Half a request, and one that leaves before its answer could begin.
  RawClient(running.port).send(test::post_text("/v1/chat/completions", body.dump()).substr(0, 150));
  RawClient(running.port).send(test::post_text("/v1/chat/completions", body.dump()));
  running.wait_for([&] { return running.is_idle() && running.http.counts().connections == 0; });
  EXPECT_EQ(post(running.port, "/v1/chat/completions", chat_body("Hello", 2)).status, 200);
}

TEST(Server, WhoDoesNotReadIsGivenUp) {
  ServerSetup setup;
  setup.http.unread_bytes = 32;  // less than any event, however soon it is sent
  Running running(setup);
  const Answer answer = post(running.port, "/v1/chat/completions", endless());
  EXPECT_FALSE(answer.whole);
  running.wait_for([&] { return running.is_idle(); });
  EXPECT_GE(running.cancelled(), 1u);
}

TEST(Server, FullQueueIs429) {
  ServerSetup setup;
  setup.engine.sequences = 1, setup.engine.queue_requests = 1;
  Running running(setup);
  const Json body = endless();
  RawClient first(running.port), second(running.port);
  first.send(test::post_text("/v1/chat/completions", body.dump()));
  running.wait_for([&] {
    const EngineMetrics m = running.engine.metrics();
    return m.running == 1 && m.waiting == 0;
  });
  second.send(test::post_text("/v1/chat/completions", body.dump()));
  EXPECT_TRUE(second.read_until("200 OK"));
  const Answer third = post(running.port, "/v1/chat/completions", body);
  ASSERT_EQ(third.status, 429);
  EXPECT_GE(std::atoi(third.header("retry-after").c_str()), 1);
  EXPECT_EQ(third.json()["error"]["type"], "rate_limit_error");
}

TEST(Server, KeysOpenAllButHealth) {
  ServerSetup setup;
  setup.service.keys = {"first-key", "second"};
  Running running(setup);
  for (const char* header : {"", "Authorization: Bearer wrong\r\n", "Authorization: Bearer \r\n", "Authorization: Bearer first-ke\r\n",
                             "Authorization: Bearer first-keyy\r\n", "Authorization: first-key\r\n"}) {
    EXPECT_EQ(get(running.port, "/v1/models", header).status, 401) << header;
    EXPECT_EQ(get(running.port, "/nowhere", header).status, 401) << header;
    EXPECT_EQ(post(running.port, "/v1/completions", std::string("{"), header).status, 401) << header;
  }
  EXPECT_EQ(get(running.port, "/v1/models", "Authorization: Bearer first-key\r\n").status, 200);
  EXPECT_EQ(get(running.port, "/metrics", "Authorization: Bearer second\r\n").status, 200);
  EXPECT_EQ(get(running.port, "/health").status, 200);
}

TEST(Server, SlowClientsAreCutOff) {
  ServerSetup setup;
  setup.http.header_time = setup.http.body_time = std::chrono::milliseconds(300);
  Running running(setup);
  RawClient silent(running.port), slow(running.port), half(running.port);
  slow.send("GET /v1/models HTTP/1.1\r\nHost");
  half.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(slow.closed());
  EXPECT_TRUE(half.closed());
  running.wait_for([&] { return running.http.counts().connections == 0; });
}

TEST(Server, ConnectionsBeyondTheLimitAreTurnedAway) {
  ServerSetup setup;
  setup.http.connections = 2;
  Running running(setup);
  {
    RawClient one(running.port), two(running.port);
    running.wait_for([&] { return running.http.counts().connections == 2; });
    const Answer third = get(running.port, "/v1/models");
    EXPECT_EQ(third.status, 503);
    EXPECT_EQ(third.json()["error"]["type"], "overloaded_error");
  }
  running.wait_for([&] { return running.http.counts().connections == 0; });
  EXPECT_EQ(get(running.port, "/v1/models").status, 200);
}

TEST(Server, ShutsDownWithAnswersUnderWay) {
  Running running;
  const Json body = endless();
  RawClient client(running.port), idle(running.port);
  client.send(test::post_text("/v1/chat/completions", body.dump()));
  EXPECT_TRUE(client.read_until("\"content\":\""));
  running.service.begin_shutdown();
  running.http.stop_accepting();
  EXPECT_TRUE(idle.closed());
  running.engine.stop(std::chrono::milliseconds(0));
  const Answer answer = client.read();
  EXPECT_TRUE(answer.whole);
  EXPECT_THAT(answer.body, HasSubstr("\"error\""));
  EXPECT_TRUE(running.http.drain(std::chrono::seconds(60)));
}

}  // namespace
}  // namespace palimpsest::server
