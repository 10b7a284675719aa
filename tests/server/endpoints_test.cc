// Models, embeddings, several prompts, progress, slots and sessions, through raw sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "running_server.h"
#include "runtime/sequence_cache.h"
#include "server/sessions.h"
#include "support/temp_folder.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::get;
using test::Json;
using test::post;
using test::Running;
using test::ServerSetup;
using test::shared;
using test::tokenizer;
using ::testing::HasSubstr;

Answer delete_path(std::uint16_t port, const std::string& path) {
  test::RawClient client(port);
  client.send("DELETE " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
  return client.read();
}

TEST(Routes, NamesAndMethods) {
  Routes routes;
  const auto nothing = [](const Request&, const std::shared_ptr<Reply>&) {};
  routes.add({{"GET", "/a", nothing}, {"DELETE", "/a/{name}", nothing}, {"POST", "/a/b", nothing}});
  EXPECT_EQ(routes.find("GET", "/a").route->path, "/a");
  EXPECT_EQ(routes.find("DELETE", "/a/x%2Fy%zz").name, "x/y%zz");
  EXPECT_EQ(routes.find("DELETE", "/a/b/c").name, "b/c");
  EXPECT_EQ(routes.find("POST", "/a/b").route->path, "/a/b");
  EXPECT_EQ(routes.find("GET", "/a/b").route, nullptr);
  EXPECT_EQ(routes.find("GET", "/a/b").allowed, "DELETE, POST");
  for (const char* path : {"/a/", "/", "", "/ab", "/A"}) EXPECT_EQ(routes.find("GET", path).allowed, "") << path;
}

TEST(Routes, AreThoseOfTheDescription) {
  // Paths stand two blanks from the left, their methods four.
  std::ifstream file(test::project_path("docs/openapi.yaml"));
  std::set<std::string> described, served;
  std::string path;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("  /")) path = line.substr(2, line.find(':') - 2);
    if (line == "components:") break;
    for (const char* method : {"get", "post", "delete", "put", "patch"}) {
      if (line == "    " + std::string(method) + ":") described.insert(method + (" " + path));
    }
  }
  test::TempFolder folder;
  ServerSetup setup;
  setup.service.sessions = folder.path();
  const Running running(setup);
  for (const Route& route : running.service.routes().all()) {
    std::string method(route.method);
    for (char& c : method) c = static_cast<char>(c + 32);
    served.insert(method + " " + std::string(route.path));
  }
  EXPECT_EQ(described, served);
}

TEST(Models, OneByName) {
  const Answer answer = get(shared().port, "/v1/models/demo");
  EXPECT_EQ(answer.json(), get(shared().port, "/v1/models").json()["data"][0]);
  EXPECT_EQ(get(shared().port, "/v1/models/de%6Do").status, 200);
  const Answer other = get(shared().port, "/v1/models/owner/other");
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.json()["error"]["message"].get<std::string>(), HasSubstr("\"owner/other\""));
}

std::vector<float> vector_of(const Json& entry) {
  return entry["embedding"].get<std::vector<float>>();
}

TEST(Embeddings, AreTheSameBesideOthersAndHaveLengthOne) {
  const std::vector<std::string> texts = {"The old man sat down.", "x", "It was a dark night, and the sea was loud.", "Who?", "The old man sat down."};
  const Answer together = post(shared().port, "/v1/embeddings", Json{{"input", texts}, {"model", "demo"}});
  ASSERT_EQ(together.status, 200) << together.body;
  const Json json = together.json();
  ASSERT_EQ(json["data"].size(), texts.size());
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(json["data"][i]["index"], i);
    const Json alone = post(shared().port, "/v1/embeddings", Json{{"input", texts[i]}}).json();
    EXPECT_EQ(alone["data"][0]["embedding"], json["data"][i]["embedding"]) << texts[i];
    double length = 0;
    for (const float x : vector_of(alone["data"][0])) length += static_cast<double>(x) * x;
    EXPECT_NEAR(length, 1, 1e-5);
    tokens += prompt_ids(tokenizer(), texts[i]).size();
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], tokens);
  EXPECT_EQ(json["usage"]["total_tokens"], tokens);
  EXPECT_NE(json["data"][0]["embedding"], json["data"][1]["embedding"]);
  const Json last = post(shared().port, "/v1/embeddings", Json{{"input", texts[0]}, {"pooling", "last"}}).json();
  EXPECT_NE(last["data"][0]["embedding"], json["data"][0]["embedding"]);
  const Json ids = post(shared().port, "/v1/embeddings", Json{{"input", prompt_ids(tokenizer(), texts[0])}}).json();
  EXPECT_EQ(ids["data"][0]["embedding"], json["data"][0]["embedding"]);
}

