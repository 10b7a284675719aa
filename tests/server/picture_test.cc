// Pictures in requests, through raw sockets, over a small model with eyes: against the same chat in a Session, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "running_server.h"
#include "runtime/chat_session.h"
#include "support/bitmap.h"
#include "support/seeing_model.h"
#include "support/temp_folder.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::get;
using test::Json;
using test::post;
using ::testing::HasSubstr;

constexpr std::int64_t kTokens = 6;  // of an answer

std::string url_of(const std::string& file, const char* type = "image/bmp") {
  std::string url = data_url(std::as_bytes(std::span(file)));
  return url.replace(0, 5, "data:" + std::string(type));
}
/// About width * height / 784 tokens.
std::string picture(std::int64_t width, std::int64_t height, unsigned seed) { return url_of(test::striped_bmp(width, height, seed)); }
/// 20,449 patches, whose attention takes seconds, in half a megabyte: one bit a pixel.
std::string large_picture() {
  constexpr std::int64_t kSide = 2000, kStride = 252;
  std::string file = "BM";
  const auto put = [&](std::int64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file += static_cast<char>(value >> (8 * i));
  };
  for (const std::int64_t value : {62 + kStride * kSide, std::int64_t{0}, std::int64_t{62}, std::int64_t{40}, kSide, kSide}) put(value, 4);
  put(1, 2);
  put(1, 2);
  for (const std::int64_t value : {0, 0, 0, 0, 2, 0, 0, 0xffffff}) put(value, 4);
  for (std::int64_t i = 0; i < kStride * kSide; ++i) file += static_cast<char>(i * 37);
  return url_of(file);
}

struct Eyes {
  Eyes() {
    test::write_seeing_model(folder.path());
    model = test::load_model(folder.path());
    tokenizer.emplace(Tokenizer::load(folder.path(), model->config().vocab_size));
  }
  test::TempFolder folder;
  std::shared_ptr<const Model> model;
  std::optional<Tokenizer> tokenizer;
};
Eyes& eyes() {
  static Eyes one;
  return one;
}

