// /v1/messages and /v1/responses: what their streams add up to, from answers that are given and
// over the whole server.

#include "server/block_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "running_server.h"
#include "server/messages_fields.h"
#include "server/responses_fields.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::Json;
using test::post;
using test::shared;
using test::tokenizer;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Keeps what it is sent.
class KeptReply final : public Reply {
 public:
  void send(Response response) override { whole = std::move(response); }
  void begin_stream() override {}
  bool write(std::string text) override {
    stream += text;
    return true;
  }
  void end() override { ended = true; }
  void on_gone(std::function<void()>) override {}

  Json json() const { return Json::parse(whole.body); }
  std::vector<Json> events() const {
    Answer answer;
    answer.body = stream;
    std::vector<Json> out;
    for (const std::string& event : answer.events()) out.push_back(Json::parse(event));
    return out;
  }

  Response whole;
  std::string stream;
  bool ended = false;
};

Backend& backend() {
  static Backend one(shared().engine, tokenizer(), test::Running::with_format({}));
  return one;
}

const Json kTool = Json::parse(R"({"type": "function", "function": {"name": "f"}})");

/// Has `job` hear an answer of one token an event, control tokens by their names.
void tell(PartsListener& job, const std::string& text, FinishReason reason = FinishReason::kStop) {
  bool over = false;
  const auto hear = [&](const EngineEvent& event) {
    try {
      return !over && job.hear(0, event);
    } catch (...) {
      over = true;
      job.failed(current_error());
      return false;
    }
  };
  hear(StartedEvent{{.cached_tokens = 3, .replayed_tokens = 0, .computed_tokens = 4}});
  std::int64_t written = 0;
  for (const TokenId id : tokenizer().encode(text, EncodeMode::kControl)) {
    const TokenInfo token{.id = id, .logprob = 0, .top = {}};
    ++written;
    if (!hear(TokensEvent{0, std::span(&token, 1)})) break;
  }
  hear(ChoiceEvent{0, reason, -1, ErrorCode::kInternal, "why"});
  Usage usage;
  usage.prompt_tokens = 7;
  usage.prompt.cached_tokens = 3;
  usage.written_tokens = written;
  hear(FinishedEvent{usage});
  if (!over) job.finished();
}

const std::string kAnswer =
    "I wonder.<|close|>think<|sep|><|open|>response<|sep|>one<|close|>response<|sep|>"
    "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" "
    "type=\"string\"<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|end_of_msg|>";

Json chat_of(bool stream, std::vector<std::string> stops = {}) {
  Json chat = {{"messages", {{{"role", "user"}, {"content", "?"}}}}, {"stream", stream}};
  chat["tools"] = Json::array({kTool});
  chat["stop"] = stops;
  return chat;
}

std::shared_ptr<KeptReply> messages(bool stream, const std::string& text,
                                    FinishReason reason = FinishReason::kStop,
                                    std::vector<std::string> stops = {}) {
  auto reply = std::make_shared<KeptReply>();
  PreparedChat chat = prepare_chat(backend(), Request(), chat_of(stream, std::move(stops)));
  Request request;
  request.id = "r";
  tell(*make_messages_job(backend(), chat, request, reply), text, reason);
  return reply;
}

std::shared_ptr<KeptReply> responses(bool stream, const std::string& text,
                                     FinishReason reason = FinishReason::kStop) {
  auto reply = std::make_shared<KeptReply>();
  PreparedChat chat = prepare_chat(backend(), Request(), chat_of(stream));
  Request request;
  request.id = "r";
  const Json body = {{"input", "?"}, {"instructions", "be"}};
  tell(*make_responses_job(backend(), chat, body, request, reply), text, reason);
  return reply;
}

