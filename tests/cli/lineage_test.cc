// The lineage command, as a child process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "support/child.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using nlohmann::json;
using test::ChildResult;
using ::testing::AllOf;
using ::testing::HasSubstr;

ChildResult lineage(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "lineage");
  return test::run_child(PALIMPSEST_BINARY, arguments, "", "");
}

TEST(Lineage, PrintsWhatEveryMemoryReturns) {
  const ChildResult result = lineage({});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"KV list", "linear attention", "DeltaNet", "Gated DeltaNet", "KDA", "overwritten 4", "old topic 8", "4.00 KiB"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(lineage({"-s", "1"}).out, result.out) << "the default seed";
  EXPECT_NE(lineage({"-s", "2"}).out, result.out);
}

TEST(Lineage, JsonHasEveryAnswer) {
  const ChildResult result = lineage({"--json", "--width", "16", "--pairs", "40"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json found = json::parse(result.out);
  EXPECT_EQ(found["width"], 16);
  EXPECT_EQ(found["story"]["writes"], 16);
  EXPECT_EQ(found["story"]["keys"].size(), 12u) << "2 of each act, 4 of the old topic";
  const json& overwritten = found["story"]["keys"][4];
  EXPECT_EQ(overwritten["act"], "overwritten");
  EXPECT_EQ(overwritten["reads"]["DeltaNet"]["recall"], "right");
  EXPECT_EQ(overwritten["reads"]["linear attention"]["recall"], "blurred");
  EXPECT_EQ(overwritten["reads"]["KDA"]["returned"].size(), 16u);
  EXPECT_EQ(found["capacity"]["pairs"].back(), 40);
  EXPECT_EQ(found["capacity"]["memories"]["KV list"]["bytes"].back(), 40 * 33 * 4);
}

TEST(Lineage, DrawsAPicture) {
  const test::TempFolder folder;
  const std::string path = (folder.path() / "line.svg").string();
  ASSERT_EQ(lineage({"--svg", path}).exit_code, 0);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
}

TEST(Lineage, RefusesWhatItCannotDo) {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& part) {
    const ChildResult result = lineage(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  refused({"--width", "20"}, "--width: 20 is not a multiple of 16");
  refused({"--width", "0"}, "--width: 0 is out of range, must be from 16 to 256");
  refused({"--pairs", "2049"}, "--pairs: 2049 is out of range, must be from 8 to 2048");
  refused({"-m", "models/demo"}, "-m");
  const ChildResult result = lineage({"--svg", "no/such/folder/line.svg"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("there is no folder"));
}

}  // namespace
}  // namespace palimpsest
