// Weights on a device: the same bytes, whatever their form, and one copy of what is named twice.

#include "model/weight_upload.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "model/weight_loader.h"
#include "model/weight_source.h"
#include "model/weight_visit.h"
#include "support/fake_device.h"
#include "support/shared_data.h"

namespace palimpsest {
namespace {

/// All tensors of a model, in a fixed order; blocks as bytes.
std::vector<Tensor> tensors_of(Weights& weights, std::vector<std::vector<ExpertMatrices>>& experts) {
  std::vector<Tensor> all;
  const auto matrix = [&](Matrix& m) {
    for (const Tensor& t : {m.dense, m.mx.codes, m.mx.scales, m.int8.codes, m.int8.scales}) all.push_back(t);
    if (m.is_blocks()) all.push_back(Tensor::contiguous(m.blocks.data, DType::kU8, {m.blocks.rows, m.blocks.row_bytes}, m.blocks.device));
  };
  visit_weights(weights, matrix, [&](Tensor& t) { all.push_back(t); });
  for (auto& layer : experts) {
    for (ExpertMatrices& e : layer) {
      for (Matrix* m : {&e.w1, &e.w3, &e.w2}) matrix(*m);
    }
  }
  return all;
}

class WeightUploads : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    opened_ = open_model(test::project_path(GetParam()));
    loader_ = std::make_unique<WeightLoader>(*opened_.config, *opened_.source);
    value_or_throw(opened_.source->census());
    for (std::size_t i = 0; i < opened_.source->specs().size(); ++i) loader_->place(i, true);
    loader_->finish();
  }
  OpenedModel opened_;
  std::unique_ptr<WeightLoader> loader_;
};
INSTANTIATE_TEST_SUITE_P(Models, WeightUploads, testing::Values("tests/golden/kimi_k3_text", "models/demo"));

TEST_P(WeightUploads, LeaveTheSameBytesThere) {
  const std::vector<Tensor> before = tensors_of(loader_->weights, loader_->experts);
  WeightUpload upload(loader_->weights, loader_->experts);
  test::FakeDevice device;
  std::int64_t last = 0;
  const Buffer memory = upload.run(device, [&](std::int64_t done, std::int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, upload.bytes());
    last = done;
  }, {}, opened_.source->mappings());
  EXPECT_EQ(last, upload.bytes());
  const std::vector<Tensor> after = tensors_of(loader_->weights, loader_->experts);
  ASSERT_EQ(after.size(), before.size());
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    ASSERT_EQ(after[i].defined(), before[i].defined()) << i;
    if (!before[i].defined()) continue;
    EXPECT_EQ(after[i].device, DeviceKind::kCuda);
    const auto* at = after[i].as<const std::byte>();
    EXPECT_TRUE(at >= memory.data() && at + after[i].bytes() <= memory.data() + memory.bytes()) << i;
    EXPECT_TRUE(std::equal(at, at + after[i].bytes(), before[i].as<const std::byte>())) << i;
    bytes += before[i].bytes();
  }
  // Padding aside, no more than the weights take; less where the head is the embedding.
  EXPECT_LE(memory.bytes(), bytes + 256 * static_cast<std::int64_t>(before.size()));
  if (opened_.config->tie_word_embeddings) {
    EXPECT_EQ(loader_->weights.lm_head.dense.data, loader_->weights.embed_tokens.dense.data);
  }
}

TEST_P(WeightUploads, WithoutRoomNothingIsChanged) {
  const std::vector<Tensor> before = tensors_of(loader_->weights, loader_->experts);
  WeightUpload upload(loader_->weights, loader_->experts);
  test::FakeDevice device(upload.bytes() - 1);
  try {
    upload.run(device, {});
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(error.text().find(std::to_string(upload.bytes())), std::string::npos) << error.text();
  }
  const std::vector<Tensor> after = tensors_of(loader_->weights, loader_->experts);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].data, before[i].data);
}

}  // namespace
}  // namespace palimpsest
