// 1 MB each of English, code, Chinese and random Unicode: the ids are those of the reference
// libraries, recorded by tools/record_tokenizer_samples.py.

#include <algorithm>
#include <cctype>
#include <map>

#include "support/digest.h"
#include "vocabulary_support.h"

namespace palimpsest::test {
namespace {

constexpr std::size_t kSize = 1'000'000;

/// splitmix64.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

std::string chinese() {
  constexpr std::u32string_view kMarks = U"，。、「」：？！\n 　ab";
  Numbers numbers(1);
  std::string text;
  while (text.size() < kSize) {
    const std::uint64_t r = numbers.next(), value = r >> 8;
    text::append_utf8(r % 10 < 8    ? static_cast<char32_t>(0x4e00 + value % 3000)
                      : r % 10 == 8 ? static_cast<char32_t>('0' + value % 10)
                                    : kMarks[value % kMarks.size()],
                      text);
  }
  return text;
}

std::string random_unicode() {
  struct Range {
    std::uint32_t first, count;
  };
  constexpr Range kRanges[] = {{0x20, 0x5f},     {0x61, 26},        {0x09, 5},
                               {0xa1, 0x55f},    {0x300, 0x70},     {0x2000, 0x1100},
                               {0x4e00, 0x5200}, {0x10000, 0x20000}};
  Numbers numbers(2);
  std::string text;
  while (text.size() < kSize) {
    const std::uint64_t r = numbers.next();
    const Range range = r % 64 == 63 ? Range{0x600, 0xd800 - 0x600} : kRanges[r % 8];
    text::append_utf8(static_cast<char32_t>(range.first + (r >> 8) % range.count), text);
  }
  return text;
}

std::string start_of(const std::string& path) {
  std::string text = read_file(shared_path(path)).substr(0, kSize);
  text.resize(text::complete_prefix(text));
  return text;
}

const std::map<std::string, std::string>& texts() {
  static const std::map<std::string, std::string> all = {
      {"english", start_of("text/wikitext2-valid.txt")},
      {"code", start_of("api/openapi.yaml")},
      {"chinese", chinese()},
      {"random", random_unicode()}};
  return all;
}

const nlohmann::json& recording() {
  static const nlohmann::json json =
      nlohmann::json::parse(read_file(project_path("tests/data/tokenizer_samples.json")));
  return json;
}

nlohmann::json chain_json(const nlohmann::json& recorded) {
  nlohmann::json json = qwen_json();
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = recorded["pre_tokenizer"];
  json["model"]["ignore_merges"] = recorded["ignore_merges"];
  return json;
}

Tokenizer load_recorded(const nlohmann::json& recorded) {
  const std::string kind = recorded["kind"];
  if (kind == "gpt2") return gpt2_tokenizer();
  if (kind == "qwen3") return Tokenizer::load(shared_path("tokenizer/qwen3"));
  if (kind == "kimi") return kimi_tokenizer("k3");
  if (kind == "chain") return load_json(chain_json(recorded));
  return Tokenizer::load(shared_path(recorded["path"]));
}

/// Whether decoding gives the text back: not where it was normalised, characters were dropped, or
/// the text has SentencePiece's mark of a space.
bool is_reversible(const nlohmann::json& recorded, const std::string& text) {
  const std::string kind = recorded["kind"];
  if (kind == "qwen3") return text != texts().at("random");
  if (kind == "chain") return !recorded["gguf"].is_null();
  return kind != "file" || text.find("\u2581") == std::string::npos;
}

void expect_recorded_ids(const Tokenizer& tokenizer, const nlohmann::json& recorded) {
  for (const auto& [name, text] : texts()) {
    SCOPED_TRACE(name);
    ASSERT_EQ(digest(text), recording()["texts"][name]) << "not the text that was recorded";
    const nlohmann::json& sample = recorded["samples"][name];
    const std::vector<TokenId> ids = tokenizer.encode(text);
    const auto first = sample["first"].get<std::vector<TokenId>>();
    EXPECT_EQ(std::vector<TokenId>(ids.begin(), ids.begin() + 16), first);
    EXPECT_EQ(ids.size(), sample["count"]);
    EXPECT_EQ(digest({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(TokenId)}),
              sample["digest"]);
    EXPECT_TRUE(!is_reversible(recorded, text) || tokenizer.decode(ids) == text);
  }
}

class TokenizerSamples : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    for (const char* path :
         {"text/wikitext2-valid.txt", "api/openapi.yaml", "tokenizer/gpt2", "tokenizer/qwen3",
          "tokenizer/kimi/tiktoken.model", "tokenizer/vocab-gguf", "models/stories260K"}) {
      SKIP_WITHOUT_SHARED(path);
    }
  }
  const nlohmann::json& recorded() const { return recording()["tokenizers"][GetParam()]; }
};

TEST_P(TokenizerSamples, IdsOfTheReference) {
  expect_recorded_ids(load_recorded(recorded()), recorded());
}

TEST_P(TokenizerSamples, NamedInAGgufFile) {
  if (!recorded().contains("gguf") || recorded()["gguf"].is_null()) {
    GTEST_SKIP() << "GGUF files have no name for this chain";
  }
  expect_recorded_ids(load_gguf(as_gguf(qwen_json(), recorded()["gguf"])), recorded());
}

std::string name_of(const testing::TestParamInfo<std::size_t>& sample) {
  std::string name = recording()["tokenizers"][sample.param]["name"];
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Recorded, TokenizerSamples,
                         testing::Range<std::size_t>(0, recording()["tokenizers"].size()), name_of);

}  // namespace
}  // namespace palimpsest::test
