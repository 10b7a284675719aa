// What names a model: a change of any weight matrix, routed experts included, gives another name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "palimpsest/error.h"
#include "palimpsest/session.h"
#include "runtime/session_file.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

constexpr const char* kModel = "tests/golden/kimi_k3_text";

/// The tiny model in a folder of its own, whose files can be changed.
class CopiedModel {
 public:
  CopiedModel() {
    for (const auto& entry : std::filesystem::directory_iterator(test::project_path(kModel))) {
      folder_.copy(entry.path());
      if (entry.path().extension() == ".safetensors" &&
          entry.path().filename().string().starts_with("model-"))
        shards_.push_back(entry.path().filename().string());
    }
  }

  /// Names of tensors that hold the numbers of matrices.
  std::vector<std::string> matrices(const std::string& part) const {
    std::vector<std::string> names;
    for (const auto& [name, place] : places()) {
      if (name.find(part) != std::string::npos && name.find("_scale") == std::string::npos &&
          name.find("shape") == std::string::npos)
        names.push_back(name);
    }
    return names;
  }

  /// Changes one bit at the start of the middle row of a tensor.
  void change(const std::string& name) const {
    const Place place = places().at(name);
    std::string bytes = test::read_file(folder_ / place.shard);
    const std::size_t row = (place.end - place.begin) / place.rows;
    bytes[place.begin + place.rows / 2 * row] ^= 1;
    folder_.write(place.shard, bytes);
  }

  std::shared_ptr<const Model> load() const { return Model::load(folder_.path()); }
  ModelFingerprint fingerprint() const { return model_fingerprint(*load()); }

 private:
  struct Place {
    std::string shard;
    std::size_t begin = 0, end = 0, rows = 1;
  };
  std::map<std::string, Place> places() const {
    std::map<std::string, Place> found;
    for (const std::string& shard : shards_) {
      const std::string bytes = test::read_file(folder_ / shard);
      std::uint64_t size = 0;
      std::memcpy(&size, bytes.data(), sizeof(size));
      const auto header = nlohmann::json::parse(bytes.substr(8, size));
      for (const auto& [name, tensor] : header.items()) {
        if (name == "__metadata__" || tensor["shape"].size() != 2) continue;
        found[name] = {shard, 8 + size + tensor["data_offsets"][0].get<std::size_t>(),
                       8 + size + tensor["data_offsets"][1].get<std::size_t>(),
                       tensor["shape"][0].get<std::size_t>()};
      }
    }
    return found;
  }

  test::TempFolder folder_;
  std::vector<std::string> shards_;
};

TEST(SessionOrigin, HasAFormOfActivationsWhereWeightsAreQuantised) {
  const auto mxfp4 = Model::load(test::project_path(kModel)),
             dense = Model::load(test::project_path("tests/golden/fla_options/linear_normalized"));
  for (const Activations form : {Activations::kF32, Activations::kQ16, Activations::kQ8, Activations::kMxfp8}) {
    EXPECT_EQ(session_origin(*mxfp4, form).model, model_fingerprint(*mxfp4));
    EXPECT_EQ(session_origin(*mxfp4, form).activations, form);
    EXPECT_FALSE(session_origin(*dense, form).activations);
  }
}

TEST(ModelFingerprint, IsTheSameForACopy) {
  EXPECT_EQ(CopiedModel().fingerprint(),
            model_fingerprint(*Model::load(test::project_path(kModel))));
}

TEST(ModelFingerprint, IsTheSameForWeightsThatVisitADevice) {
  const auto path = test::project_path(kModel);
  for (const WeightOffload& offload : {WeightOffload{0, false}, {2, true}})
    EXPECT_EQ(model_fingerprint(*Model::load(path, {.offload = offload})), model_fingerprint(*Model::load(path)));
}

TEST(ModelFingerprint, ChangesWithEveryMatrixOfARoutedExpert) {
  const CopiedModel model;
  const std::vector<std::string> experts = model.matrices(".experts.");
  ASSERT_GT(experts.size(), 8u);
  std::vector<ModelFingerprint> seen = {model.fingerprint()};
  for (const std::string& name : experts) {
    model.change(name);
    const ModelFingerprint now = model.fingerprint();
    EXPECT_THAT(seen, testing::Not(testing::Contains(now))) << name;
    seen.push_back(now);
  }
}

TEST(ModelFingerprint, ASessionOfAModelWithOtherExpertsIsRefused) {
  const test::TempFolder folder;
  const CopiedModel model;
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  Session before(model.load(), {.threads = 1, .context = 64});
  before.append(prompt);
  before.save(folder / "s");
  Session same(model.load(), {.threads = 1, .context = 64});
  same.restore(folder / "s");
  EXPECT_EQ(same.length(), 3);

  const CopiedModel other;
  other.change(other.matrices(".experts.").back());
  Session after(other.load(), {.threads = 1, .context = 64});
  try {
    after.restore(folder / "s");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidRequest);
    EXPECT_THAT(error.text(), testing::HasSubstr("another model"));
  }
}

}  // namespace
}  // namespace palimpsest