TEST(Embeddings, Base64HoldsTheSameNumbers) {
  const Json plain = post(shared().port, "/v1/embeddings", Json{{"input", "Hello"}}).json();
  const Json coded = post(shared().port, "/v1/embeddings", Json{{"input", "Hello"}, {"encoding_format", "base64"}}).json();
  const std::string text = coded["data"][0]["embedding"];
  std::string bytes;
  std::uint32_t word = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    word = word << 6 | static_cast<std::uint32_t>(std::strchr(digits, c) - digits);
    if ((bits += 6) >= 8) bytes += static_cast<char>(word >> (bits -= 8) & 255);
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  EXPECT_EQ(text.size() % 4, 0u);
  EXPECT_EQ(values, vector_of(plain["data"][0]));
}

TEST(Embeddings, RefuseWhatCannotBe) {
  for (const auto& [field, body] :
       {std::pair{"input", R"({})"}, {"input", R"({"input": ""})"}, {"input", R"({"input": []})"}, {"input", R"({"input": ["a", ""]})"},
        {"input", R"({"input": [[1], [99999999]]})"}, {"input", R"({"input": {"a": 1}})"}, {"dimensions", R"({"input": "a", "dimensions": 8})"},
        {"encoding_format", R"({"input": "a", "encoding_format": "hex"})"}, {"pooling", R"({"input": "a", "pooling": "max"})"}}) {
    const Answer answer = post(shared().port, "/v1/embeddings", std::string(body));
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(answer.json()["error"]["param"], field) << answer.body;
  }
  const Json many = {{"input", std::vector<std::string>(2049, "a")}};
  EXPECT_EQ(post(shared().port, "/v1/embeddings", many).status, 400);
  const std::int64_t width = shared().engine.model().config().hidden_size;
  EXPECT_EQ(post(shared().port, "/v1/embeddings", Json{{"input", "a"}, {"dimensions", width}}).status, 200);
}

TEST(Embeddings, ManyInputsDoNotFillTheQueue) {
  ServerSetup setup;
  setup.engine.queue_requests = 20;
  Running running(setup);
  std::vector<std::string> texts;
  for (int i = 0; i < 100; ++i) texts.push_back("number " + std::to_string(i));
  const Answer answer = post(running.port, "/v1/embeddings", Json{{"input", texts}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["data"].size(), 100u);
}

TEST(Completions, SeveralPromptsAreTheChoicesOfEachInTurn) {
  const Json common = {{"max_tokens", 8}, {"seed", 5}, {"n", 2}, {"echo", true}, {"logprobs", 1}};
  const std::vector<std::string> prompts = {"It was a dark night", "The old man", "Hello"};
  Json body = common;
  body["prompt"] = prompts;
  const Answer together = post(shared().port, "/v1/completions", body);
  ASSERT_EQ(together.status, 200) << together.body;
  const Json choices = together.json()["choices"];
  ASSERT_EQ(choices.size(), 6u);
  std::int64_t tokens = 0;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    body["prompt"] = prompts[p];
    const Json alone = post(shared().port, "/v1/completions", body).json();
    tokens += alone["usage"]["prompt_tokens"].get<std::int64_t>();
    for (std::size_t c = 0; c < 2; ++c) {
      Json expected = alone["choices"][c];
      expected["index"] = 2 * p + c;
      EXPECT_EQ(choices[2 * p + c], expected);
    }
  }
  EXPECT_EQ(together.json()["usage"]["prompt_tokens"], tokens);
  EXPECT_EQ(together.json()["usage"]["completion_tokens"], 48);
  body["prompt"] = prompts;
  body["stream"] = true;
  std::vector<std::string> texts(6);
  for (const std::string& event : post(shared().port, "/v1/completions", body).events()) {
    if (event == "[DONE]") break;
    const Json chunk = Json::parse(event);
    for (const Json& piece : chunk["choices"])
      texts[piece["index"].get<std::size_t>()] += piece["text"].get<std::string>();
  }
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(texts[i], choices[i]["text"]);
  body["prompt"] = std::vector<std::string>(65, "a");  // two answers each
  EXPECT_EQ(post(shared().port, "/v1/completions", body).json()["error"]["param"], "prompt");
}

