// Templates against what jinja2 rendered (tools/record_templates.py).

#include <gtest/gtest.h>

#include "text/template_support.h"

namespace palimpsest::test {
namespace {

/// Where two texts first differ, with what stands around it.
std::string first_difference(const std::string& expected, const std::string& found) {
  std::size_t i = 0;
  while (i < expected.size() && i < found.size() && expected[i] == found[i]) ++i;
  const std::size_t from = i < 60 ? 0 : i - 60;
  return "at byte " + std::to_string(i) + ":\n  expected ..." + expected.substr(from, 160) +
         "\n  found    ..." + found.substr(from, 160);
}

TEST(TemplateRecorded, OwnTemplatesRenderTheRecordedText) {
  const Json own = recorded("own.json");
  const Json chats = recorded("chats.json");
  ASSERT_GE(own["records"].size(), 40u);
  for (const Json& record : own["records"]) {
    const auto name = record["template"].get<std::string>();
    SCOPED_TRACE(name + " " + record["chat"].dump());
    const Json& context =
        record["chat"].is_null() ? own["context"] : chats[record["chat"].get<std::size_t>()];
    const auto result = render(template_data(name), context);
    if (record.contains("error")) {
      ASSERT_FALSE(result.has_value());
      const auto message = record["error"].get<std::string>();
      EXPECT_NE(result.error().text().find(message), std::string::npos)
          << result.error().text() << "\nexpected: " << message;
      continue;
    }
    ASSERT_TRUE(result.has_value()) << result.error().text();
    const auto expected = record["text"].get<std::string>();
    EXPECT_TRUE(*result == expected) << first_difference(expected, *result);
  }
}

/// Every operator, test and filter on values of every type: the same text, or an error where Python
/// raises one.
TEST(TemplateRecorded, OperatorsTestsAndFiltersOnEveryType) {
  int texts = 0, wrong = 0;
  const auto compare = [&](const std::string& source, const Json& expected) {
    if (expected == false) return;  // left out by the recorder
    const auto result = render(source);
    if (expected.is_string()) ++texts;
    const bool same = expected.is_null() ? !result.has_value()
                                         : result && *result == expected.get<std::string>();
    if (!same && ++wrong <= 40) {
      ADD_FAILURE() << source << "\n  expected " << expected << "\n  found    "
                    << (result ? *result : result.error().text());
    }
  };
  for (const Json& table : recorded("matrix.json")) {
    for (std::size_t row = 0; row < table[0].size(); ++row) {
      for (std::size_t column = 0; column < table[1].size(); ++column)
        compare(table[0][row].get<std::string>() + table[1][column].get<std::string>(), table[2][row][column]);
    }
  }
  EXPECT_GT(texts, 1000);
  EXPECT_EQ(wrong, 0);
}

TEST(TemplateRecorded, ErrorsComeWhereJinjaRaisesThem) {
  for (const Json& record : recorded("errors.json")) {
    const auto source = record["source"].get<std::string>();
    SCOPED_TRACE(source + "\n" + record.dump());
    const auto result = render(source, {{"d", {{"a", 1}}}, {"x", {{"y", 1}}}});
    ASSERT_FALSE(result.has_value()) << *result;
    const auto line = record["line"].get<int>();
    if (line > 0) {
      EXPECT_NE(result.error().text().find("line " + std::to_string(line) + ": "),
                std::string::npos)
          << result.error().text();
    }
    const auto type = record["type"].get<std::string>();
    if (type == "TemplateError" || type == "UndefinedError" || type == "SecurityError") {
      EXPECT_NE(result.error().text().find(record["message"].get<std::string>()), std::string::npos)
          << result.error().text();
    }
  }
}

/// Other people's templates are read from the shared data; of their output only length and digest
/// are recorded here.
class PublishedTemplate : public testing::TestWithParam<const char*> {};

TEST_P(PublishedTemplate, RendersTheChatsByteForByte) {
  const std::string name = GetParam();
  const auto path = shared_path("chat-templates/" + name);
  if (path.empty()) GTEST_SKIP() << "shared data absent: chat-templates/" << name;
  const auto parsed = text::Template::parse(read_file(path));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().text();
  const Json expected = recorded("published.json").at(name);
  const Json chats = recorded("chats.json");
  ASSERT_EQ(chats.size(), 115u);
  int rendered_chats = 0;
  for (std::size_t i = 0; i < chats.size(); ++i) {
    SCOPED_TRACE("chat " + std::to_string(i));
    const auto result = parsed->render(chats[i], {.now = recorded_time()});
    const auto record = expected.at(i).get<std::string>();
    if (record.starts_with("error") || record.starts_with("raised")) {
      ASSERT_FALSE(result.has_value()) << record;
      if (record == "error") continue;
      const std::string text = result.error().text();
      const std::size_t message = text.find(": ", text.find("line ")) + 2;
      EXPECT_EQ("raised " + digest(text.substr(message)), record) << text;
    } else {
      ASSERT_TRUE(result.has_value()) << result.error().text();
      EXPECT_EQ(std::to_string(result->size()) + " " + digest(*result), record) << *result;
      ++rendered_chats;
    }
  }
  EXPECT_GE(rendered_chats, 52);
}

INSTANTIATE_TEST_SUITE_P(Files, PublishedTemplate,
                         testing::Values("Kimi-K2-Instruct.jinja", "Kimi-K2-Thinking.jinja",
                                         "Kimi-K2.5.jinja", "Kimi-K3.jinja",
                                         "Qwen-Qwen3-0.6B.jinja", "Qwen3.5-4B.jinja"),
                         [](const auto& file) {
                           std::string name = file.param;
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace palimpsest::test