struct Seeing {
  explicit Seeing(EngineOptions engine_options = {}, ServiceOptions options = {})
      : engine(eyes().model, with_tower(std::move(engine_options))), service(engine, *eyes().tokenizer, with_eyes(std::move(options))), http(test::Running::with_port({}), service), port(http.port()) {}
  ~Seeing() { engine.stop(std::chrono::milliseconds(0)); }
  static EngineOptions with_tower(EngineOptions options) {
    options.threads = 1;
    options.sequences = 3;
    options.context = 8192;
    options.tower = VisionTower::load(eyes().folder.path());
    options.picture_patches = options.tower->config().most_patches();
    return options;
  }
  static ServiceOptions with_eyes(ServiceOptions options) {
    options.name = "eyes";
    options.format = ChatFormat::create(*eyes().tokenizer, eyes().folder.path());
    options.vision = load_vision_config(eyes().folder.path());
    return options;
  }
  bool is_idle() const {
    const EngineMetrics m = engine.metrics();
    return m.running == 0 && m.waiting == 0;
  }
  template <class F>
  static void wait_for(F f) {
    for (int i = 0; i < 6000 && !f(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(f());
  }

  Engine engine;
  Service service;
  test::HttpServer http;
  std::uint16_t port;
};
Seeing& seeing() {
  static Seeing one;
  return one;
}

Json part(const std::string& url) { return {{"type", "image_url"}, {"image_url", {{"url", url}}}}; }
Json text(const std::string& words) { return {{"type", "text"}, {"text", words}}; }
Json user(Json content) { return {{"role", "user"}, {"content", std::move(content)}}; }
Json body_of(Json messages) { return {{"messages", std::move(messages)}, {"temperature", 0}, {"max_tokens", kTokens}, {"logprobs", true}}; }
Json body_of(const std::string& url, const std::string& words) { return body_of(Json::array({user(Json::array({part(url), text(words)}))})); }

Answer chat(std::uint16_t port, const Json& body) { return post(port, "/v1/chat/completions", body); }
std::string reason_of(const Answer& answer) { return answer.json()["error"]["message"]; }

std::string said(const Json& message) { return message.value("reasoning_content", "") + "|" + (message["content"].is_string() ? message["content"].get<std::string>() : ""); }
std::string said(const Answer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body.substr(0, 400);
  return said(answer.json()["choices"][0]["message"]) + answer.json()["choices"][0]["logprobs"].dump();
}

TEST(PicturesInChats, GiveTheTextOfASession) {
  const std::string url = picture(100, 60, 1);
  Session session(eyes().model, {.threads = 1, .context = 400});
  Sampler sampler({.temperature = 0}, eyes().model->config().vocab_size);
  const std::shared_ptr<const ChatFormat> format = ChatFormat::create(*eyes().tokenizer, eyes().folder.path());
  ChatSession spoken(session, sampler, *eyes().tokenizer, format, {}, {}, ChatPictures::create(*load_vision_config(eyes().folder.path()), *eyes().tokenizer));
  ChatMessage message = ChatMessage::of(Role::kUser, "What is this?");
  message.content.insert(message.content.begin(), ContentPart{ContentPart::Kind::kImage, url});
  const ChatTurn turn = spoken.say(message, {.max_tokens = kTokens, .stop_ids = eyes().tokenizer->stop_ids()});

  Json body = body_of(url, "What is this?");
  const Answer whole = chat(seeing().port, body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json answer = whole.json();
  EXPECT_EQ(said(answer["choices"][0]["message"]), turn.message.reasoning + "|" + turn.message.content);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], turn.generated.prompt_tokens);
  EXPECT_EQ(answer["usage"]["prompt_tokens"].get<std::int64_t>() - 8, chat(seeing().port, body_of(picture(100, 28, 1), "What is this?")).json()["usage"]["prompt_tokens"].get<std::int64_t>())
      << "pictures of 4 x 3 and 4 x 1 tokens";

  body["stream"] = true;
  std::string reasoning, content;
  for (const std::string& event : chat(seeing().port, body).events()) {
    if (event == "[DONE]") continue;
    const Json delta = Json::parse(event)["choices"][0]["delta"];
    reasoning += delta.value("reasoning_content", "");
    if (delta.contains("content") && delta["content"].is_string()) content += delta["content"].get<std::string>();
  }
  EXPECT_EQ(reasoning + "|" + content, turn.message.reasoning + "|" + turn.message.content);
  EXPECT_NE(said(chat(seeing().port, body_of(picture(100, 60, 2), "What is this?"))), said(whole)) << "another picture";
}

TEST(PicturesInChats, ArePrefixesThatAreFoundAgain) {
  const Seeing server;
  const std::string url = picture(400, 300, 1), other = picture(400, 300, 2);  // 15 x 11 tokens
  const auto ask = [&](const std::string& of, const std::string& words) { return chat(server.port, body_of(of, words)); };
  const std::string cold = said(ask(url, "What is this?"));
  EXPECT_EQ(server.engine.metrics().pictures, 1u);
  const Answer again = ask(url, "What is this?");
  EXPECT_EQ(said(again), cold);
  EXPECT_GE(again.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 128);
  const Answer longer = ask(url, "What is this, and where was it made?");
  EXPECT_GE(longer.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
  const Answer changed = ask(other, "What is this?");
  EXPECT_LT(changed.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 64) << "another picture shares only what comes before it";
  EXPECT_EQ(said(longer), said(chat(Seeing().port, body_of(url, "What is this, and where was it made?")))) << "warm equals cold";
}

TEST(PicturesInChats, StandInEarlierTurnsAndResultsOfTools) {
  const Json calls = Json::array({{{"id", "a"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}},
                                  {{"id", "b"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}}});
  const auto results = [&](const std::string& of_a, const std::string& of_b, bool a_first) {
    const Json a = {{"role", "tool"}, {"tool_call_id", "a"}, {"content", {part(of_a), text("A")}}}, b = {{"role", "tool"}, {"tool_call_id", "b"}, {"content", {text("B"), part(of_b)}}};
    return body_of(Json::array({user(Json::array({part(picture(28, 28, 9)), part(picture(56, 28, 8)), text("Look.")})), {{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}},
                                a_first ? a : b, a_first ? b : a, user("And now?")}));
  };
  const std::string x = picture(56, 56, 1), y = picture(56, 56, 2);
  const std::string in_order = said(chat(seeing().port, results(x, y, true)));
  EXPECT_EQ(said(chat(seeing().port, results(x, y, false))), in_order) << "results are sorted, each with its picture";
  EXPECT_NE(said(chat(seeing().port, results(y, x, true))), in_order);
}

TEST(PicturesInChats, OtherInterfacesReadTheSamePrompt) {
  const std::string url = picture(100, 60, 3);
  const Json asked = {{"messages", Json::array({user(Json::array({part(url), text("Look.")}))})}, {"max_tokens", 1}, {"chat_template_kwargs", {{"thinking", false}}}};
  const std::int64_t tokens = chat(seeing().port, asked).json()["usage"]["prompt_tokens"];
  const Json block = {{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/bmp"}, {"data", url.substr(url.find(',') + 1)}}}};
  const Json messages = {{"max_tokens", 1}, {"messages", {user(Json::array({block, text("Look.")}))}}};
  EXPECT_EQ(post(seeing().port, "/v1/messages/count_tokens", messages).json()["input_tokens"], tokens);
  const Json usage = post(seeing().port, "/v1/messages", messages).json()["usage"];
  EXPECT_EQ(usage["input_tokens"].get<std::int64_t>() + usage["cache_read_input_tokens"].get<std::int64_t>(), tokens);
  const Json result = {{"max_tokens", 1},
                       {"messages", {user("Go."), {{"role", "assistant"}, {"content", {{{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}}}}},
                                     user(Json::array({{{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", {text("Here."), block}}}}))}}};
  const Answer of_tool = post(seeing().port, "/v1/messages", result);
  EXPECT_EQ(of_tool.status, 200) << of_tool.body;

  const Json items = {{"max_output_tokens", 1}, {"reasoning", {{"effort", "none"}}},
                      {"input", {user(Json::array({{{"type", "input_image"}, {"image_url", url}}, {{"type", "input_text"}, {"text", "Look."}}}))}}};
  const Answer response = post(seeing().port, "/v1/responses", items);
  EXPECT_EQ(response.json()["usage"]["input_tokens"], tokens) << response.body;
  const std::string prompt = post(seeing().port, "/apply-template", asked).json()["prompt"];
  EXPECT_THAT(prompt, HasSubstr("<|media_begin|>image 100x60<|media_content|><|media_pad|><|media_end|>Look."));
  const Json ids = post(seeing().port, "/tokenize", Json{{"content", prompt}, {"parse_special", true}}).json()["tokens"];
  EXPECT_EQ(static_cast<std::int64_t>(ids.size()), tokens - 11) << "one placeholder for 12 tokens";
  EXPECT_TRUE(get(seeing().port, "/props").json()["modalities"]["vision"]);
}

TEST(PicturesInChats, ThirtyAreTakenAndMoreAreNot) {
  Json parts = Json::array();
  for (unsigned i = 0; i < 30; ++i) parts.push_back(part(picture(28 + i, 30, i)));
  const Answer answer = chat(seeing().port, body_of(Json::array({user(parts)})));
  EXPECT_EQ(answer.status, 200) << answer.body.substr(0, 400);
  for (unsigned i = 0; i < 3; ++i) parts.push_back(part(picture(28, 28, 1)));
  const Answer refused = chat(seeing().port, body_of(Json::array({user(parts)})));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(reason_of(refused), HasSubstr("33 pictures, at most 32"));
}

TEST(PicturesInChats, BadOnesAreRefusedByName) {
  const std::string good = test::striped_bmp(40, 40, 1);
  std::string bomb = good;
  bomb[19] = bomb[23] = 0x40;  // 16,424 pixels a side
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"data:image/png;base64,####", "not base64"},
      {"data:image/png,plain", "base64"},
      {"data:text/html;base64,QUFB", "media type"},
      {"https://example.org/a.png", "fetches no addresses"},
      {"file:///etc/passwd", "data:image"},
      {"", "data:image"},
      {url_of("not a picture"), ""},
      {url_of(""), ""},
      {url_of(good.substr(0, good.size() / 2)), ""},
      {url_of(bomb), "pixels are too many"},
      {url_of(test::read_file(test::project_path("tests/data/images/photo.jpg")).substr(0, 900), "image/png"), ""},
  };
  for (const auto& [url, reason] : cases) {
    const Json messages = Json::array({{{"role", "system"}, {"content", "s"}}, user(Json::array({text("x"), part(url)}))});
    const Answer answer = chat(seeing().port, body_of(messages));
    EXPECT_EQ(answer.status, 400) << url.substr(0, 60);
    EXPECT_EQ(answer.json()["error"]["param"], "messages[1].content[1]") << answer.body;
    EXPECT_THAT(reason_of(answer), HasSubstr(reason)) << url.substr(0, 60);
  }
  const Answer none = chat(seeing().port, body_of(Json::array({user(Json::array({{{"type", "image_url"}}}))})));
  EXPECT_EQ(none.status, 400) << none.body;
  const Answer named = post(seeing().port, "/v1/responses", Json{{"input", {user(Json::array({{{"type", "input_image"}, {"image_url", "data:,"}}}))}}});
  EXPECT_EQ(named.json()["error"]["param"], "input[0].content[0]") << named.body;
  const Answer other = post(seeing().port, "/v1/messages", Json{{"max_tokens", 1}, {"system", "s"}, {"messages", {user(Json::array({{{"type", "image"}, {"source", {{"type", "url"}, {"url", "http://x/"}}}}}))}}});
  EXPECT_THAT(reason_of(other), HasSubstr("messages[0].content[0]: this server fetches no addresses"));
  EXPECT_TRUE(seeing().is_idle());
}

TEST(PicturesInChats, AModelWithoutEyesNamesThePart) {
  const Answer answer = chat(test::shared().port, body_of(picture(28, 28, 1), "x"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["param"], "messages[0].content[0]");
  EXPECT_THAT(reason_of(answer), HasSubstr("reads no pictures"));
  EXPECT_EQ(post(test::shared().port, "/apply-template", body_of(picture(28, 28, 1), "x")).status, 400);
  EXPECT_FALSE(get(test::shared().port, "/props").json()["modalities"]["vision"]);
}

TEST(PicturesInChats, TakeOnlySoMuchMemory) {
  EngineOptions small;
  small.picture_bytes = 100'000;
  const Seeing server(small);
  EXPECT_EQ(chat(server.port, body_of(picture(170, 170, 1), "x")).status, 200) << "86,700 bytes";
  const Answer large = chat(server.port, body_of(picture(190, 190, 1), "x"));
  EXPECT_EQ(large.status, 413);
  EXPECT_THAT(reason_of(large), HasSubstr("108300 bytes"));
  const Json two = Json::array({user(Json::array({part(picture(170, 170, 1)), part(picture(170, 170, 2))}))});
  EXPECT_EQ(chat(server.port, body_of(two)).status, 413);
  server.wait_for([&] { return server.is_idle(); });
  const Json same = Json::array({user(Json::array({part(picture(170, 170, 1)), part(picture(170, 170, 1))}))});
  EXPECT_EQ(chat(server.port, body_of(same)).status, 200) << "one that is there twice is held once";
  server.wait_for([&] { return server.is_idle(); });
  EXPECT_EQ(chat(server.port, body_of(picture(170, 170, 3), "x")).status, 200) << "what has ended holds nothing";
}

/// The tower works for seconds on a large picture; others are answered meanwhile, and a client that leaves ends it.
TEST(PicturesInChats, ALargeOneKeepsNobodyWaitingAndCanBeLeft) {
  const Seeing server;
  test::RawClient client(server.port);
  client.send(test::post_text("/v1/chat/completions", body_of(large_picture(), "What is this?").dump()));
  server.wait_for([&] { return server.engine.metrics().picture_seconds > 0; });
  const Answer other = chat(server.port, body_of(Json::array({user("Hello")})));
  EXPECT_EQ(other.status, 200);
  EXPECT_EQ(server.engine.metrics().pictures, 0u) << "the tower is not done";
  server.wait_for([&] { return server.engine.metrics().running == 1; });
  client.leave();
  server.wait_for([&] { return server.is_idle(); });
  const EngineMetrics m = server.engine.metrics();
  EXPECT_EQ(m.pictures, 0u);
  EXPECT_EQ(m.choices_ended[static_cast<std::size_t>(FinishReason::kCancelled)], 1u);
  EXPECT_EQ(said(chat(server.port, body_of(picture(100, 60, 1), "x"))), said(chat(seeing().port, body_of(picture(100, 60, 1), "x"))));
}

TEST(PicturesInChats, AddressesAreFetchedWhereThatIsAllowed) {
  ServiceOptions options;
  options.fetch = [](const std::string& url) -> Result<std::vector<std::byte>> {
    if (url != "https://images.example/a.bmp") return fail(ErrorCode::kInvalidRequest, "nothing is fetched from there");
    const std::string file = test::striped_bmp(100, 60, 1);
    const auto bytes = std::as_bytes(std::span(file));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const Seeing server({}, options);
  EXPECT_EQ(said(chat(server.port, body_of("https://images.example/a.bmp", "x"))), said(chat(seeing().port, body_of(picture(100, 60, 1), "x"))));
  const Answer answer = chat(server.port, body_of("http://other.example/a", "x"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(reason_of(answer), "messages[0].content[0]: nothing is fetched from there");
}

/// Of http(s) addresses, since those can be kept waiting; pictures that are there are decoded, which may take a second each, on a thread of their own too.
TEST(PicturesInChats, KeepOnlyPicturesWaitingWhileTheyAreRead) {
  constexpr int kAsked = 9;
  std::promise<void> go;
  std::atomic<int> fetched = 0;
  ServiceOptions options;
  options.fetch = [&fetched, may = go.get_future().share()](const std::string&) -> Result<std::vector<std::byte>> {
    ++fetched;
    may.wait();
    return fail(ErrorCode::kInvalidRequest, "not there");
  };
  const Seeing server({}, options);
  std::vector<std::future<Answer>> remote;
  for (int i = 0; i < kAsked; ++i) remote.push_back(std::async(std::launch::async, [&] { return chat(server.port, body_of("https://images.example/a", "x")); }));
  Seeing::wait_for([&] { return fetched > 1; });
  const auto status = [&](const Json& body) { return std::async(std::launch::async, [&server, body] { return chat(server.port, body).status; }); };
  auto words = status(body_of(Json::array({user("Hello")}))), there = status(body_of(picture(28, 28, 1), "x"));
  EXPECT_EQ(words.wait_for(std::chrono::seconds(90)), std::future_status::ready);
  EXPECT_EQ(there.wait_for(std::chrono::seconds(90)), std::future_status::ready);
  go.set_value();
  EXPECT_EQ(words.get(), 200);
  EXPECT_EQ(there.get(), 200);
  for (auto& answer : remote) EXPECT_EQ(reason_of(answer.get()), "messages[0].content[0]: not there");
  EXPECT_EQ(fetched, kAsked);
}

}  // namespace
}  // namespace palimpsest::server