/// What the events of /v1/messages add up to, as clients do it.
Json message_of(const std::vector<Json>& events) {
  Json message;
  std::string arguments;
  bool open = false;
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") {
      message = event["message"];
    } else if (type == "content_block_start") {
      EXPECT_FALSE(open);
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      open = true;
      arguments.clear();
    } else if (type == "content_block_delta") {
      EXPECT_EQ(event["index"].get<std::size_t>() + 1, message["content"].size());
      Json& block = message["content"].back();
      const Json& delta = event["delta"];
      for (const char* name : {"text", "thinking"}) {
        if (delta.contains(name)) block[name] = block[name].get<std::string>() + delta[name].get<std::string>();
      }
      if (delta.contains("partial_json")) arguments += delta["partial_json"].get<std::string>();
    } else if (type == "content_block_stop") {
      if (message["content"].back()["type"] == "tool_use") message["content"].back()["input"] = Json::parse(arguments);
      open = false;
    } else if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(events.back()["type"], "message_stop");
  return message;
}

TEST(Messages, BlocksAndTheirStreamAreTheSame) {
  const auto whole = messages(false, kAnswer), streamed = messages(true, kAnswer);
  const Json message = whole->json();
  EXPECT_EQ(message["content"],
            Json::parse(R"([{"type": "thinking", "thinking": "I wonder.", "signature": ""},
                            {"type": "text", "text": "one"},
                            {"type": "tool_use", "id": "", "name": "f", "input": {"a": "x"}}])")
                .patch(Json::array({{{"op", "replace"}, {"path", "/2/id"}, {"value", message["content"][2]["id"]}}})));
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["usage"]["input_tokens"], 4);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 3);
  EXPECT_EQ(message_of(streamed->events()), message);
  EXPECT_TRUE(streamed->ended);
  EXPECT_THAT(streamed->stream, ::testing::StartsWith("event: message_start\ndata: {\"type\":\"message_start\""));
}

TEST(Messages, EndsHaveTheirReasons) {
  EXPECT_EQ(messages(false, "t<|close|>think<|sep|><|open|>response<|sep|>a<|end_of_msg|>")->json()["stop_reason"], "end_turn");
  EXPECT_EQ(messages(false, "t", FinishReason::kLength)->json()["stop_reason"], "max_tokens");
  const Json stopped = messages(false, "t<|close|>think<|sep|><|open|>response<|sep|>one two three", FinishReason::kStop, {"two"})->json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "two");
  EXPECT_EQ(stopped["content"].back()["text"], "one ");
  const auto failed = messages(false, "t", FinishReason::kError);
  EXPECT_EQ(failed->whole.status, 500);
  EXPECT_EQ(failed->json(), Json::parse(R"({"type": "error", "error": {"type": "api_error", "message": "why"}})"));
  const auto broken = messages(true, "t", FinishReason::kError)->events();
  EXPECT_EQ(broken.back()["type"], "error");
}

TEST(Responses, ItemsAndTheirStreamAreTheSame) {
  const auto whole = responses(false, kAnswer), streamed = responses(true, kAnswer);
  Json response = whole->json();
  EXPECT_EQ(response["status"], "completed");
  ASSERT_EQ(response["output"].size(), 3u) << response;
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "I wonder.");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "one");
  EXPECT_EQ(response["output"][2]["arguments"], R"({"a":"x"})");
  EXPECT_EQ(response["instructions"], "be");
  EXPECT_EQ(response["usage"]["input_tokens"], 7);
  EXPECT_GT(response["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
  const auto events = streamed->events();
  std::vector<std::string> sums(3);
  std::vector<Json> done;
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    const std::string type = events[i]["type"];
    if (type.ends_with(".delta")) sums[events[i]["output_index"].get<std::size_t>()] += events[i]["delta"].get<std::string>();
    if (type == "response.output_item.done") done.push_back(events[i]["item"]);
  }
  EXPECT_EQ(sums, (std::vector<std::string>{"I wonder.", "one", R"({"a":"x"})"}));
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_EQ(events.back()["type"], "response.completed");
  Json last = events.back()["response"];
  EXPECT_EQ(Json(done), last["output"]);
  // Ids of calls are drawn for each answer.
  for (Json* one : {&last, &response}) (*one)["output"][2].erase("call_id"), one->erase("created_at");
  EXPECT_EQ(last, response);
}

TEST(Responses, EndsHaveTheirStates) {
  const Json cut = responses(false, "t", FinishReason::kLength)->json();
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(responses(false, "t", FinishReason::kError)->whole.status, 500);
  const auto events = responses(true, "t", FinishReason::kError)->events();
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["error"]["message"], "why");
}

