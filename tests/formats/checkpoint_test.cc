#include "formats/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>

#include "formats/safetensors_file.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest::formats {
namespace {

namespace fs = std::filesystem;
using test::safetensors_file;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;

std::string shard(std::string_view name) {
  return safetensors_file(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}}})", name), 2);
}

/// Two shards with one tensor each, and an index with the given weight map.
void write_two(const TempFolder& folder, std::string_view weight_map = R"("a":"1.safetensors","b":"2.safetensors")") {
  folder.write("1.safetensors", shard("a"));
  folder.write("2.safetensors", shard("b"));
  folder.write("model.safetensors.index.json",
               fmt::format(R"({{"metadata":{{"total_size":4}},"weight_map":{{{}}}}})", weight_map));
}

std::string error_of(const fs::path& path) {
  const auto checkpoint = Checkpoint::open(path);
  return checkpoint ? "no error" : checkpoint.error().text();
}

TEST(Checkpoint, OpensTheGoldenFolderOfTwoShards) {
  const auto folder = test::project_path("tests/golden/kimi_k3_text");
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(checkpoint->shards().size(), 2u);
  EXPECT_EQ(checkpoint->tensor_bytes(), 2298144u);  // metadata.total_size of its index
  EXPECT_EQ(checkpoint->file_bytes(), fs::file_size(folder / "model-1.safetensors") +
                                          fs::file_size(folder / "model-2.safetensors"));
  const TensorEntry* head = checkpoint->find("language_model.lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(describe(*head), "BF16 [240, 64]");
  EXPECT_EQ(checkpoint->shards()[head->shard].path.filename(), "model-2.safetensors");
  const Tensor view = checkpoint->view("language_model.lm_head.weight");
  EXPECT_EQ(view.bytes(), 240 * 64 * 2);
  EXPECT_EQ(checkpoint->find("language_model.lm_head"), nullptr);
  EXPECT_FALSE(checkpoint->view("nothing").defined());
  for (const TensorEntry& entry : checkpoint->entries()) EXPECT_EQ(checkpoint->find(entry.name), &entry);
}

TEST(Checkpoint, OpensSingleFilesAndFoldersWithOne) {
  const auto file = test::project_path("tests/golden/kimi_k3_text/golden.safetensors");
  const auto golden = Checkpoint::open(file);
  ASSERT_TRUE(golden) << golden.error().text();
  EXPECT_EQ(golden->view("seq0.input_ids").dtype, DType::kI64);

  const auto demo = Checkpoint::open(test::project_path("models/demo"));
  ASSERT_TRUE(demo) << demo.error().text();
  EXPECT_EQ(demo->shards().size(), 1u);

  const TempFolder folder;
  folder.write("other.safetensors", shard("a"));
  EXPECT_TRUE(Checkpoint::open(folder.path()));
  folder.write("second.safetensors", shard("a"));
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("'other.safetensors'"), HasSubstr("'second.safetensors'")));
}

TEST(Checkpoint, OpensEverySharedGoldenFile) {
  const auto root = test::shared_path("golden");
  if (root.empty()) GTEST_SKIP() << "shared data absent: golden";
  int files = 0;
  for (const auto& item : fs::recursive_directory_iterator(root)) {
    if (item.path().extension() != ".safetensors") continue;
    const auto checkpoint = Checkpoint::open(item.path());
    EXPECT_TRUE(checkpoint) << checkpoint.error().text();
    ++files;
  }
  EXPECT_GT(files, 10);
}

TEST(Checkpoint, ViewsMayBeUnaligned) {
  const TempFolder folder;
  folder.write("model.safetensors",
               safetensors_file(R"({"odd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                R"("x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}} )", 9));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  float value = 1;
  std::memcpy(&value, checkpoint->view("x").data, sizeof value);
  EXPECT_EQ(value, 0);
}

