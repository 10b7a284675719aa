// What `palimpsest serve` refuses, and how it starts and ends; the interface itself is tested in
// tests/server.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/base64.h"
#include "server/raw_client.h"
#include "support/child.h"
#include "support/seeing_model.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using ::testing::HasSubstr;

std::string demo() {
  return test::project_path("models/demo").string();
}

test::ChildResult refused(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"serve", "-m", demo()});
  return test::run_child(PALIMPSEST_BINARY, arguments);
}

TEST(Serve, RefusesOtherMachinesWithoutAKey) {
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) {
    const auto result = refused({"--host", host});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("--allow-remote-without-key"));
  }
}

TEST(Serve, RefusesWhatIsNoAddressAndNoKey) {
  const auto host = refused({"--host", "nowhere"});
  EXPECT_EQ(host.exit_code, 2);
  EXPECT_THAT(host.err, HasSubstr("'nowhere'"));
  const auto allowed = refused({"--allowed-host", "a.example,http://b.example"});
  EXPECT_EQ(allowed.exit_code, 2);
  EXPECT_THAT(allowed.err, HasSubstr("--allowed-host: 'http://b.example' is neither"));
  EXPECT_EQ(refused({"--api-key", ""}).exit_code, 2);
  const auto alias = refused({"--alias", "", "--host", "0.0.0.0"});
  EXPECT_EQ(alias.exit_code, 2);
  EXPECT_THAT(alias.err, HasSubstr("--alias: the name is empty"));
  EXPECT_EQ(refused({"--port", "65536"}).exit_code, 2);
  test::TempFolder folder;
  folder.write("keys", "# none\n\n");
  const auto keys = refused({"--api-key-file", (folder.path() / "keys").string()});
  EXPECT_EQ(keys.exit_code, 1);
  EXPECT_THAT(keys.err, HasSubstr("holds no key"));
}

/// The server as a process of its own, once it listens.
class ServeProcess {
 public:
  explicit ServeProcess(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {PALIMPSEST_BINARY, "serve", "--port", "0", "-t", "1"});
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    int ends[2];
    if (pipe(ends) != 0) return;
    child_ = fork();
    if (child_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]);
      close(ends[1]);
      execv(PALIMPSEST_BINARY, pointers.data());
      _exit(99);
    }
    close(ends[1]);
    err_ = ends[0];
    constexpr std::string_view kAddress = " on http://127.0.0.1:";
    std::size_t at;
    while ((at = said_.find(kAddress)) == said_.npos || said_.find('\n', at) == said_.npos) {
      if (!read_more()) return;
    }
    port_ = static_cast<std::uint16_t>(std::atoi(said_.c_str() + at + kAddress.size()));
  }
  ~ServeProcess() {
    if (child_ > 0) kill(child_, SIGKILL);
    end();
  }
  std::uint16_t port() const { return port_; }  ///< 0: it did not start
  const std::string& said() const { return said_; }
  /// Tells it to end, and waits: its exit code, or 128 + signal.
  int stop() {
    kill(child_, SIGTERM);
    return end();
  }

 private:
  bool read_more() {
    char letters[4096];
    const ssize_t n = read(err_, letters, sizeof letters);
    if (n > 0) said_.append(letters, static_cast<std::size_t>(n));
    return n > 0;
  }
  int end() {
    if (child_ <= 0) return -1;
    while (read_more()) {
    }
    close(err_);
    int status = 0;
    waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  pid_t child_ = -1;
  int err_ = -1;
  std::uint16_t port_ = 0;
  std::string said_;
};

TEST(Serve, AnswersUntilItIsTold) {
  test::TempFolder folder;
  folder.write("keys", "\xEF\xBB\xBFsecret\n# ours\n");
  ServeProcess server({"-m", demo(), "-c", "256", "--alias", "small", "--api-key-file", (folder.path() / "keys").string()});
  ASSERT_NE(server.port(), 0) << server.said();
  EXPECT_THAT(server.said(), HasSubstr("serving small on http://127.0.0.1:"));
  EXPECT_EQ(test::get(server.port(), "/v1/models").status, 401);
  const auto answer = test::get(server.port(), "/v1/models", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(answer.json()["data"][0]["id"], "small");
  EXPECT_EQ(answer.json()["data"][0]["context_length"], 256);
  EXPECT_EQ(test::get(server.port(), "/health").status, 200);
  EXPECT_EQ(server.stop(), 0) << server.said();
  EXPECT_THAT(server.said(), HasSubstr("GET /v1/models status=200"));
  EXPECT_THAT(server.said(), HasSubstr("shutting down"));
}

/// What is written and thought about a picture that comes as a data: URL is what `run --image` writes about the file.
TEST(Serve, SeesWhatRunSees) {
  const test::TempFolder folder;
  test::write_seeing_model(folder.path());
  const std::string model = folder.path().string();
  ServeProcess server({"-m", model, "-c", "512", "--image-tokens", "64"});
  ASSERT_NE(server.port(), 0) << server.said();
  EXPECT_EQ(test::get(server.port(), "/props").json()["modalities"]["vision"], true);
  std::string all;
  for (const char* name : {"photo_shrunk.jpg", "rgba.png"}) {
    const std::string path = test::project_path("tests/data/images/" + std::string(name)).string();
    const auto run = test::run_child(PALIMPSEST_BINARY, {"run", "-m", model, "-t", "1", "-c", "512", "--image-tokens", "64", "--image", path, "-p", "What is this?",
                                                         "-n", "24", "--temp", "0", "--show-thinking"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::string file = test::read_file(path);
    std::string url = "data:image/" + path.substr(path.size() - 3) + ";base64,";
    base::append_base64(std::as_bytes(std::span(file)), url);
    const test::Json parts = test::Json::array({{{"type", "image_url"}, {"image_url", {{"url", url}}}}, {{"type", "text"}, {"text", "What is this?"}}});
    const test::Json body = {{"messages", test::Json::array({{{"role", "user"}, {"content", parts}}})}, {"temperature", 0}, {"max_tokens", 24}};
    const auto answer = test::post(server.port(), "/v1/chat/completions", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const auto message = answer.json()["choices"][0]["message"];
    EXPECT_EQ(message["content"].is_string() ? message["content"].get<std::string>() : "", run.out) << name;
    const std::string thought = message.value("reasoning_content", "");
    EXPECT_EQ(run.err.substr(0, thought.size()), thought) << name;
    EXPECT_THAT(run.err, HasSubstr("prompt " + answer.json()["usage"]["prompt_tokens"].dump() + " tokens"));
    all += run.out + thought;
  }
  EXPECT_FALSE(all.empty());
  EXPECT_EQ(server.stop(), 0) << server.said();
  EXPECT_EQ(server.said().find("base64"), std::string::npos) << "the log holds nobody's pictures";
}

}  // namespace
}  // namespace palimpsest
