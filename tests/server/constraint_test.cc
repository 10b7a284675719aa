// Constrained answers of the demo model, through raw sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "running_server.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::Json;
using test::post;
using test::shared;
using test::tokenizer;
using ::testing::HasSubstr;

Json chat(const std::string& text) {
  return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"temperature", 0.9}, {"seed", 5}, {"max_tokens", 400}, {"reasoning_effort", "none"}};
}
Answer ask(const Json& body, const char* path = "/v1/chat/completions") {
  return post(shared().port, path, body);
}
Json first(const Answer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  return answer.json()["choices"][0];
}

const char* kSchema = R"({"type":"object","properties":{"name":{"type":"string","maxLength":20},"age":{"type":"integer","minimum":0,"maximum":120},
  "pets":{"type":"array","items":{"enum":["cat","dog"]},"maxItems":3}},"required":["name","age","pets"],"additionalProperties":false})";

void expect_person(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  ASSERT_TRUE(json.is_object()) << text;
  EXPECT_EQ(json.size(), 3U);
  EXPECT_TRUE(json["name"].is_string()) << text;
  ASSERT_TRUE(json["age"].is_number_integer()) << text;
  EXPECT_LE(json["age"].get<int>(), 120);
  for (const Json& pet : json["pets"]) EXPECT_TRUE(pet == "cat" || pet == "dog") << text;
}

TEST(Constraints, AnswersAreWhatTheSchemaAllows) {
  Json body = chat("Who are you?");
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "person"}, {"schema", Json::parse(kSchema)}, {"strict", true}}}};
  body["n"] = 3;
  const Answer answer = ask(body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json choices = answer.json()["choices"];
  for (const Json& choice : choices) {
    EXPECT_EQ(choice["finish_reason"], "stop");
    expect_person(choice["message"]["content"]);
  }
  body["n"] = 1;
  body["stream"] = true;
  const Answer stream = ask(body);
  std::string sum;
  for (const std::string& event : stream.events()) {
    if (event == "[DONE]") break;
    const Json chunk = Json::parse(event);
    if (!chunk["choices"].empty() && chunk["choices"][0]["delta"].contains("content")) sum += chunk["choices"][0]["delta"]["content"].get<std::string>();
  }
  expect_person(sum);
  EXPECT_EQ(sum, answer.json()["choices"][0]["message"]["content"].get<std::string>()) << "whoever is beside it";
}

TEST(Constraints, ThoughtsAreFree) {
  Json body = chat("Count.");
  body.erase("reasoning_effort");
  body["max_tokens"] = 700;
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "array"}, {"items", {{"type", "integer"}}}, {"maxItems", 2}}}}}};
  const Json choice = first(ask(body));
  if (choice["finish_reason"] == "stop") { EXPECT_TRUE(Json::parse(choice["message"]["content"].get<std::string>()).is_array()); }
  else { EXPECT_EQ(choice["finish_reason"], "length"); }
}

TEST(Constraints, JsonObjectsRegexesGrammarsAndChoices) {
  Json body = chat("Say something.");
  body["response_format"] = {{"type", "json_object"}};
  Json choice = first(ask(body));
  if (choice["finish_reason"] == "stop") { EXPECT_TRUE(Json::parse(choice["message"]["content"].get<std::string>()).is_object()); }
  else { EXPECT_TRUE(choice["message"]["content"].get<std::string>().starts_with("{")); }
  const auto text = [&](const char* field, Json value) {
    Json with = chat("Say something.");
    with[field] = std::move(value);
    return first(ask(with))["message"]["content"].get<std::string>();
  };
  EXPECT_TRUE(std::regex_match(text("regex", "[a-f]{3}-[0-9]{2}"), std::regex("[a-f]{3}-[0-9]{2}")));
  EXPECT_TRUE(std::regex_match(text("guided_regex", "x+y"), std::regex("x+y")));
  EXPECT_TRUE(std::regex_match(text("grammar", "root ::= (\"ja\" | \"nein\") \"!\"{1,3}"), std::regex("(ja|nein)!{1,3}")));
  EXPECT_TRUE(std::regex_match(text("structured_outputs", {{"choice", {"left", "right \"now\""}}}), std::regex("left|right \"now\"")));
  EXPECT_TRUE(std::regex_match(text("guided_choice", {"yes", "no"}), std::regex("yes|no")));
  EXPECT_TRUE(Json::parse(text("json_schema", {{"type", "boolean"}})).is_boolean());
  const Json completion = first(ask({{"prompt", "It was"}, {"max_tokens", 60}, {"regex", " [a-z]{4}\\."}}, "/v1/completions"));
  EXPECT_TRUE(std::regex_match(completion["text"].get<std::string>(), std::regex(" [a-z]{4}\\.")));
  EXPECT_EQ(completion["finish_reason"], "stop");
}

Json tools() {
  return Json::parse(R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string","enum":["Rome","Oslo"]},
    "days":{"type":"integer","minimum":1,"maximum":14}},"required":["city","days"]}}},
    {"type":"function","function":{"name":"note","parameters":{"type":"object","properties":{"text":{"type":"string","maxLength":10}},"required":["text"]}}}])");
}