TEST(Completions, ProgressOfThePromptIsToldWhereAskedFor) {
  ServerSetup setup;
  setup.engine.ubatch = 80;
  Running running(setup);
  std::string words = "It was";
  for (int i = 0; i < 150; ++i) words += " a dark night and";
  Json body = {{"prompt", words}, {"max_tokens", 1}, {"stream", true}};
  const auto progress = [&] {
    std::vector<Json> told;
    for (const std::string& event : post(running.port, "/v1/completions", body).events()) {
      const Json chunk = Json::parse(event, nullptr, false);
      if (chunk.contains("prompt_progress")) told.push_back(chunk["prompt_progress"]);
    }
    return told;
  };
  EXPECT_TRUE(progress().empty());
  body["prompt"] = "Once " + words;
  body["return_progress"] = true;
  const auto told = progress();
  ASSERT_GE(told.size(), 3u);
  for (std::size_t i = 1; i < told.size(); ++i) EXPECT_GT(told[i]["processed"], told[i - 1]["processed"]);
  EXPECT_EQ(told.back()["processed"], told.back()["total"]);
  EXPECT_EQ(told.back()["cache"], 0);
  EXPECT_GE(told.back()["time_ms"], 0);
}

TEST(Slots, ShowNobodysText) {
  Running running;
  test::RawClient client(running.port);
  client.send(test::post_text("/v1/chat/completions", test::endless().dump()));
  EXPECT_TRUE(client.read_until("\"content\":\""));
  Json slots;
  running.wait_for([&] {
    slots = get(running.port, "/slots").json();
    return std::count_if(slots.begin(), slots.end(), [](const Json& slot) {
             return slot["is_processing"] == true && slot["prompt_tokens"] > 0;
           }) == 1;
  });
  EXPECT_EQ(slots.size(), 3u);
  EXPECT_THAT(slots.dump(), ::testing::Not(HasSubstr("story")));
}

struct SessionServer {
  explicit SessionServer(const std::filesystem::path& folder) {
    ServerSetup setup;
    setup.service.sessions = folder;
    running = std::make_unique<Running>(setup);
  }
  Answer say(const std::string& path, const Json& body) const { return post(running->port, path, body); }
  std::unique_ptr<Running> running;
};

Json long_chat() {
  std::string words;
  for (int i = 0; i < 60; ++i) words += "The old man sat down. ";
  return test::chat_body(words, 8);
}

TEST(Sessions, GoOnAfterARestartWithTheSameText) {
  test::TempFolder folder;
  Json named = long_chat();
  named["name"] = "mine-1.a_b";
  std::string text;
  std::int64_t tokens = 0;
  {
    const SessionServer server(folder.path());
    const Answer saved = server.say("/sessions/save", named);
    ASSERT_EQ(saved.status, 200) << saved.body;
    tokens = saved.json()["tokens"];
    EXPECT_GT(tokens, 200);
    EXPECT_GT(saved.json()["bytes"], 0);
    const Json list = get(server.running->port, "/sessions").json()["data"];
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0]["name"], "mine-1.a_b");
    text = server.say("/v1/chat/completions", long_chat()).json()["choices"].dump();
  }
  const SessionServer server(folder.path());
  const Answer restored = server.say("/sessions/restore", {{"name", "mine-1.a_b"}});
  ASSERT_EQ(restored.status, 200) << restored.body;
  EXPECT_EQ(restored.json()["tokens"], tokens);
  const Json answer = server.say("/v1/chat/completions", long_chat()).json();
  // Exact results go on from the last snapshot on the grid.
  EXPECT_GT(answer["usage"]["prompt_tokens_details"]["cached_tokens"], tokens - kSnapshotGrid - kFewestRows);
  EXPECT_EQ(answer["choices"].dump(), text);
  EXPECT_EQ(delete_path(server.running->port, "/sessions/mine-1.a_b").status, 200);
  EXPECT_EQ(delete_path(server.running->port, "/sessions/mine-1.a_b").status, 404);
  EXPECT_EQ(server.say("/sessions/restore", {{"name", "mine-1.a_b"}}).status, 404);
  EXPECT_TRUE(get(server.running->port, "/sessions").json()["data"].empty());
}