TEST(Checkpoint, AcceptsTwoAgreeingShards) {
  const TempFolder folder;
  write_two(folder);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(checkpoint->entries().size(), 2u);
}

TEST(Checkpoint, NamesMissingFilesAndFolders) {
  const TempFolder folder;
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr(folder.path().string()), HasSubstr("model.safetensors")));
  EXPECT_THAT(error_of(folder / "no"), AllOf(HasSubstr("/no'"), HasSubstr("No such file")));
  write_two(folder);
  fs::remove(folder / "2.safetensors");
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("shard '2.safetensors' is missing"), HasSubstr("1 of 2")));
}

TEST(Checkpoint, DoesNotWaitForPipes) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(error_of(folder.path()), HasSubstr("not a regular file"));
}

TEST(Checkpoint, NamesTheTruncatedShard) {
  const TempFolder folder;
  write_two(folder);
  fs::resize_file(folder / "2.safetensors", fs::file_size(folder / "2.safetensors") - 1);
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("2.safetensors: tensor 'b'"), HasSubstr("[0, 2]"), HasSubstr("1 bytes")));
}

TEST(Checkpoint, RefusesATensorInTwoShards) {
  const TempFolder folder;
  write_two(folder);
  folder.write("2.safetensors", shard("a"));
  EXPECT_THAT(error_of(folder.path()),
              AllOf(HasSubstr("'a' is in two shards"), HasSubstr("'1.safetensors'"), HasSubstr("'2.safetensors'")));
}

TEST(Checkpoint, HoldsIndexAndShardsAgainstEachOther) {
  const TempFolder folder;
  write_two(folder, R"("a":"1.safetensors","b":"2.safetensors","c":"2.safetensors")");
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr("'c'"), HasSubstr("'2.safetensors'")));
  write_two(folder, R"("a":"2.safetensors","b":"1.safetensors")");
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("'a' should be in shard '2.safetensors', but is in '1.safetensors'")));
  write_two(folder, R"("a":"1.safetensors","b":"2.safetensors","a":"1.safetensors")");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("'a' occurs twice"));
  write_two(folder);
  folder.write("2.safetensors",
               safetensors_file(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"c":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2));
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("'c'"), HasSubstr("'2.safetensors'"), HasSubstr("not listed")));
}

TEST(Checkpoint, RefusesMalformedIndexes) {
  const TempFolder folder;
  const auto with = [&](std::string_view text) {
    folder.write("model.safetensors.index.json", text);
    return error_of(folder.path());
  };
  EXPECT_THAT(with(""), HasSubstr("model.safetensors.index.json: index"));
  EXPECT_THAT(with("[]"), HasSubstr("index"));
  EXPECT_THAT(with("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(with(R"({"weight_map":{}})"), HasSubstr("no tensors"));
  EXPECT_THAT(with(R"({"weight_map":[]})"), HasSubstr("weight_map"));
  EXPECT_THAT(with(R"({"weight_map":{"a":1}})"), HasSubstr("'a'"));
  EXPECT_THAT(with(R"({"weight_map":{"a":"x"},"weight_map":{"a":"x"}})"), HasSubstr("twice"));
  EXPECT_THAT(with(R"({"weight_map":{"a":"x")"), HasSubstr("index"));
}

TEST(Checkpoint, KeepsShardNamesInsideTheFolder) {
  const TempFolder outside, folder;
  outside.write("1.safetensors", shard("a"));
  for (const std::string& name : {std::string("../1.safetensors"), outside.path().string() + "/1.safetensors",
                                  std::string(".."), std::string("."), std::string(), std::string("sub/1.safetensors")}) {
    write_two(folder, fmt::format(R"("a":"{}","b":"2.safetensors")", name));
    EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("'" + name + "'"), HasSubstr("plain file name"))) << name;
  }
  write_two(folder, R"("a":"1.safetensors\u0000.txt","b":"2.safetensors")");
  EXPECT_THAT(error_of(folder.path()), HasSubstr("plain file name"));

  write_two(folder);
  fs::remove(folder / "1.safetensors");
  fs::create_symlink(outside / "1.safetensors", folder / "1.safetensors");
  EXPECT_THAT(error_of(folder.path()), AllOf(HasSubstr("'1.safetensors'"), HasSubstr("outside")));
  fs::remove(folder / "1.safetensors");
  folder.write("real", shard("a"));
  fs::create_symlink("real", folder / "1.safetensors");
  EXPECT_TRUE(Checkpoint::open(folder.path())) << error_of(folder.path());
}