TEST(Messages, BecomeChats) {
  const Json body = Json::parse(R"({"max_tokens": 5, "temperature": 0.5, "system": [{"type": "text", "text": "S"}],
    "stop_sequences": ["x"], "tool_choice": {"type": "tool", "name": "f"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "h", "signature": ""}, {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"k": [1]}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
        {"type": "text", "text": "b"}]}]})");
  EXPECT_EQ(chat_of_messages(body, true, false), Json::parse(R"({"max_tokens": 5, "temperature": 0.5, "stop": ["x"],
    "messages": [{"role": "system", "content": "S", "where": "system"}, {"role": "user", "content": "q", "where": "messages[0]"},
      {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"k\":[1]}"}}],
        "content": "a", "reasoning_content": "h", "where": "messages[1]"},
      {"role": "tool", "tool_call_id": "1", "content": "r", "where": "messages[2]"}, {"role": "user", "content": "b", "where": "messages[2]"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}}, "chat_template_kwargs": {"thinking": true}})"));
}

TEST(Responses, BecomeChats) {
  const Json body = Json::parse(R"({"instructions": "S", "max_output_tokens": 5, "reasoning": {"effort": "low"},
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "tool_choice": "required",
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    "input": [{"role": "user", "content": "q"},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
      {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "1", "output": "r"}]})");
  EXPECT_EQ(chat_of_responses(body), Json::parse(R"({"max_tokens": 5,
    "messages": [{"role": "system", "content": "S", "where": "instructions"}, {"role": "user", "content": "q", "where": "input[0]"},
      {"role": "assistant", "content": "a", "reasoning_content": "h", "where": "input[1]",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "1", "content": "r", "where": "input[4]"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": "required",
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}, "reasoning_effort": "low"})"));
}

TEST(Messages, WholeServer) {
  const std::uint16_t port = shared().port;
  Json body = Json::parse(R"({"model": "demo", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": "Hello"}]})");
  const Answer whole = post(port, "/v1/messages", body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  body["stream"] = true;
  const Answer streamed = post(port, "/v1/messages", body);
  std::vector<Json> events;
  for (const std::string& event : streamed.events()) events.push_back(Json::parse(event));
  Json sum = message_of(events), expected = whole.json();
  sum.erase("id"), expected.erase("id");
  sum.erase("usage"), expected.erase("usage");  // the second finds the first's prompt
  EXPECT_EQ(sum, expected);
  EXPECT_FALSE(expected["content"].empty());
  body.erase("max_tokens"), body.erase("stream");
  EXPECT_EQ(post(port, "/v1/messages/count_tokens", body).json()["input_tokens"],
            whole.json()["usage"]["input_tokens"].get<int>() + whole.json()["usage"]["cache_read_input_tokens"].get<int>());
  const Json error = post(port, "/v1/messages", body).json();
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "invalid_request_error");
  EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr("max_tokens"));
  EXPECT_EQ(post(port, "/v1/messages", std::string("{")).json()["type"], "error");
  EXPECT_EQ(test::get(port, "/v1/messages").json()["type"], "error");
}

TEST(Messages, RefuseWhatCannotBe) {
  const char* bodies[] = {
      R"("messages": [])", R"("messages": [{"role": "user"}])", R"("messages": [{"role": "system", "content": "x"}])",
      R"("messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}])",
      R"("messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])",
      R"("messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": 5}]}])",
      R"("messages": [{"role": "user", "content": "x"}], "system": 5)", R"("messages": [5])",
      R"("messages": [{"role": "user", "content": "x"}], "stop_sequences": "x")",
      R"("messages": [{"role": "user", "content": "x"}], "stop_sequences": [""])",
      R"("messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}])",
      R"("messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f", "type": "web_search_20250305", "input_schema": {}}])",
      R"("messages": [{"role": "user", "content": "x"}], "thinking": {"type": "a lot"}, "temperature": 0)",
      R"("messages": [{"role": "user", "content": "x"}], "temperature": 9)",
      R"("messages": [{"role": "user", "content": "x"}, {"role": "user", "content": []}])"};
  for (const char* text : bodies) {
    const Answer answer = post(shared().port, "/v1/messages", "{\"max_tokens\": 1, " + std::string(text) + "}");
    EXPECT_EQ(answer.status, 400) << text << answer.body;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error") << answer.body;
  }
}

