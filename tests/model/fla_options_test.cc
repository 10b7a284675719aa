// Options of the flash-linear-attention families that no published fixture has, against a statement of the layers in float64
// (tools/record_fla_options.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/forward_runner.h"
#include "support/golden.h"
#include "support/shared_data.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

using test::ForwardRunner;
using test::Golden;

constexpr const char* kCases[] = {"linear_normalized", "linear_t2r_sums", "linear_hedgehog", "linear_dpfp",  "linear_grouped",
                                  "delta_elu_sum",     "delta_relu_no_conv", "delta_identity_negative", "delta_no_beta",
                                  "gated_grouped",     "gated_plain",     "kda_grouped",     "kda_safe_no_conv"};

class FlaOptions : public testing::TestWithParam<const char*> {
 protected:
  FlaOptions()
      : folder_(test::project_path(std::string("tests/golden/fla_options/") + GetParam())),
        model_(test::load_model(folder_)),
        golden_(folder_ / "golden.safetensors"),
        ids_(golden_.ids("input_ids")) {}

  /// The recording code in float32 differs from its float64 run by `error`. Our sums run in other orders and in chunks: ten times that.
  void expect_recorded(const std::vector<float>& got, const std::string& what) {
    const auto worst = test::worst_difference(got, golden_.floats("logits"));
    const double bound = 10 * static_cast<double>(golden_.floats("error")[0]);
    EXPECT_LE(worst.value, bound) << what << ", element " << worst.index << ", largest value " << worst.largest;
  }

  std::filesystem::path folder_;
  std::shared_ptr<const Model> model_;
  Golden golden_;
  std::vector<std::int32_t> ids_;
};
INSTANTIATE_TEST_SUITE_P(Cases, FlaOptions, testing::ValuesIn(kCases), [](const auto& option) { return std::string(option.param); });

TEST_P(FlaOptions, LogitsMatchTheStatementInWholeAndInSteps) {
  for (const std::size_t chunk : {512, 1, 5, 17}) {
    ForwardRunner runner(model_);
    expect_recorded(runner.run(ids_, chunk), "chunks of " + std::to_string(chunk));
  }
}

TEST_P(FlaOptions, BatchMatesAndThreadsChangeNoBit) {
  ForwardRunner alone(model_, 1), together(model_, 3);
  const auto want = alone.run(ids_, 512);
  const std::vector<std::int32_t> slots = {together.states.acquire(), together.states.acquire()};
  const std::vector<std::vector<std::int32_t>> batch = {{3, 1, 2}, ids_};
  const auto got = together.pass(batch, slots);
  EXPECT_EQ(std::vector<float>(got.end() - static_cast<std::ptrdiff_t>(want.size()), got.end()), want);
}

/// What the config of a case becomes after one change, with its error.
std::string refusal(const std::string& name, const std::string& key, const nlohmann::json& value) {
  std::ifstream file(test::project_path("tests/golden/fla_options/" + name + "/config.json"));
  nlohmann::json config = nlohmann::json::parse(file);
  config[key] = value;
  try {
    parse_model_config(config.dump());
    return "accepted";
  } catch (const Error& error) {
    return error.text();
  }
}

TEST(FlaRefusals, NameTheKeyTheValueAndWhatIsKnown) {
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(refusal("linear_dpfp", "feature_map", "taylor"), AllOf(HasSubstr("feature_map: 'taylor'"), HasSubstr("t2r, hedgehog, dpfp")));
  EXPECT_THAT(refusal("linear_t2r_sums", "tie_feature_map_qk", true), HasSubstr("tie_feature_map_qk: true is not supported"));
  EXPECT_THAT(refusal("linear_grouped", "num_kv_heads", 3), HasSubstr("4 is not a multiple of num_kv_heads = 3"));
  EXPECT_THAT(refusal("delta_elu_sum", "qk_norm", "max"), AllOf(HasSubstr("qk_norm: 'max'"), HasSubstr("l2, sum")));
  EXPECT_THAT(refusal("delta_elu_sum", "conv_bias", true), HasSubstr("conv_bias: true is not supported"));
  EXPECT_THAT(refusal("delta_no_beta", "allow_neg_eigval", true), HasSubstr("allow_neg_eigval: not supported without use_beta"));
  EXPECT_THAT(refusal("kda_grouped", "num_v_heads", 5), HasSubstr("5 is not a multiple of num_heads = 2"));
  EXPECT_THAT(refusal("kda_grouped", "attn", {{"layers", {1}}, {"num_heads", 2}}), HasSubstr("hybrids with softmax attention are not supported"));
  EXPECT_EQ(refusal("kda_grouped", "num_v_heads", 2), "accepted");
}

TEST(FlaStates, AreAsLargeAsTheirPages) {
  const auto page = [](const char* name) {
    const auto model = test::load_model(test::project_path(std::string("tests/golden/fla_options/") + name));
    return state_spec(model->config(), DType::kF32).entries.at(0).shape;
  };
  using testing::ElementsAre;
  EXPECT_THAT(page("linear_normalized"), ElementsAre(2, 3, 4)) << "two values and the normaliser";
  EXPECT_THAT(page("linear_hedgehog"), ElementsAre(2, 5, 8)) << "twice as many features as key channels";
  EXPECT_THAT(page("linear_dpfp"), ElementsAre(2, 8, 32)) << "eight times";
  EXPECT_THAT(page("kda_grouped"), ElementsAre(4, 8, 4)) << "a page for each value head";
}

}  // namespace
}  // namespace palimpsest
