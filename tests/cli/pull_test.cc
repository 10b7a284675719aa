// `palimpsest pull` and -m OWNER/NAME as a person meets them, against a hub on this machine.

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "hub/fake_hub.h"

namespace palimpsest::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kTiny = "tests/golden/kimi_k3_text";

/// The program's environment leads to a hub that has the model of the golden tests as owner/model.
class PullCommand : public testing::Test {
 protected:
  PullCommand() {
    for (const auto& entry : fs::directory_iterator(kTiny)) {
      const std::string name = entry.path().filename();
      if (name == "config.json" || name.starts_with("model")) {
        hub_.add(name, read_file(entry.path()), name.ends_with(".safetensors"));
      }
    }
    hub_.add("README.md", "not needed");
    unsetenv("HF_TOKEN");
    unsetenv("HF_HUB_OFFLINE");
    setenv("no_proxy", "127.0.0.1", 1);
    setenv("HF_HOME", hub_.settings().cache.parent_path().c_str(), 1);
    setenv("HF_HUB_CACHE", hub_.settings().cache.c_str(), 1);
    setenv("HF_ENDPOINT", hub_.server.url().c_str(), 1);
  }
  ~PullCommand() override {
    for (const char* name :
         {"HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "no_proxy"})
      unsetenv(name);
  }

  FakeHub hub_;
};

TEST_F(PullCommand, PrintsTheFolderAlone) {
  const ChildResult result = palimpsest({"pull", "owner/model"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, hub_.snapshot().string() + "\n");
  EXPECT_THAT(result.err, AllOf(HasSubstr("owner/model at 0123456789ab"), HasSubstr("fetched in")));
  EXPECT_TRUE(fs::exists(hub_.snapshot() / "config.json"));
  EXPECT_FALSE(fs::exists(hub_.snapshot() / "README.md"));
}

TEST_F(PullCommand, ListsAndWritesNothingWhenDry) {
  const ChildResult result =
      palimpsest({"pull", "owner/model", "--dry-run", "--include", "*.md", "--include", "config*"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("README.md"), HasSubstr("config.json"),
                                testing::Not(HasSubstr("safetensors"))));
  EXPECT_FALSE(fs::exists(hub_.settings().cache));
}

TEST_F(PullCommand, Json) {
  const ChildResult result = palimpsest({"pull", "owner/model@main", "--json", "-j", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["commit"], kCommit);
  EXPECT_EQ(json["folder"], hub_.snapshot().string());
  EXPECT_EQ(json["fetched"], json["bytes"]);
  for (const auto& file : json["files"]) EXPECT_EQ(file["checksum"], hub_.sum(file["name"]));
}

TEST_F(PullCommand, WrongUse) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"pull"},
                                                    {"pull", "model"},
                                                    {"pull", "a/b", "c/d"},
                                                    {"pull", "a/b", "-j", "0"},
                                                    {"pull", "a/b", "-m", "c"}}) {
    const ChildResult result = palimpsest(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("palimpsest: error: "));
  }
}

