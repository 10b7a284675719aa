#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/child.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using testing::AllOf;
using testing::HasSubstr;

test::ChildResult convert(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"convert", "-m", test::project_path("models/demo").string()});
  return test::run_child(PALIMPSEST_BINARY, arguments);
}

TEST(ConvertCommand, WrongUseIsExitCode2) {
  const test::TempFolder folder;
  const std::string out = folder / "out";
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"-o", out, "--weights", "q5"},
           {"-o", out, "--experts", "none"},
           {"-o", out, "--to", "onnx"},
           {"-o", out, "--shard-size", "0"},
           {"-o", out, "--shard-size", "4 apples"},
           {"-o", out, "--shard-size", "99999999999999999999GiB"},
           {"-o", out + ".gguf", "--to", "gguf", "--shard-size", "4GiB"},
           {"-o", out, "--to", "gguf"},
           {"-o", folder.path().string()},
           {"-o", test::project_path("models/demo").string(), "--force"}}) {
    const test::ChildResult result = convert(arguments);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(arguments) << result.err;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ConvertCommand, PrintsErrorsOfEachRoleAndPerplexityBeforeAndAfter) {
  const test::TempFolder folder;
  const std::string filler = test::project_path("models/demo/filler.txt").string();
  const test::ChildResult result =
      convert({"-o", folder / "out", "--weights", "q8", "--shard-size", "8MiB", "--eval", filler, "--tokens", "600"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("max error"), HasSubstr("self_attn.kv_b_proj"), HasSubstr("perplexity"), HasSubstr("ratio")));
  const test::ChildResult run = test::run_child(
      PALIMPSEST_BINARY, {"run", "-m", folder / "out", "--raw", "-p", "It was a dark night, and", "-n", "8", "--temp", "0"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const test::ChildResult again = convert({"-o", folder / "out", "--weights", "q8"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("--force"));
}

TEST(ConvertCommand, ATextThatCannotBeScoredIsToldBeforeAnythingIsWritten) {
  const test::TempFolder folder;
  const test::ChildResult result = convert({"-o", folder / "out", "--weights", "q8", "--eval", "/dev/null"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("the text has 0 token(s)"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ConvertCommand, WritesGgufFilesThatRunAndReplacesThemOnDemandOnly) {
  const test::TempFolder folder;
  const std::string out = folder / "demo.gguf";
  const test::ChildResult result = convert({"-o", out, "--to", "gguf", "--weights", "q8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("attn_kv_a_mqa"), HasSubstr("Q8_0"), HasSubstr("read again and compared")));
  const auto written = [](const std::string& model) {
    return test::run_child(PALIMPSEST_BINARY, {"run", "-m", model, "--raw", "-p", "It was a dark night, and", "-n", "8", "--temp", "0"}).out;
  };
  EXPECT_EQ(written(out), written(test::project_path("models/demo").string()));
  EXPECT_EQ(convert({"-o", out, "--to", "gguf"}).exit_code, 2);
  EXPECT_EQ(convert({"-o", out, "--to", "gguf", "--force"}).exit_code, 0);
}

}  // namespace
}  // namespace palimpsest
