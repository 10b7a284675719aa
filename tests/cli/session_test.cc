// --session through the program: what one process saved the next one goes on from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/child.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using test::ChildResult;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Arguments = std::vector<std::string>;

Arguments run_demo(Arguments more) {
  Arguments all = {"run", "-m", test::project_path("models/demo").string(), "-t", "1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

ChildResult run(Arguments more, const std::string& input = "") {
  return test::run_child(PALIMPSEST_BINARY, run_demo(std::move(more)), input);
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string filler() {
  return test::project_path("models/demo/filler.txt").string();
}

class SessionFlag : public ::testing::Test {
 protected:
  test::TempFolder folder_;
  std::string file_ = (folder_ / "s.session").string();
};

TEST_F(SessionFlag, ATextGoesOnAsIfItHadNeverStopped) {
  const Arguments text = {"--raw", "-p", "It was a dark night, and", "--ignore-eos", "--print-ids"};
  const auto with = [&](Arguments more) {
    Arguments all = text;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  const std::string whole = with({"-n", "60", "--seed", "7"}).out;
  const ChildResult first = with({"-n", "20", "--seed", "7", "--session", file_});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  const ChildResult second = run({"--raw", "--ignore-eos", "--print-ids", "-n", "40", "--session", file_});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, ContainsRegex("restored [0-9]+ tokens from .*, nothing recomputed"));
  EXPECT_THAT(second.err, ContainsRegex("cached, 0 replayed, 1 computed"));
  EXPECT_THAT(second.err, HasSubstr("seed 7")) << "the random numbers go on too";
  // The first 20 ids, then the other 40.
  std::string joined = first.out.substr(0, first.out.find_last_not_of(" \n") + 1);
  std::string expected = whole.substr(0, whole.find_last_not_of(" \n") + 1);
  EXPECT_TRUE(expected.starts_with(joined)) << joined << " / " << expected;
  const std::string rest = second.out.substr(0, second.out.find_last_not_of(" \n") + 1);
  EXPECT_TRUE(expected.ends_with(rest)) << rest << " / " << expected;
  EXPECT_LE(joined.size() + rest.size(), expected.size());
}

TEST_F(SessionFlag, AChatGoesOnAcrossProcesses) {
  const Arguments chat = {"--temp", "0.7", "--seed", "3", "--reasoning-effort", "off"};
  const std::string one = "The password of Pine Tower is 90417. What is the password of Pine Tower?\n";
  const std::string two = "And what is the password of Pine Tower now?\n";
  const ChildResult together = run(chat, one + two);
  ASSERT_EQ(together.exit_code, 0) << together.err;

  Arguments kept = chat;
  kept.insert(kept.end(), {"--session", file_});
  const ChildResult first = run(kept, one);
  EXPECT_EQ(first.exit_code, 0) << first.err;
  // Neither seed nor effort is said again: the file knows them.
  const ChildResult second = run({"--temp", "0.7", "--session", file_}, two);
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(first.out + second.out, together.out);
  EXPECT_THAT(second.err, ContainsRegex(": [1-9][0-9]* cached, 0 replayed, [0-9]+ computed"));
}

TEST_F(SessionFlag, AnEditedTextGoesBackToASnapshot) {
  std::string text = bytes_of(filler()).substr(0, 8000);
  const Arguments greedy = {"-n", "8", "--temp", "0", "--raw", "--session", file_};
  const auto with = [&](const std::string& prompt) {
    Arguments all = greedy;
    all.insert(all.end(), {"-p", prompt});
    return run(all);
  };
  ASSERT_EQ(with(text).exit_code, 0);
  text.replace(7000, 8, "absurdly");
  const ChildResult warm = with(text);
  EXPECT_THAT(warm.err, ContainsRegex(": [1-9][0-9,]* cached, [0-9]+ replayed, [1-9][0-9]* computed"));
  const ChildResult cold = run({"-n", "8", "--temp", "0", "--raw", "-p", text});
  EXPECT_EQ(warm.out, cold.out);
  EXPECT_THAT(cold.err, HasSubstr(": 0 cached, 0 replayed, "));
}

TEST_F(SessionFlag, WhatDoesNotBelongIsRefusedAndStaysAsItWas) {
  ASSERT_EQ(run({"--ids", "1,2,3,4,5,6", "-n", "4", "--print-ids", "--session", file_}).exit_code, 0);
  const std::string before = bytes_of(file_);
  const auto refused = [&](const Arguments& arguments, const std::string& file,
                           const std::string& reason) {
    const std::string held = bytes_of(file);
    const ChildResult result = test::run_child(PALIMPSEST_BINARY, arguments);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, HasSubstr(reason));
    EXPECT_EQ(bytes_of(file), held);
  };
  const Arguments more = {"--ids", "1,2,3", "-n", "1", "--print-ids", "--session"};
  const auto on = [&](const std::string& model, const std::string& file) {
    Arguments all = {"run", "-m", model};
    all.insert(all.end(), more.begin(), more.end());
    all.push_back(file);
    return all;
  };
  const std::string demo = test::project_path("models/demo").string();
  refused(on(test::project_path("tests/golden/kimi_k3_text").string(), file_), file_, "another model");
  Arguments other_type = on(demo, file_);
  other_type.insert(other_type.end(), {"--cache-type", "f32"});
  refused(other_type, file_, "--cache-type");

  const auto changed = [&](const std::string& name, std::size_t at) {
    std::string bytes = before;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  };
  for (const auto& [at, reason] : std::vector<std::pair<std::size_t, std::string>>{
           {0, "not a session file"}, {8, "version"}, {130, "checksum"}, {before.size() / 2, "checksum"}}) {
    const std::string path = changed("changed", at);
    refused(on(demo, path), path, reason);
  }
  const std::string link = (folder_ / "link").string();
  std::filesystem::create_symlink(file_, link);
  refused(on(demo, link), file_, "it is a link");
  refused(on(demo, (folder_ / "no/such/folder").string()), file_, "there is no folder");
}

TEST_F(SessionFlag, RawWithoutATextNeedsAFile) {
  const ChildResult result = run({"--raw", "--session", file_});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--session with a FILE"));
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(SessionFlag, AKilledRunGoesOnFromItsLastSave) {
  const Arguments reading = {"--raw", "-f", filler(), "-n", "4",          "--temp", "0",
                             "-ub",   "128", "--session", file_, "--save-every", "0"};
  const Arguments arguments = run_demo(reading);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::vector<char*> argv = {const_cast<char*>("palimpsest")};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const int null = open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) dup2(null, fd);
    execv(PALIMPSEST_BINARY, argv.data());
    _exit(127);
  }
  for (int i = 0; i < 30000 && !std::filesystem::exists(file_); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << "it came to its end before it could be killed";

  const ChildResult again = run(reading);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, ContainsRegex(": [1-9][0-9,]* cached, 0 replayed, [1-9][0-9,]* computed"));
  EXPECT_EQ(again.out, run({"--raw", "-f", filler(), "-n", "4", "--temp", "0", "-ub", "128"}).out);
}

TEST_F(SessionFlag, SizesOfTheCache) {
  const Arguments base = {"--ids", "1,2,3", "-n", "1", "--print-ids"};
  for (const auto& [flags, code] : std::vector<std::pair<Arguments, int>>{
           {{"--cache-ram", "0"}, 0},
           {{"--cache-ram", "8"}, 0},
           {{"--cache-ram", "2MiB", "--cache-disk", (folder_ / "d").string(), "--cache-disk-size", "8MiB"}, 0},
           {{"--cache-ram", "much"}, 2},
           {{"--cache-ram", "900TiB"}, 1},
           {{"--cache-disk", "d", "--cache-disk-size", "-1"}, 2}}) {
    Arguments all = base;
    all.insert(all.end(), flags.begin(), flags.end());
    const ChildResult result = run(all);
    EXPECT_EQ(result.exit_code, code) << flags[1] << ": " << result.err;
  }
}

}  // namespace
}  // namespace palimpsest
