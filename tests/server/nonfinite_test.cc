// A model that computes no numbers for one token, over HTTP: the demo model with a row of its embedding made NaN.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "running_server.h"
#include "support/temp_folder.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::chat_body;
using test::demo;
using test::Json;
using test::post;
using test::Running;
using test::tokenizer;
using ::testing::HasSubstr;

/// A byte that no text holds, so that nothing but its id leads there.
TokenId poison() {
  for (TokenId id = 0; id < tokenizer().vocab_size(); ++id)
    if (tokenizer().is_valid(id) && !tokenizer().is_control(id) && tokenizer().bytes(id) == "\xff") return id;
  throw std::runtime_error("no token for the byte");
}

std::shared_ptr<const Model> poisoned_model() {
  const test::TempFolder folder;
  for (const char* name : {"config.json", "generation_config.json", "tiktoken.model", "tokenizer_config.json"}) folder.copy(demo() / name);
  std::string bytes = test::read_file(demo() / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const Json tensor = Json::parse(bytes.substr(8, header))["language_model.model.embed_tokens.weight"];
  EXPECT_EQ(tensor["dtype"], "BF16");
  const std::size_t row = tensor["shape"][1].get<std::size_t>() * 2, at = 8 + header + tensor["data_offsets"][0].get<std::size_t>() + static_cast<std::size_t>(poison()) * row;
  for (std::size_t i = 0; i < row; i += 2) std::memcpy(&bytes[at + i], "\xc0\x7f", 2);
  folder.write("model.safetensors", bytes);
  return test::load_model(folder.path());
}

struct Poisoned {
  Poisoned() : engine(poisoned_model(), {.threads = 1, .sequences = 2, .context = 1024}), service(engine, tokenizer(), Running::with_format({})), http(Running::with_port({}), service), port(http.port()) {}
  ~Poisoned() { engine.stop(std::chrono::milliseconds(0)); }
  Engine engine;
  Service service;
  HttpServer http;
  std::uint16_t port;
};

TEST(NonFinite, FailsItsRequestFreesItsSlotAndIsNeverReused) {
  Poisoned running;
  const auto text_of = [](const Answer& answer) { return answer.status == 200 ? answer.json()["choices"][0].dump() : answer.body; };
  const std::vector<std::int32_t> front = prompt_ids(tokenizer(), "It was a dark night, and the old man went down to the sea.");
  const auto completion = [&](std::vector<std::int32_t> ids) { return Json{{"prompt", ids}, {"temperature", 0}, {"max_tokens", 8}}; };
  auto with_poison = front, longer = front;
  with_poison.push_back(poison());
  longer.insert(longer.end(), front.begin(), front.end());
  with_poison.insert(with_poison.end(), front.begin(), front.end());
  const std::string good = text_of(post(test::shared().port, "/v1/completions", completion(longer)));
  const std::string chat = text_of(post(test::shared().port, "/v1/chat/completions", chat_body("Tell me of the sea.")));
  ASSERT_EQ(text_of(post(running.port, "/v1/completions", completion(longer))), good);

  Json late = chat_body("Hello", 8);  // its first token is the one without numbers, and may be sent before it is read
  late["logit_bias"] = {{std::to_string(poison()), 100}};
  Json streamed = late, many = completion(with_poison), scored = completion(with_poison);
  streamed["stream"] = true, many["n"] = 2;
  scored["echo"] = true, scored["logprobs"] = 3;
  const Json vectors = {{"input", with_poison}};
  for (int round = 0; round < 3; ++round) {  // more often than there are slots
    auto beside = std::async(std::launch::async, [&] { return post(running.port, "/v1/chat/completions", chat_body("Tell me of the sea.")); });
    for (const auto& [path, body] : {std::pair{"/v1/completions", completion(with_poison)}, {"/v1/completions", many}, {"/v1/completions", scored}, {"/v1/chat/completions", late}, {"/v1/embeddings", vectors}}) {
      const Answer answer = post(running.port, path, body);
      EXPECT_EQ(answer.status, 500) << path << answer.body;
      EXPECT_EQ(answer.json()["error"]["type"], "server_error") << answer.body;
      EXPECT_THAT(answer.json()["error"]["message"].get<std::string>(), HasSubstr("non-finite logits within the first"));
    }
    const Answer stream = post(running.port, "/v1/chat/completions", streamed);
    EXPECT_EQ(stream.status, 200);
    ASSERT_FALSE(stream.events().empty());
    const Json last = Json::parse(stream.events().back(), nullptr, false);
    ASSERT_TRUE(last.contains("error")) << stream.body;
    EXPECT_THAT(last["error"]["message"].get<std::string>(), HasSubstr("non-finite"));
    EXPECT_EQ(text_of(beside.get()), chat) << "beside them";
    EXPECT_EQ(text_of(post(running.port, "/v1/completions", completion(longer))), good) << "the same beginning";
    EXPECT_EQ(text_of(post(running.port, "/v1/chat/completions", chat_body("Tell me of the sea."))), chat);
  }
  // An answer is there before the pass that ended it is over and counted.
  for (int i = 0; i < 3000 && running.engine.metrics().running + running.engine.metrics().waiting > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const EngineMetrics metrics = running.engine.metrics();
  EXPECT_EQ(metrics.running + metrics.waiting, 0);
  EXPECT_GE(metrics.nonfinite, 18u) << "each of them was computed again and found so again";
}

}  // namespace
}  // namespace palimpsest::server
