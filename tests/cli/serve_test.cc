// What `palimpsest serve` refuses, and how it starts and ends; the interface itself is tested in
// tests/server.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "server/raw_client.h"
#include "support/child.h"
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
  EXPECT_EQ(refused({"--api-key", ""}).exit_code, 2);
  EXPECT_EQ(refused({"--port", "65536"}).exit_code, 2);
  test::TempFolder folder;
  folder.write("keys", "# none\n\n");
  const auto keys = refused({"--api-key-file", (folder.path() / "keys").string()});
  EXPECT_EQ(keys.exit_code, 1);
  EXPECT_THAT(keys.err, HasSubstr("holds no key"));
}

TEST(Serve, AnswersUntilItIsTold) {
  test::TempFolder folder;
  folder.write("keys", "# ours\nsecret\n");
  const std::string keys = (folder.path() / "keys").string(), model = demo();
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipes[1], STDERR_FILENO);
    execl(PALIMPSEST_BINARY, PALIMPSEST_BINARY, "serve", "-m", model.c_str(), "--port", "0", "-c", "256", "-t", "1",
          "--alias", "small", "--api-key-file", keys.c_str(), nullptr);
    _exit(99);
  }
  close(pipes[1]);
  std::string said;
  char letter = 0;
  const auto read_line = [&] {
    while (read(pipes[0], &letter, 1) == 1 && letter != '\n') said += letter;
  };
  while (said.find("serving small on http://127.0.0.1:") == said.npos && waitpid(child, nullptr, WNOHANG) == 0) read_line();
  const std::size_t at = said.find("http://127.0.0.1:");
  ASSERT_NE(at, said.npos) << said;
  const auto port = static_cast<std::uint16_t>(std::atoi(said.c_str() + at + 17));
  EXPECT_EQ(test::get(port, "/v1/models").status, 401);
  const auto answer = test::get(port, "/v1/models", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(answer.json()["data"][0]["id"], "small");
  EXPECT_EQ(answer.json()["data"][0]["context_length"], 256);
  EXPECT_EQ(test::get(port, "/health").status, 200);
  kill(child, SIGTERM);
  int status = 0;
  while (read(pipes[0], &letter, 1) == 1) said += letter;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << said;
  EXPECT_THAT(said, HasSubstr("GET /v1/models status=200"));
  EXPECT_THAT(said, HasSubstr("shutting down"));
  close(pipes[0]);
}

}  // namespace
}  // namespace palimpsest
