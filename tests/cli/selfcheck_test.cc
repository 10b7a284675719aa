// `palimpsest selfcheck` as users run it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "support/child.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using test::ChildResult;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// A model without a tokenizer.
ChildResult check(std::vector<std::string> more) {
  std::vector<std::string> arguments = {
      "selfcheck", "-m", test::project_path("tests/golden/kimi_k3_text").string(), "-t", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return test::run_child(PALIMPSEST_BINARY, arguments);
}

TEST(SelfcheckCommand, PrintsARowForEachWayAndAVerdict) {
  const ChildResult result = check({"--quick", "--prompt-tokens", "140"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("prompts of up to 140 tokens, 2 threads"), HasSubstr("session file"),
                    HasSubstr("same bits"), HasSubstr(", bound "), HasSubstr("all 18 rows hold")));
  EXPECT_THAT(result.out, Not(HasSubstr("FAILED")));
  EXPECT_THAT(result.err, IsEmpty());
}

/// A pipe with a name that is nearly full: who writes into it comes to a stop until it is read.
class FullPipe {
 public:
  FullPipe(const std::filesystem::path& path, int room) {
    if (::mkfifo(path.c_str(), 0600) == 0)
      fd_ = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    const int size = ::fcntl(fd_, F_SETPIPE_SZ, 4096);  // a page, the least there is
    const std::string filling(static_cast<std::size_t>(std::max(0, size - room)), '.');
    filled_ = static_cast<int>(::write(fd_, filling.data(), filling.size()));
  }
  ~FullPipe() { ::close(fd_); }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;

  bool ready() const { return filled_ > 0; }
  bool was_written_to() const {
    int bytes = 0;
    return ::ioctl(fd_, FIONREAD, &bytes) == 0 && bytes > filled_;
  }
  std::string read() const {
    char buffer[4096];
    const ssize_t n = ::read(fd_, buffer, sizeof(buffer));
    return std::string(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
  }

 private:
  int fd_ = -1, filled_ = 0;
};

/// Turns the sign of every number of a BF16 tensor, in the file itself.
void negate(const std::filesystem::path& shard, const std::string& name) {
  const std::string bytes = test::read_file(shard);
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  const auto header = nlohmann::json::parse(bytes.substr(8, size));
  if (!header.contains(name)) return;
  ASSERT_EQ(header[name]["dtype"], "BF16");
  const std::size_t begin = 8 + size + header[name]["data_offsets"][0].get<std::size_t>(),
                    end = 8 + size + header[name]["data_offsets"][1].get<std::size_t>();
  std::string numbers = bytes.substr(begin, end - begin);
  for (std::size_t i = 1; i < numbers.size(); i += 2)
    numbers[i] = static_cast<char>(numbers[i] ^ 0x80);
  std::fstream file(shard, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(begin));
  file.write(numbers.data(), static_cast<std::streamsize>(numbers.size()));
}

TEST(SelfcheckCommand, EndsWithCode1WhenARowFails) {
  // An honest failure: the weights change under the program after the answers that rows are
  // compared with are computed. Until then the pipe holds the program back behind its first lines.
  const test::TempFolder folder;
  std::vector<std::filesystem::path> shards;
  for (const auto& entry :
       std::filesystem::directory_iterator(test::project_path("tests/golden/kimi_k3_text"))) {
    const std::string name = entry.path().filename().string();
    if (name == "golden.safetensors") continue;
    folder.copy(entry.path());
    if (name.ends_with(".safetensors")) shards.push_back(folder / name);
  }
  const FullPipe pipe(folder / "out", 1000);
  ASSERT_TRUE(pipe.ready());
  auto child = std::async(std::launch::async, [&] {
    return test::run_child(
        PALIMPSEST_BINARY,
        {"selfcheck", "-m", folder.path().string(), "-t", "1", "--quick", "--prompt-tokens", "70"},
        "", (folder / "out").string());
  });
  const auto ended = [&] {
    return child.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready;
  };
  while (!pipe.was_written_to() && !ended()) {
  }
  for (const auto& shard : shards) negate(shard, "language_model.lm_head.weight");
  std::string out;
  while (!ended()) out += pipe.read();
  for (std::string more = pipe.read(); !more.empty(); more = pipe.read()) out += more;
  const ChildResult result = child.get();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(out, AllOf(HasSubstr("FAILED\n    "), HasSubstr("logits differ by"),
                         HasSubstr(" of 18 rows FAILED\n"), Not(HasSubstr("rows hold"))));
  EXPECT_THAT(result.err, IsEmpty());
}

TEST(SelfcheckCommand, Json) {
  const ChildResult result =
      check({"--json", "--quick", "--prompt-tokens", "70", "--cache-type", "f32"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["prompt_tokens"], 70);
  EXPECT_EQ(json["cache_type"], "f32");
  EXPECT_EQ(json["page_type"], "f32");
  EXPECT_EQ(json["activations"], "q16");
  EXPECT_EQ(json["rows"].size(), 18u);
  for (const auto& row : json["rows"]) {
    EXPECT_EQ(row["ok"], true) << row;
    EXPECT_GT(row["comparisons"], 0) << row;
    EXPECT_LE(row["worst"], row["exact"] == true ? 0.0 : json["bound"].get<double>()) << row;
  }
}

TEST(SelfcheckCommand, SaysWhatItCannotDo) {
  const auto refused = [](const std::vector<std::string>& more, int code,
                          const std::string& reason) {
    const ChildResult result = check(more);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_THAT(result.err, HasSubstr(reason));
    EXPECT_THAT(result.out, IsEmpty());
  };
  refused({"--prompt-tokens", "5"}, 2, "--prompt-tokens");
  refused({"--cache-type", "q3"}, 2, "--cache-type");

  const ChildResult small = test::run_child(
      PALIMPSEST_BINARY,
      {"selfcheck", "-m", test::project_path("tests/golden/fla_options/gated_plain").string(),
       "--prompt-tokens", "250"});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.err, AllOf(HasSubstr("250 tokens"), HasSubstr("256 positions")));
}

}  // namespace
}  // namespace palimpsest