TEST(Checkpoint, FollowsLinksOfTheHubCache) {
  const TempFolder repo;
  fs::create_directories(repo / "snapshots/main");
  fs::create_directories(repo / "blobs");
  repo.write("blobs/123", shard("a"));
  repo.write("secret", shard("a"));
  fs::create_symlink("../../blobs/123", repo / "snapshots/main/model.safetensors");
  EXPECT_TRUE(Checkpoint::open(repo / "snapshots/main")) << error_of(repo / "snapshots/main");
  fs::remove(repo / "snapshots/main/model.safetensors");
  fs::create_symlink("../../secret", repo / "snapshots/main/model.safetensors");
  EXPECT_THAT(error_of(repo / "snapshots/main"), HasSubstr("outside"));
}

/// As many tensors with the same names as the published 2.8T model, one to four bytes each, in 96 shards.
TEST(Checkpoint, OpensHalfAMillionTensorsInNinetySixShards) {
  std::vector<std::string> names;
  for (int layer = 1; layer <= 92; ++layer) {
    for (int expert = 0; expert < 896; ++expert) {
      for (const char* leaf : {"w1.weight_packed", "w1.weight_scale", "w2.weight_packed", "w2.weight_scale",
                               "w3.weight_packed", "w3.weight_scale"}) {
        names.push_back(fmt::format("language_model.model.layers.{}.block_sparse_moe.experts.{}.{}", layer, expert, leaf));
      }
    }
  }
  while (names.size() < 497'052) names.push_back(fmt::format("language_model.model.layers.{}.input_layernorm.weight", names.size()));

  const TempFolder folder;
  std::string weight_map;
  const std::size_t per_shard = (names.size() + 95) / 96;
  for (std::size_t s = 0; s < 96; ++s) {
    const std::string file = fmt::format("model-{:05}-of-000096.safetensors", s + 1);
    std::string header = "{";
    std::size_t offset = 0;
    for (std::size_t i = s * per_shard; i < std::min(names.size(), (s + 1) * per_shard); ++i) {
      const std::size_t bytes = 1 + i % 4;
      header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[{},1],"data_offsets":[{},{}]}})", header.size() > 1 ? "," : "",
                            names[i], bytes, offset, offset + bytes);
      weight_map += fmt::format("{}\"{}\":\"{}\"", weight_map.empty() ? "" : ",\n", names[i], file);
      offset += bytes;
    }
    folder.write(file, safetensors_file(header + "}", offset));
  }
  folder.write("model.safetensors.index.json", "{\"weight_map\":{" + weight_map + "}}");

  const auto start = std::chrono::steady_clock::now();
  const auto checkpoint = Checkpoint::open(folder.path());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(checkpoint) << checkpoint.error().text();
  EXPECT_EQ(checkpoint->entries().size(), 497'052u);
  EXPECT_EQ(checkpoint->shards().size(), 96u);
  EXPECT_LE(sizeof(TensorEntry), 80u) << "half a million of them";
  for (std::size_t i = 0; i < names.size(); i += 1009) {
    ASSERT_NE(checkpoint->find(names[i]), nullptr) << names[i];
    EXPECT_EQ(checkpoint->find(names[i])->shard, i / per_shard);
  }
  std::printf("opened %zu tensors in %.2f s\n", checkpoint->entries().size(), seconds.count());
}

}  // namespace
}  // namespace palimpsest::formats
