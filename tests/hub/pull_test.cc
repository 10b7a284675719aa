// Pulls from a hub on this machine that serves well.

#include "hub/pull.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "fake_hub.h"
#include "hub/cache.h"

namespace palimpsest::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

const hub::ModelId kModel{.owner = "owner", .name = "model"};

/// A small model in two shards with what its publisher has beside it.
class Pull : public testing::Test {
 protected:
  Pull() {
    hub_.add("config.json", R"({"model_type": "x"})");
    hub_.add("tokenizer.json", some_bytes(70'000, 1));
    hub_.add(
        "model.safetensors.index.json",
        R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
    hub_.add("model-00001-of-00002.safetensors", some_bytes(900'000, 2), true);
    hub_.add("model-00002-of-00002.safetensors", some_bytes(500'000, 3), true);
    hub_.add("pytorch_model.bin", "pickled", true);
    hub_.add("README.md", "read me");
    hub_.add("original/consolidated.safetensors", "again", true);
    hub_.add("onnx/model.onnx", "again", true);
  }
  std::vector<std::string> names(const hub::PullResult& result) {
    std::vector<std::string> names;
    for (const auto& file : result.files) names.push_back(file.name);
    return names;
  }

  FakeHub hub_;
};

TEST_F(Pull, BringsWhatTheModelNeeds) {
  const hub::PullResult result = hub::pull(hub_.settings(), kModel, {});
  EXPECT_EQ(result.commit, kCommit);
  EXPECT_EQ(result.folder, hub_.snapshot());
  EXPECT_THAT(names(result), ElementsAre("config.json", "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors",
                                         "model.safetensors.index.json", "tokenizer.json"));
  for (const auto& file : result.files) {
    EXPECT_EQ(read_file(result.folder / file.name), hub_.bytes(file.name)) << file.name;
    EXPECT_EQ(fs::read_symlink(result.folder / file.name),
              fs::path("../../blobs") / hub_.sum(file.name));
    EXPECT_FALSE(fs::exists(hub_.partial(file.name)));
  }
  EXPECT_EQ(result.bytes, result.fetched);
  EXPECT_EQ(read_file(hub_.model_folder() / "refs" / "main"), kCommit);
  EXPECT_EQ(hub::find_cached_model(hub_.settings().cache, kModel).path, hub_.snapshot());
}

TEST_F(Pull, FetchesNothingTwice) {
  hub::pull(hub_.settings(), kModel, {});
  const std::size_t calls = hub_.server.calls().size();
  const hub::PullResult again = hub::pull(hub_.settings(), kModel, {});
  EXPECT_EQ(again.fetched, 0);
  EXPECT_EQ(hub_.server.calls().size(), calls + 1);  // the list alone
}

TEST_F(Pull, GoesOnWhereAnEarlierRunWasCut) {
  const std::string name = "model-00001-of-00002.safetensors";
  fs::create_directories(hub_.model_folder() / "blobs");
  std::ofstream(hub_.partial(name), std::ios::binary) << hub_.bytes(name).substr(0, 600'000);
  const hub::PullResult result = hub::pull(hub_.settings(), kModel, {.include = {name}});
  EXPECT_EQ(result.fetched, 300'000);
  EXPECT_EQ(result.files[0].cached, 600'000);
  EXPECT_EQ(read_file(result.folder / name), hub_.bytes(name));
  EXPECT_EQ(hub_.storage.calls().at(0).header("range"), "bytes=600000-");
  EXPECT_EQ(hub_.storage.calls().at(0).header("if-range"),
            "");  // the storage knows the file under another tag
}

TEST_F(Pull, FetchesAnewWhatAnEarlierRunLeftWrong) {
  const std::string name = "tokenizer.json";
  fs::create_directories(hub_.model_folder() / "blobs");
  for (const std::string& left :
       {std::string(60'000, 'x'), std::string(70'000, 'x'), std::string(80'000, 'x')}) {
    fs::remove_all(hub_.blob(name));
    std::ofstream(hub_.partial(name), std::ios::binary) << left;
    hub::pull(hub_.settings(), kModel, {.include = {name}});
    EXPECT_EQ(read_file(hub_.snapshot() / name), hub_.bytes(name)) << left.size();
  }
}

TEST_F(Pull, TakesAFinishedPartialAsItIs) {
  const std::string name = "tokenizer.json";
  fs::create_directories(hub_.model_folder() / "blobs");
  std::ofstream(hub_.partial(name), std::ios::binary) << hub_.bytes(name);
  EXPECT_EQ(hub::pull(hub_.settings(), kModel, {.include = {name}}).fetched, 0);
  EXPECT_EQ(read_file(hub_.snapshot() / name), hub_.bytes(name));
}

TEST_F(Pull, ReplacesABlobThatWasCutShort) {
  hub::pull(hub_.settings(), kModel, {});
  fs::resize_file(hub_.blob("tokenizer.json"), 10);
  EXPECT_EQ(hub::pull(hub_.settings(), kModel, {}).fetched, 70'000);
  EXPECT_EQ(read_file(hub_.snapshot() / "tokenizer.json"), hub_.bytes("tokenizer.json"));
}

TEST_F(Pull, PatternsChooseFilesInFolders) {
  const auto result = hub::pull(hub_.settings(), kModel, {.include = {"original/", "*.md"}});
  EXPECT_THAT(names(result), ElementsAre("README.md", "original/consolidated.safetensors"));
  EXPECT_EQ(read_file(result.folder / "original" / "consolidated.safetensors"), "again");
  EXPECT_EQ(fs::read_symlink(result.folder / "original" / "consolidated.safetensors"),
            fs::path("../../../blobs") / hub_.sum("original/consolidated.safetensors"));
}

TEST_F(Pull, EmptyAndEqualFilesAndNamesThatNeedEscapes) {
  hub_.add("a b#?%.txt", "");
  hub_.add("ä.txt", some_bytes(100, 9));
  hub_.add("copy.txt", some_bytes(100, 9));
  // The fake hub looks names up as they are asked for: escaped.
  hub_.add("%C3%A4.txt", some_bytes(100, 9));
  const auto result = hub::pull(hub_.settings(), kModel, {.include = {"a b*", "ä*", "copy*"}});
  EXPECT_EQ(result.fetched, 100);
  EXPECT_EQ(result.bytes, 200);
  EXPECT_TRUE(fs::exists(result.folder / "a b#?%.txt"));
  EXPECT_EQ(read_file(result.folder / "ä.txt"), read_file(result.folder / "copy.txt"));
}

TEST_F(Pull, ADryRunWritesNothing) {
  const auto result = hub::pull(hub_.settings(), kModel, {.dry_run = true});
  EXPECT_EQ(result.files.size(), 5u);
  EXPECT_EQ(result.fetched, result.bytes);
  EXPECT_FALSE(fs::exists(hub_.settings().cache));
}

TEST_F(Pull, AsksForSizesAndSumsThatTheListDoesNotTell) {
  hub_.set_list([](nlohmann::json& list) {
    for (auto& sibling : list["siblings"]) sibling = {{"rfilename", sibling["rfilename"]}};
  });
  const auto result = hub::pull(hub_.settings(), kModel, {});
  for (const auto& file : result.files) {
    EXPECT_EQ(file.checksum, hub_.sum(file.name));
    EXPECT_EQ(read_file(result.folder / file.name), hub_.bytes(file.name));
  }
  for (const HttpCall& call : hub_.storage.calls()) EXPECT_EQ(call.method, "GET");
}

TEST_F(Pull, AModelThatWasRenamedIsFollowed) {
  // The hub redirects within itself before the answer that tells where a file is kept, and its sum.
  hub_.set_list([](nlohmann::json& list) {
    for (auto& sibling : list["siblings"]) sibling = {{"rfilename", sibling["rfilename"]}};
  });
  hub_.set_fault([](const HttpCall& call, HttpReply& reply) {
    if (call.target.starts_with("/moved")) return false;
    reply.answer(307, {{"Location", "/moved" + call.target}}, "", call.method == "HEAD");
    return true;
  });
  hub::Settings settings = hub_.settings();
  settings.token = "hf_secret";
  const auto result = hub::pull(settings, kModel, {});
  EXPECT_EQ(result.files.size(), 5u);
  for (const auto& file : result.files)
    EXPECT_EQ(read_file(result.folder / file.name), hub_.bytes(file.name));
  for (const HttpCall& call : hub_.storage.calls()) EXPECT_EQ(call.header("authorization"), "");
}

/// A hub whose description has no list of files, or one that may be cut: they come in pages.
class Tree : public Pull {
 protected:
  Tree() {
    hub_.set_list([](nlohmann::json& list) { list["siblings"] = nullptr; });
    hub_.set_fault([this](const HttpCall& call, HttpReply& reply) {
      const std::string prefix = "/api/models/owner/model/tree/" + kCommit + "?recursive=true";
      if (!call.target.starts_with(prefix)) return false;
      const std::size_t page =
          call.target == prefix ? 0 : std::stoul(call.target.substr(prefix.size() + 8));
      std::map<std::string, std::string> headers;
      if (page + 1 < pages_.size())
        headers["Link"] = fmt::format(fmt::runtime(link_), prefix, page + 1);
      reply.answer(200, headers, pages_.at(page).dump());
      return true;
    });
  }
  nlohmann::json file(const std::string& name, bool lfs = false) {
    nlohmann::json entry = {{"type", "file"},
                            {"path", name},
                            {"size", hub_.bytes(name).size()},
                            {"oid", hub_.sum(name)}};
    if (lfs)
      entry["lfs"] = {
          {"oid", hub_.sum(name)}, {"size", hub_.bytes(name).size()}, {"pointerSize", 134}};
    if (lfs) entry["oid"] = std::string(40, 'b');
    return entry;
  }
  std::vector<nlohmann::json> pages_ = {
      {file("config.json"),
       {{"type", "directory"}, {"path", "onnx"}, {"oid", std::string(40, 'd')}}},
      nlohmann::json::array(),
      {file("tokenizer.json"), file("model-00001-of-00002.safetensors", true)},
      {file("model-00002-of-00002.safetensors", true), file("model.safetensors.index.json")}};
  std::string link_ = "<{}&cursor={}>; rel=\"next\"";
};

TEST_F(Tree, IsReadToItsLastPage) {
  const auto result = hub::pull(hub_.settings(), kModel, {});
  EXPECT_EQ(result.files.size(), 5u);
  for (const auto& file : result.files)
    EXPECT_EQ(read_file(result.folder / file.name), hub_.bytes(file.name)) << file.name;
}

TEST_F(Tree, ServesADescriptionThatMayBeCut) {
  hub_.set_list([](nlohmann::json& list) {
    for (int i = 0; i < 50'000; ++i)
      list["siblings"].push_back({{"rfilename", fmt::format("data/{}", i)}});
  });
  hub::Settings settings = hub_.settings();
  settings.patience.stall = std::chrono::seconds(60);  // a busy machine takes its time over so many
  EXPECT_EQ(hub::pull(settings, kModel, {.dry_run = true}).files.size(), 5u);
}

TEST_F(Tree, FaultsOfPagesAreNamed) {
  const auto failure = [&] {
    try {
      hub::pull(hub_.settings(), kModel, {});
      return std::string("no error");
    } catch (const Error& error) {
      return error.text();
    }
  };
  const auto pages = pages_;
  pages_[3].push_back(file("config.json"));
  EXPECT_THAT(failure(), HasSubstr("'config.json' occurs twice"));
  pages_ = pages;
  pages_[2][0]["path"] = "../x";
  EXPECT_THAT(failure(), HasSubstr("list of files: file 1: name '../x'"));
  pages_[2] = "none";
  EXPECT_THAT(failure(), HasSubstr("list of files of 6 bytes"));
  pages_ = pages;
  link_ = "<http://:x/{}{}>; rel=\"next\"";
  EXPECT_THAT(failure(), HasSubstr("its next page"));
  link_ = "<{0}>; rel=\"next\"";  // the first page, for ever
  EXPECT_THAT(failure(), HasSubstr("more than 1000 pages"));
  EXPECT_FALSE(fs::exists(hub_.settings().cache));
}

TEST_F(Pull, ARevisionIsAskedForAndRemembered) {
  hub::ModelId id = kModel;
  id.revision = "refs/pr/1";
  hub::pull(hub_.settings(), id, {.include = {"config.json"}});
  EXPECT_EQ(hub_.server.calls().at(0).target,
            "/api/models/owner/model/revision/refs%2Fpr%2F1?blobs=true");
  EXPECT_EQ(read_file(hub_.model_folder() / "refs" / "refs" / "pr" / "1"), kCommit);
  EXPECT_FALSE(fs::exists(hub_.model_folder() / "refs" / "main"));

  id.revision = kCommit;
  hub::pull(hub_.settings(), id, {.include = {"config.json"}});
  EXPECT_FALSE(fs::exists(hub_.model_folder() / "refs" / kCommit));
}

TEST_F(Pull, TheTokenGoesToTheHubAlone) {
  hub::Settings settings = hub_.settings();
  settings.token = "hf_secret";
  hub::pull(settings, kModel, {});
  for (const HttpCall& call : hub_.server.calls())
    EXPECT_EQ(call.header("authorization"), "Bearer hf_secret");
  EXPECT_EQ(hub_.storage.calls().size(), 2u);
  for (const HttpCall& call : hub_.storage.calls()) EXPECT_EQ(call.header("authorization"), "");
}

TEST_F(Pull, TwoAtATimeShareTheWork) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { hub::pull(hub_.settings(), kModel, {}); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(hub_.storage.calls().size(), 2u);  // each shard came once
  EXPECT_EQ(hub::find_cached_model(hub_.settings().cache, kModel).path, hub_.snapshot());
}

TEST_F(Pull, WaitsForWhoeverHoldsALockAndTakesWhatTheyFetched) {
  const std::string name = "tokenizer.json";
  const hub::ModelCache cache(hub_.settings().cache, kModel);
  const fs::path lock = cache.lock_file(hub_.sum(name));
  fs::create_directories(lock.parent_path());
  fs::create_directories(hub_.model_folder() / "blobs");
  const int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::ofstream(hub_.blob(name), std::ios::binary) << hub_.bytes(name);
    close(fd);
  });
  EXPECT_EQ(hub::pull(hub_.settings(), kModel, {.include = {name}}).fetched, 0);
  other.join();
  EXPECT_EQ(hub_.server.calls().size(), 1u);
}

TEST_F(Pull, ProgressEndsWithEveryByte) {
  std::int64_t last = 0, total = 0;
  hub_.set_storage_fault([](const HttpCall&, HttpReply&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return false;
  });
  hub::pull(hub_.settings(), kModel, {.on_progress = [&](std::int64_t done, std::int64_t of) {
              last = std::max(last, done), total = of;
            }});
  EXPECT_GT(last, 0);
  EXPECT_EQ(total,
            900'000 + 500'000 + 70'000 +
                static_cast<std::int64_t>(hub_.bytes("config.json").size() +
                                          hub_.bytes("model.safetensors.index.json").size()));
}

TEST(PullGguf, TheOneFileWithAllItsParts) {
  FakeHub hub;
  hub.add("README.md", "x");
  hub.add("q4/m-q4-00001-of-00002.gguf", "one", true);
  hub.add("q4/m-q4-00002-of-00002.gguf", "two", true);
  EXPECT_EQ(hub::pull(hub.settings(), kModel, {}).files.size(), 2u);
  EXPECT_EQ(hub::find_cached_model(hub.settings().cache, kModel).path,
            hub.snapshot() / "q4/m-q4-00001-of-00002.gguf");
  fs::remove(hub.snapshot() / "q4/m-q4-00002-of-00002.gguf");
  EXPECT_THAT(hub::find_cached_model(hub.settings().cache, kModel).missing,
              HasSubstr("1 of 2 parts"));
}

TEST(PullGguf, SeveralAreListed) {
  FakeHub hub;
  hub.add("m-q4.gguf", some_bytes(20'000'000, 1), true);
  hub.add("m-q8-00001-of-00002.gguf", "12345", true);
  hub.add("m-q8-00002-of-00002.gguf", "12345", true);
  try {
    hub::pull(hub.settings(), kModel, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), testing::AllOf(HasSubstr("owner/model: there are 2 GGUF models"),
                                             HasSubstr("m-q4.gguf"), HasSubstr("0.02 GB"),
                                             HasSubstr("m-q8-00001-of-00002.gguf")));
  }
  EXPECT_EQ(hub::pull(hub.settings(), kModel, {.include = {"*q4*"}}).files.size(), 1u);
}

TEST(CachedModel, IsCompleteOrSaysWhatIsMissing) {
  const TempFolder root;
  const auto find = [&] { return hub::find_cached_model(root.path(), kModel); };
  EXPECT_THAT(find().missing, HasSubstr("owner/model is not in the cache"));
  const fs::path folder = root / "models--owner--model";
  fs::create_directories(folder / "refs");
  fs::create_directories(folder / "snapshots" / kCommit);
  fs::create_directories(folder / "blobs");
  std::ofstream(folder / "refs" / "main") << kCommit;
  const fs::path snapshot = folder / "snapshots" / kCommit;
  EXPECT_THAT(find().missing, HasSubstr("config.json is missing"));
  std::ofstream(snapshot / "config.json") << "{}";
  EXPECT_THAT(find().missing, HasSubstr("model.safetensors is missing"));
  std::ofstream(snapshot / "model.safetensors.index.json")
      << R"({"weight_map": {"a": "x.safetensors"}})";
  EXPECT_THAT(find().missing, HasSubstr("x.safetensors is missing"));
  fs::create_symlink("../../blobs/abc", snapshot / "x.safetensors");  // to nowhere
  EXPECT_THAT(find().missing, HasSubstr("x.safetensors is missing"));
  std::ofstream(folder / "blobs" / "abc") << "x";
  EXPECT_EQ(find().path, snapshot);
  hub::ModelId by_commit = kModel;
  by_commit.revision = kCommit;
  EXPECT_EQ(hub::find_cached_model(root.path(), by_commit).path, snapshot);
}

}  // namespace
}  // namespace palimpsest::test