TEST(Messages, ErrorsNameWhatTheClientSent) {
  for (const auto& [front, body] :
       {std::pair{"messages[0].content: an empty list", R"("messages": [{"role": "user", "content": []}])"},
        {"messages[0]: a tool message", R"("system": "s", "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}])"},
        {"output_config.effort: not a string", R"("messages": [{"role": "user", "content": "x"}], "output_config": {"effort": 5})"},
        {"tools[0].type: not a string", R"("messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f", "type": 5}])"}}) {
    const Json error = post(shared().port, "/v1/messages", "{\"max_tokens\": 1, " + std::string(body) + "}").json();
    EXPECT_THAT(error["error"]["message"].get<std::string>(), StartsWith(front));
  }
}

TEST(Responses, WholeServer) {
  const std::uint16_t port = shared().port;
  Json body = Json::parse(R"({"input": "Hello", "max_output_tokens": 12, "temperature": 0})");
  const Answer whole = post(port, "/v1/responses", body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  body["stream"] = true;
  std::string text, thoughts;
  Json last;
  for (const std::string& event : post(port, "/v1/responses", body).events()) {
    last = Json::parse(event);
    if (last["type"] == "response.output_text.delta") text += last["delta"].get<std::string>();
    if (last["type"] == "response.reasoning_text.delta") thoughts += last["delta"].get<std::string>();
  }
  std::string expected, reasoned;
  const Json response = whole.json();  // which the loop refers to
  for (const Json& item : response["output"])
    (item["type"] == "message" ? expected : reasoned) += item["content"][0]["text"].get<std::string>();
  EXPECT_EQ(text, expected);
  EXPECT_EQ(thoughts, reasoned);
  EXPECT_FALSE((text + thoughts).empty());
  EXPECT_EQ(last["response"]["output"].size(), whole.json()["output"].size());
}

TEST(Responses, RefuseWhatCannotBe) {
  for (const auto& [field, body] :
       {std::pair{"input", R"({})"}, {"input", R"({"input": []})"}, {"previous_response_id", R"({"input": "x", "previous_response_id": "r"})"},
        {"background", R"({"input": "x", "background": true})"}, {"max_output_tokens", R"({"input": "x", "max_output_tokens": 0})"},
        {"input[0].type", R"({"input": [{"type": "item_reference", "id": "x"}]})"}, {"tools[0].type", R"({"input": "x", "tools": [{"type": "web_search"}]})"},
        {"input[0].content[0].image_url", R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})"},
        {"input[0].content[0].file_id", R"({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]})"},
        {"input[1]", R"({"instructions": "s", "input": [{"role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "1", "output": "r"}]})"},
        {"input[0].type", R"({"input": [{"type": 5}]})"}, {"reasoning.effort", R"({"input": "x", "reasoning": {"effort": 5}})"},
        {"truncation", R"({"input": "x", "truncation": "auto"})"}, {"text.format", R"({"input": "x", "text": {"format": {"type": "xml"}}})"},
        {"text.format", R"({"input": "x", "text": {"format": {"type": "json_schema", "schema": {"not": {}}}}})"}}) {
    const Answer answer = post(shared().port, "/v1/responses", std::string(body));
    EXPECT_EQ(answer.status, 400) << body << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], field) << answer.body;
  }
}

TEST(Messages, WhoLeavesIsCancelled) {
  test::Running running;
  for (const char* path : {"/v1/messages", "/v1/responses"}) {
    Json body = test::chat_body("Tell me a long story.", 900);
    body["input"] = "Tell me a long story.";
    body["max_output_tokens"] = 900;
    body["stream"] = true;
    const std::uint64_t before = running.engine.metrics().finished;
    test::RawClient client(running.port);
    client.send(test::post_text(path, body.dump()));
    EXPECT_TRUE(client.read_until("delta"));
    client.leave();
    running.wait_for([&] { return running.engine.metrics().finished == before + 1 && running.is_idle(); });
  }
}

}  // namespace
}  // namespace palimpsest::server