/// Files are written and read beside an answer, which stays what it is; a save that fails leaves
/// what was saved before.
TEST(Sessions, AreSavedAndRestoredBesideAnswersAndLoseNothing) {
  test::TempFolder folder;
  const SessionServer server(folder.path());
  Json beside = test::chat_body("Tell me of the sea.", 300), named = long_chat();
  named["name"] = "kept";
  const std::string alone = server.say("/v1/chat/completions", beside).json()["choices"].dump();
  std::string together;
  std::thread asker([&] { together = server.say("/v1/chat/completions", beside).json()["choices"].dump(); });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(server.say("/sessions/save", named).status, 200);
    EXPECT_EQ(server.say("/sessions/restore", {{"name", "kept"}}).status, 200);
  }
  asker.join();
  EXPECT_EQ(together, alone);

  const std::filesystem::path file = folder.path() / "kept.session";
  const std::string bytes = test::read_file(file);
  std::int64_t free = 0;
  const auto units = [&] {
    server.running->engine.between_steps([&](SequenceCache& cache) {
      cache.clear();
      free = cache.pool().free_units();
    });
    return free;
  };
  const std::int64_t before = units();
  // The disk is full in the middle of the file.
  rlimit limit{}, small{};
  getrlimit(RLIMIT_FSIZE, &limit);
  small = limit;
  small.rlim_cur = bytes.size() / 2;
  const auto old = signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const Answer failed = server.say("/sessions/save", named);
  setrlimit(RLIMIT_FSIZE, &limit);
  signal(SIGXFSZ, old);
  EXPECT_EQ(failed.status, 500) << failed.body;
  EXPECT_THAT(failed.body, ::testing::Not(HasSubstr(folder.path().string())));
  EXPECT_EQ(test::read_file(file), bytes);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "no half file";
  EXPECT_EQ(units(), before) << "what was held is free again";
  EXPECT_EQ(server.say("/sessions/restore", {{"name", "kept"}}).status, 200);
}

TEST(Sessions, RefuseNamesLinksAndDamagedFiles) {
  test::TempFolder folder;
  folder.write("secret", "not yours");
  std::filesystem::create_directory(folder.path() / "s");
  std::filesystem::create_symlink(folder.path() / "secret", folder.path() / "s" / "link.session");
  std::ofstream(folder.path() / "s" / "broken.session") << "no session";
  const SessionServer server(folder.path() / "s");
  for (const std::string name : {"", ".", "..", "../secret", "a/b", ".hidden", "a b", "ü", "a\nb"}) {
    for (const char* path : {"/sessions/restore", "/sessions/save"}) {
      const Answer answer = server.say(path, {{"name", name}, {"prompt", "x"}});
      EXPECT_EQ(answer.status, 400) << name;
      EXPECT_EQ(answer.json()["error"]["param"], "name");
    }
  }
  EXPECT_EQ(server.say("/sessions/restore", {{"name", std::string(101, 'a')}}).status, 400);
  EXPECT_EQ(delete_path(server.running->port, "/sessions/..%2Fsecret").status, 400);
  EXPECT_EQ(server.say("/sessions/restore", {{"name", "link"}}).status, 404);
  EXPECT_EQ(delete_path(server.running->port, "/sessions/link").status, 404);
  const Answer broken = server.say("/sessions/restore", {{"name", "broken"}});
  EXPECT_EQ(broken.status, 400);
  EXPECT_THAT(broken.body, ::testing::Not(HasSubstr(folder.path().string())));
  const Json list = get(server.running->port, "/sessions").json()["data"];
  ASSERT_EQ(list.size(), 1u) << list;  // the broken one, which can be deleted
  EXPECT_EQ(server.say("/sessions/save", {{"name", "x"}}).json()["error"]["param"], "prompt");
  EXPECT_EQ(server.say("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
}

TEST(Sessions, WhatAKilledServerHadBegunToWriteGoes) {
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  const test::TempFolder folder;
  const std::string killed = ".session.tmp-" + std::to_string(dead);
  const std::vector<std::string> kept = {"a.session", "a.session.tmp-1", "a.session.tmp-x", "a" + killed + "0000000000", "a b" + killed, "a.tmp-" + std::to_string(dead)};
  for (const std::string& name : kept) folder.write(name, "x");
  folder.write("a" + killed, "x");
  folder.write("b.session.tmp-" + std::to_string(getpid()), "x");  // of another container
  const SessionServer server(folder.path());
  std::vector<std::string> left;
  for (const auto& item : std::filesystem::directory_iterator(folder.path())) left.push_back(item.path().filename().string());
  EXPECT_THAT(left, ::testing::UnorderedElementsAreArray(kept));
}

TEST(Sessions, AreNotThereWithoutTheirFolder) {
  EXPECT_EQ(get(shared().port, "/sessions").status, 404);
  EXPECT_EQ(post(shared().port, "/sessions/save", Json{{"name", "x"}, {"prompt", "x"}}).status, 404);
  ServerSetup setup;
  setup.service.sessions = "/no/such/folder";
  EXPECT_THROW(Running running(setup), Error);
}

}  // namespace
}  // namespace palimpsest::server
