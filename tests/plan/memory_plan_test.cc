#include "plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "palimpsest/error.h"
#include "plan/cost.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::shared_ptr<const Model> demo_model() {
  static const auto model = Model::load(test::project_path("models/demo"));
  return model;
}

TEST(MemoryPlan, ContextIsCutToWhatFits) {
  const SessionOptions options = {.threads = 1, .ubatch = 64};
  const MemoryPlan roomy = plan_memory(*demo_model(), options, std::int64_t{1} << 40);
  EXPECT_EQ(roomy.context, demo_model()->config().max_position_embeddings);
  const MemoryPlan tight =
      plan_memory(*demo_model(), options, roomy.total() - roomy.lists + (200 << 20));
  EXPECT_EQ(tight.context, (100 << 20) / tight.list_per_token);  // half of what is left
  const MemoryPlan none = plan_memory(*demo_model(), options, 0);
  EXPECT_EQ(none.context, 4096);
}

TEST(MemoryPlan, SaysHowMuchIsNeededAndHowMuchThereIs) {
  const MemoryPlan plan =
      plan_memory(*demo_model(), {.threads = 1, .context = 1 << 20}, std::int64_t{1} << 40);
  EXPECT_NO_THROW(require_memory(plan, plan.total()));
  try {
    require_memory(plan, std::int64_t{1} << 30);
    FAIL() << "a plan of " << plan.total() << " bytes fits into a gibibyte";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("not enough memory"), HasSubstr("1.00 GiB available"),
                                    HasSubstr("cache of 1048576 tokens"), HasSubstr("-c")));
  }
}

TEST(MemoryPlan, LogitsOfAllRowsStayUnder64Mebibytes) {
  ModelConfig config;
  config.vocab_size = 163840;
  EXPECT_EQ(score_rows(config, 512), 102);
  config.vocab_size = 4096;
  EXPECT_EQ(score_rows(config, 512), 512);
  config.vocab_size = 1 << 24;
  EXPECT_EQ(score_rows(config, 512), 16);
  EXPECT_EQ(score_rows(config, 5), 5);
}

TEST(Cost, OfTheDemoModelAddsUp) {
  const DecodeCost cost = decode_cost(*demo_model(), 1000, DType::kBF16);
  // README of the demo model: 13.6 M parameters beside the experts, of which the embedding table
  // (4096 x 384) is not read whole.
  EXPECT_NEAR(static_cast<double>(cost.weights),
              2 * (13.6e6 - 4096 * 384) + 7 * 4 * 3 * 192 * 192 * (0.5 + 1.0 / 32), 0.2e6);
  EXPECT_EQ(cost.states, 2 * 6 * (3 * 128 * 128 + 3 * 3 * 384) * 4);
  EXPECT_EQ(cost.lists, 1000 * 2 * 320 * 2);
  EXPECT_GT(prefill_flops(demo_model()->config(), 512),
            511 * prefill_flops(demo_model()->config(), 2) / 2 - 1e9);
}

}  // namespace
}  // namespace palimpsest