void expect_call(const Json& call) {
  const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>(), nullptr, false);
  ASSERT_TRUE(arguments.is_object()) << call;
  if (call["function"]["name"] == "note") {
    EXPECT_TRUE(arguments["text"].is_string());
  } else {
    ASSERT_EQ(call["function"]["name"], "weather");
    EXPECT_TRUE(arguments["city"] == "Rome" || arguments["city"] == "Oslo");
    EXPECT_GE(arguments["days"].get<int>(), 1);
    EXPECT_LE(arguments["days"].get<int>(), 14);
  }
}

TEST(Constraints, ToolChoiceForcesCallsWithValidArguments) {
  Json body = chat("Hello");
  body["tools"] = tools();
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "weather"}}}};
  Json choice = first(ask(body));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "weather");
  expect_call(choice["message"]["tool_calls"][0]);
  EXPECT_TRUE(choice["message"]["content"].is_null());
  body["tool_choice"] = "required";
  body["parallel_tool_calls"] = false;
  choice = first(ask(body));
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U) << choice;
  expect_call(choice["message"]["tool_calls"][0]);
  body["parallel_tool_calls"] = true;
  choice = first(ask(body));
  ASSERT_GE(choice["message"]["tool_calls"].size(), 1U);
  if (choice["finish_reason"] == "tool_calls")
    for (const Json& call : choice["message"]["tool_calls"]) expect_call(call);
  body["tool_choice"] = "none";
  EXPECT_FALSE(first(ask(body))["message"].contains("tool_calls"));
}

/// Strict tools and a form of the answer leave the choice between them.
TEST(Constraints, AutoWithStrictToolsIsServed) {
  Json body = chat("Hello");
  body["tools"] = tools();
  body["tools"][0]["function"]["strict"] = true;
  body["max_tokens"] = 30;
  const Json choice = first(ask(body));
  EXPECT_TRUE(choice["finish_reason"] == "stop" || choice["finish_reason"] == "length" || choice["finish_reason"] == "tool_calls");
  body["response_format"] = {{"type", "json_object"}};
  EXPECT_EQ(ask(body).status, 200);
}

TEST(Constraints, RefusesWithTheFieldAndThePlace) {
  const auto refused = [&](const char* field, Json value, const std::string& param, const char* text, const char* path = "/v1/chat/completions") {
    Json body = chat("x");
    if (path != std::string_view("/v1/chat/completions")) body = {{"prompt", "x"}};
    body[field] = std::move(value);
    if (std::string_view(field) == "tool_choice") body["tools"] = tools();
    const Answer answer = ask(body, path);
    EXPECT_EQ(answer.status, 400) << field << answer.body;
    EXPECT_EQ(answer.json()["error"]["param"], param) << answer.body;
    EXPECT_THAT(answer.json()["error"]["message"].get<std::string>(), HasSubstr(text));
  };
  const auto schema = [](Json of) { return Json{{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", std::move(of)}}}}; };
  refused("response_format", schema({{"properties", {{"a", {{"not", Json::object()}}}}}}), "response_format", "#/properties/a: not is not supported");
  refused("response_format", schema({{"minItems", 1'000'000'000}}), "response_format", "repetitions");
  refused("response_format", schema(7), "response_format", "not a JSON schema");
  refused("response_format", {{"type", "json_schema"}}, "response_format", "schema is missing");
  refused("response_format", {{"type", "xml"}}, "response_format", "not known");
  refused("response_format", "json", "response_format", "not an object");
  refused("grammar", "root ::= " + std::string(60'000, '(') + "\"a\"" + std::string(60'000, ')'), "grammar", "nested");
  refused("grammar", "root ::= root \"a\" | \"b\"", "grammar", "left recursion");
  refused("grammar", "root ::= missing", "grammar", "line 1");
  refused("regex", "(?=a)", "regex", "looking around");
  refused("regex", 7, "regex", "not a string");
  refused("regex", "(", "regex", "not closed", "/v1/completions");
  refused("guided_choice", Json::array(), "guided_choice", "list");
  refused("structured_outputs", {{"regex", "a"}, {"grammar", "root ::= \"a\""}}, "structured_outputs.grammar", "one form");
  refused("tool_choice", {{"type", "function"}, {"function", {{"name", "nobody"}}}}, "tool_choice", "no tool \"nobody\"");
  refused("tool_choice", "sometimes", "tool_choice", "not known");
  Json body = chat("x");
  body["tools"] = tools();
  body["tools"][1]["function"]["parameters"]["patternProperties"] = Json::object();
  body["tool_choice"] = "required";
  Answer answer = ask(body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["param"], "tools");
  EXPECT_THAT(answer.json()["error"]["message"].get<std::string>(), HasSubstr("tools[1]"));
  // A grammar that is found too ambiguous while it is followed ends its request, and no other.
  body = chat("x");
  body["grammar"] = "root ::= \"a\" root \"x\" | \"a\" root \"y\" | \"z\"";
  body["logit_bias"] = {{std::to_string(tokenizer().encode("a")[0]), 100}};
  answer = ask(body);
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_EQ(ask({{"prompt", "x"}, {"max_tokens", 1}}, "/v1/completions").status, 200);
}

}  // namespace
}  // namespace palimpsest::server