TEST_F(PullCommand, FailsWithOneLine) {
  const ChildResult result = palimpsest({"pull", "owner/other"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, AllOf(testing::StartsWith("palimpsest: error: owner/other: HTTP 404"),
                                testing::EndsWith("\n")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

TEST_F(PullCommand, ANameStandsForTheModelOnceAndForAll) {
  const std::vector<std::string> run = {"run",         "-m",     "owner/model", "--ids", "1,2,3",
                                        "--print-ids", "--temp", "0",           "-n",    "4"};
  const ChildResult first = palimpsest(run);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, AllOf(HasSubstr("owner/model is not in the cache"),
                               HasSubstr("fetching it from " + hub_.server.url())));
  const std::size_t calls = hub_.server.calls().size();

  setenv("HF_HUB_OFFLINE", "1", 1);
  const ChildResult second = palimpsest(run);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(palimpsest({"pull", "owner/model"}).out, hub_.snapshot().string() + "\n");
  EXPECT_EQ(hub_.server.calls().size(), calls);

  std::vector<std::string> local = run;
  local[2] = kTiny;
  EXPECT_EQ(palimpsest(local).out, first.out);
}

TEST_F(PullCommand, OfflineSaysWhatWouldFetchIt) {
  setenv("HF_HUB_OFFLINE", "1", 1);
  const ChildResult result = palimpsest({"inspect", "-m", "owner/model"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("owner/model: no such file or folder"),
                                HasSubstr("palimpsest pull owner/model")));
  EXPECT_EQ(palimpsest({"pull", "owner/model"}).exit_code, 1);
  EXPECT_THAT(hub_.server.calls(), IsEmpty());
}

TEST_F(PullCommand, OfflineTellsWhatTheCacheHolds) {
  EXPECT_EQ(palimpsest({"pull", "owner/model"}).exit_code, 0);
  const auto online = nlohmann::json::parse(palimpsest({"pull", "owner/model", "--json"}).out);
  const std::size_t calls = hub_.server.calls().size();
  setenv("HF_HUB_OFFLINE", "1", 1);

  EXPECT_EQ(nlohmann::json::parse(palimpsest({"pull", "owner/model", "--json"}).out), online);
  const ChildResult list = palimpsest({"pull", "owner/model", "--dry-run", "--include", "config*"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, AllOf(HasSubstr("config.json"), testing::Not(HasSubstr("safetensors"))));
  EXPECT_THAT(list.err, HasSubstr("1 files"));
  const ChildResult none = palimpsest({"pull", "owner/model", "--include", "*.md"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, AllOf(HasSubstr("owner/model: HF_HUB_OFFLINE is set, and in the cache"),
                              HasSubstr("--include '*.md' matches none of the ")));
  EXPECT_EQ(palimpsest({"pull", "owner/other", "--include", "*"}).exit_code, 1);

  // A blob that is gone: the model is not whole any more, what is there can still be asked for.
  fs::remove(hub_.settings().cache / "models--owner--model/blobs" /
             hub_.sum("model-2.safetensors"));
  const ChildResult cut = palimpsest({"pull", "owner/model", "--json"});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("model-2.safetensors is missing"));
  EXPECT_EQ(palimpsest({"pull", "owner/model", "--include", "*.json"}).exit_code, 0);
  EXPECT_EQ(hub_.server.calls().size(), calls);
}

TEST_F(PullCommand, AMistypedPathIsNoName) {
  const ChildResult result = palimpsest({"inspect", "-m", "models/no-such-model"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("models/no-such-model: no such file or folder"));
  EXPECT_THAT(hub_.server.calls(), IsEmpty());
}

TEST_F(PullCommand, CtrlCLeavesWhatCame) {
  static constexpr const char* kShard = "model-1.safetensors";
  std::atomic<bool> sent = false;
  hub_.set_storage_fault([&](const HttpCall&, HttpReply& reply) {
    const std::string& bytes = hub_.bytes(kShard);
    reply.answer(200, {{"Content-Length", std::to_string(bytes.size())}},
                 std::string_view(bytes).substr(0, 1000));
    sent = true;
    reply.stall();
    return true;
  });
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    execl(PALIMPSEST_BINARY, "palimpsest", "pull", "owner/model", "--include", kShard, nullptr);
    _exit(127);
  }
  const auto partial_size = [&] {
    std::error_code error;
    const auto size = fs::file_size(hub_.partial(kShard), error);
    return error ? 0 : size;
  };
  for (int i = 0; i < 500 && (!sent || partial_size() < 1000); ++i) usleep(20'000);
  kill(pid, SIGINT);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_EQ(partial_size(), 1000u);
  EXPECT_FALSE(fs::exists(hub_.blob(kShard)));
  EXPECT_FALSE(fs::exists(hub_.snapshot()));
}

}  // namespace
}  // namespace palimpsest::test
