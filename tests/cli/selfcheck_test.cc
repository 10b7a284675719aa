// `palimpsest selfcheck` as users run it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/child.h"
#include "support/shared_data.h"

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

TEST(SelfcheckCommand, Json) {
  const ChildResult result =
      check({"--json", "--quick", "--prompt-tokens", "70", "--cache-type", "f32"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["prompt_tokens"], 70);
  EXPECT_EQ(json["cache_type"], "f32");
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
