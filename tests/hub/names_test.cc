// Names, checksums, settings and the list of files: what needs no server.

#include <gmock/gmock.h>

#include <cstdlib>

#include "base/error.h"
#include "hub/checksum.h"
#include "hub/file_choice.h"
#include "hub/model_id.h"
#include "hub/model_info.h"
#include "hub/remote.h"
#include "hub/settings.h"
#include "hub/url.h"
#include "support/temp_folder.h"

namespace palimpsest::test {
namespace {

using testing::HasSubstr;

TEST(ModelId, OwnerNameAndRevision) {
  const auto plain = hub::parse_model_id("moonshotai/Kimi-K3");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->owner, "moonshotai");
  EXPECT_EQ(plain->name, "Kimi-K3");
  EXPECT_EQ(plain->revision, "main");
  const auto revised = hub::parse_model_id("a/b.c_d@refs/pr/1");
  ASSERT_TRUE(revised);
  EXPECT_EQ(revised->revision, "refs/pr/1");
  EXPECT_EQ(revised->text(), "a/b.c_d@refs/pr/1");
}

TEST(ModelId, NothingThatIsNotOne) {
  for (const char* text :
       {"",      "a",        "a/",     "/b",     "a/b/c",    "../b",   "a/..",     "a/b--c",
        "a/b@",  "a/b@../x", "a/b@/x", "a/b@x/", "a/b@x//y", "a/b@-x", "a/b@x/.y", "a b/c",
        "a/b\n", "./demo",   "a/.b",   "a-/b",   "a/b@x y",  "a/b@c@d"}) {
    EXPECT_FALSE(hub::parse_model_id(text)) << text;
  }
  EXPECT_FALSE(hub::parse_model_id("a/" + std::string(97, 'b')));
}

std::string sum_of(std::string_view kind, std::string_view bytes) {
  hub::Checksum sum(kind, bytes.size());
  sum.update(std::as_bytes(std::span(bytes)));
  return sum.finish();
}

TEST(Checksum, IsTheHubs) {
  // FIPS 180-4's "abc", and what `git hash-object` says of "hello\n" and of nothing.
  EXPECT_EQ(sum_of(std::string(64, '0'), "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sum_of(std::string(40, '0'), "hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(sum_of(std::string(40, '0'), ""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_TRUE(hub::Checksum::is_name(std::string(64, 'a')));
  for (const std::string& name :
       {std::string(64, 'A'), std::string(63, 'a'), std::string("../x"), std::string()}) {
    EXPECT_FALSE(hub::Checksum::is_name(name)) << name;
  }
}

TEST(Url, KnowsWhatIsTheSameServer) {
  const auto url = hub::parse_url("https://Hub.example/x?y");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "hub.example");
  EXPECT_EQ(url->port, "443");
  EXPECT_TRUE(url->same_origin(*hub::parse_url("https://hub.example:443/z")));
  EXPECT_FALSE(url->same_origin(*hub::parse_url("http://hub.example/z")));
  EXPECT_FALSE(url->same_origin(*hub::parse_url("https://hub.example:444/z")));
  EXPECT_FALSE(url->same_origin(*hub::parse_url("https://hub.example.evil/z")));
  EXPECT_TRUE(hub::parse_url("https://user:x@host/")->has_user);
  for (const char* text : {"", "x", "/x", "ftp://x/", "file:///x", "https://"})
    EXPECT_FALSE(hub::parse_url(text)) << text;
  EXPECT_TRUE(hub::parse_url("http://127.0.0.1:80")->is_loopback());
  EXPECT_TRUE(hub::parse_url("http://[::1]:80")->is_loopback());
  EXPECT_FALSE(hub::parse_url("http://127.evil.example")->is_loopback());
}

TEST(Url, ReferencesAreTakenFromWhereTheyStand) {
  const std::string base = "https://hub.example:8443/api/tree?recursive=true";
  EXPECT_EQ(hub::resolve_url(base, "?cursor=x"), "https://hub.example:8443/api/tree?cursor=x");
  EXPECT_EQ(hub::resolve_url(base, "/other"), "https://hub.example:8443/other");
  EXPECT_EQ(hub::resolve_url(base, "http://a.example/b"), "http://a.example/b");
  EXPECT_EQ(hub::resolve_url(base, "http://:x/"), std::nullopt);
}

TEST(Url, NextPageOfALink) {
  EXPECT_EQ(hub::next_page(R"(<https://a/b?c=1,2;3>; rel="next")"), "https://a/b?c=1,2;3");
  EXPECT_EQ(hub::next_page(R"(<first>; rel="prev", <second>; title="x"; rel="next")"), "second");
  EXPECT_EQ(hub::next_page("<a>; rel=next"), "a");
  for (const char* none : {"", "<a>", "<a>; rel=\"prev\"", "<a", "a>; rel=next", "> < rel=next"})
    EXPECT_EQ(hub::next_page(none), "") << none;
}

TEST(ModelInfo, FilesWithSizesAndSums) {
  const auto info = hub::parse_model_info(
      R"({"sha": "0123456789abcdef0123456789abcdef01234567", "other": [1, {}], "siblings": [
      {"rfilename": "b/c.json", "size": 3, "blobId": "ce013625030ba8dba906f756967f9e9ca394464a"},
      {"rfilename": "a.safetensors", "size": 7, "blobId": "ce013625030ba8dba906f756967f9e9ca394464a",
       "lfs": {"sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "size": 7, "pointerSize": 1}},
      {"rfilename": "z"}]})");
  ASSERT_TRUE(info) << info.error().text();
  ASSERT_EQ(info->files.size(), 3u);
  EXPECT_EQ(info->files[0].name, "a.safetensors");
  EXPECT_EQ(info->files[0].checksum.size(), 64u);
  EXPECT_EQ(info->files[1].checksum.size(), 40u);
  EXPECT_EQ(info->files[1].size, 3u);
  EXPECT_EQ(info->files[2].size, std::nullopt);
}

TEST(ModelInfo, EveryFaultIsNamed) {
  const auto fault = [](std::string siblings,
                        std::string sha = "0123456789abcdef0123456789abcdef01234567") {
    const auto info =
        hub::parse_model_info(R"({"sha": ")" + sha + R"(", "siblings": )" + siblings + "}");
    return info ? "" : info.error().text();
  };
  EXPECT_EQ(fault("[]"), "");
  EXPECT_THAT(fault("[]", "main"), HasSubstr("'sha' is 'main'"));
  EXPECT_THAT(fault("{}"), HasSubstr("'siblings' is not a list"));
  EXPECT_THAT(fault("[3]"), HasSubstr("file 0: is not an object"));
  EXPECT_THAT(fault("[{}]"), HasSubstr("no 'rfilename'"));
  EXPECT_THAT(fault(R"([{"rfilename": 3}])"), HasSubstr("'rfilename' is not a string"));
  EXPECT_THAT(fault(R"([{"rfilename": "a", "size": -1}])"),
              HasSubstr("'a': 'size' is not a number of bytes"));
  EXPECT_THAT(fault(R"([{"rfilename": "a", "size": 9223372036854775807}])"),
              HasSubstr("9223372036854775807 bytes are more"));
  EXPECT_THAT(fault(R"([{"rfilename": "a", "lfs": {"sha256": "../x"}}])"),
              HasSubstr("checksum '../x'"));
  EXPECT_THAT(fault(R"([{"rfilename": "a", "blobId": "x"}])"), HasSubstr("checksum 'x'"));
  EXPECT_THAT(fault(R"([{"rfilename": "a"}, {"rfilename": "a"}])"), HasSubstr("'a' occurs twice"));
  EXPECT_THAT(fault(R"([{"rfilename": "a\u0000b"}])"), HasSubstr("control character"));
  EXPECT_THAT(fault("[" + std::string(5000, '[')), HasSubstr("model description of"));
}

hub::ModelInfo files(std::initializer_list<const char*> names) {
  hub::ModelInfo info;
  for (const char* name : names) info.files.push_back({.name = name, .size = 1, .checksum = ""});
  return info;
}

std::vector<std::string> chosen(const hub::ModelInfo& info) {
  std::vector<std::string> names;
  for (const auto& file : hub::choose_files(info, {})) names.push_back(file.name);
  return names;
}

TEST(FileChoice, ByDefault) {
  using testing::ElementsAre;
  EXPECT_THAT(chosen(files({"a.py", "chat_template.jinja", "config.json",
                            "consolidated.safetensors", "merges.txt", "model.safetensors",
                            "pytorch_model.bin.index.json", "tiktoken.model", "x.gguf"})),
              ElementsAre("chat_template.jinja", "config.json", "merges.txt", "model.safetensors",
                          "tiktoken.model"));
  EXPECT_THAT(chosen(files({"config.json", "weights.safetensors"})),
              ElementsAre("config.json", "weights.safetensors"));
  EXPECT_THAT(chosen(files({"config.json", "x.gguf"})), ElementsAre("x.gguf"));
  EXPECT_THROW(chosen(files({"config.json", "pytorch_model.bin"})), Error);
  EXPECT_THROW(chosen(files({})), Error);
}

TEST(FileChoice, PartsOfGguf) {
  EXPECT_EQ(hub::first_part("d/m-00003-of-00005.gguf"), "d/m-00001-of-00005.gguf");
  for (const char* name : {"m.gguf", "-00003-of-00005.gguf", "m-0003-of-00005.gguf",
                           "m-00003-of-0000x.gguf", "m-00003-of-00005.bin"}) {
    EXPECT_EQ(hub::first_part(name), name);
  }
}

class Environment : public testing::Test {
 protected:
  Environment() {
    for (const char* name :
         {"HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"})
      unsetenv(name);
    setenv("HOME", folder_.path().c_str(), 1);
  }
  TempFolder folder_;
};

TEST_F(Environment, Defaults) {
  const auto settings = hub::settings_from_environment();
  EXPECT_EQ(settings.cache, folder_ / ".cache/huggingface/hub");
  EXPECT_EQ(settings.token, "");
  EXPECT_TRUE(settings.endpoint.starts_with("https://"));
  EXPECT_FALSE(settings.offline);
}

TEST_F(Environment, Variables) {
  folder_.write("token", " hf_file\n");
  setenv("HF_HOME", folder_.path().c_str(), 1);
  setenv("HF_ENDPOINT", "https://mirror.example/hub//", 1);
  setenv("HF_HUB_OFFLINE", "yes", 1);
  auto settings = hub::settings_from_environment();
  EXPECT_EQ(settings.cache, folder_ / "hub");
  EXPECT_EQ(settings.token, "hf_file");
  EXPECT_EQ(settings.endpoint, "https://mirror.example/hub");
  EXPECT_TRUE(settings.offline);
  setenv("HF_TOKEN", "hf_variable", 1);
  setenv("HF_HUB_CACHE", "~/elsewhere", 1);
  settings = hub::settings_from_environment();
  EXPECT_EQ(settings.token, "hf_variable");
  EXPECT_EQ(settings.cache, folder_ / "elsewhere");
}

TEST_F(Environment, WrongValuesAreNamedAndTokensNotShown) {
  for (const char* endpoint : {"hub.example", "ftp://x", "https://user:secret@x", "https://x?y"}) {
    setenv("HF_ENDPOINT", endpoint, 1);
    EXPECT_THROW(hub::settings_from_environment(), Error) << endpoint;
  }
  unsetenv("HF_ENDPOINT");
  setenv("HF_TOKEN", "hf_a\r\nX-Other: b", 1);
  try {
    hub::settings_from_environment();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("HF_TOKEN"));
    EXPECT_THAT(error.text(), testing::Not(HasSubstr("hf_a")));
  }
}

}  // namespace
}  // namespace palimpsest::test
