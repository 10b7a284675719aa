// Rows of logits that stay on the device: their copies, and what is said of them, against the reference on the host.

#include <cmath>
#include <limits>
#include <random>

#include "gpu/device_test.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/ref/keep_logits.h"
#include "ops/keep_logits.h"
#include "support/numeric.h"

namespace palimpsest::test {
namespace {

class KeepLogits : public DeviceTest {};

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Rows of every kind.
std::vector<float> some_logits(std::int64_t rows, std::int64_t vocab, std::uint64_t seed) {
  auto logits = random_normal(rows * vocab, seed, 3);
  std::mt19937_64 any(seed);
  for (std::int64_t n = 0; n < rows; ++n) {
    const auto row = std::span(logits).subspan(static_cast<std::size_t>(n * vocab), static_cast<std::size_t>(vocab));
    const auto at = [&] { return any() % static_cast<std::uint64_t>(vocab); };
    switch (n % 8) {
      case 1: for (float& x : row) x = std::round(x); break;                        // ties
      case 2: for (float& x : row) x = any() % 2 ? 0.0f : -0.0f; break;              // of all, more than candidates
      case 3: row[at()] = n % 16 == 3 ? NAN : kInf; row[at()] = NAN; break;
      case 4: for (float& x : row) x = any() % 3 ? -kInf : x; break;
      case 5: for (float& x : row) x *= 20; break;                                  // a long tail
      case 6: for (float& x : row) x = -1e3f - std::abs(x); row[at()] = 3e38f; row[at()] = -3e38f; break;
      case 7: for (float& x : row) x *= 0.001f; break;
    }
  }
  return logits;
}

TEST_F(KeepLogits, SaysWhatTheReferenceSays) {
  Device& device = cuda::cuda_device();
  ExecContext ctx(1, device);
  for (const std::int64_t vocab : {1, 13, 1000, 4099, 32001, 163840}) {
    for (const std::int64_t rows : {1, 3, 17, 64, 70}) {
      if (vocab > 100000 && rows > 17) continue;
      const auto logits = some_logits(rows, vocab, static_cast<std::uint64_t>(vocab + rows));
      std::vector<std::int32_t> slots;
      std::vector<double> inverse;
      for (std::int64_t n = 0; n < rows; ++n) {
        slots.push_back(static_cast<std::int32_t>(rows - n));  // slot 0 is nobody's
        inverse.push_back(rows == 3 ? 0 : std::array{1.0, 0.0, 1 / 0.6, 0.5, 1e300}[static_cast<std::size_t>(n % 5)]);
      }
      const std::int64_t stride = vocab + 5;
      std::vector<float> kept(static_cast<std::size_t>((rows + 1) * stride), -7);
      KeepLogitsArgs a;
      a.logits = to_device(Tensor::contiguous(const_cast<float*>(logits.data()), DType::kF32, {rows, vocab}));
      a.slots = Tensor::contiguous(slots.data(), DType::kI32, {rows});
      a.inverse = Tensor::contiguous(inverse.data(), DType::kF64, {rows});
      ctx.stage({&a.slots, &a.inverse});
      const Tensor whole = to_device(Tensor::contiguous(kept.data(), DType::kF32, {rows + 1, stride}));
      a.kept = whole;
      a.kept.sizes[1] = vocab;
      const Buffer room(logit_room_bytes(rows), device);
      device.fill(room.data(), 0xFF, room.bytes());
      a.room = room.view(DType::kU8, {room.bytes()});
      a.room.device = device.kind();
      std::vector<LogitFacts> facts;
      ops::keep_logits(ctx, a, facts);
      from_device(whole, kept.data());
      ASSERT_EQ(facts.size(), static_cast<std::size_t>(rows));
      for (std::int64_t n = 0; n < rows; ++n) {
        SCOPED_TRACE(testing::Message() << vocab << " logits, row " << n << " of " << rows);
        const auto row = std::span(logits).subspan(static_cast<std::size_t>(n * vocab), static_cast<std::size_t>(vocab));
        const float* copy = kept.data() + slots[static_cast<std::size_t>(n)] * stride;
        EXPECT_EQ(std::memcmp(copy, row.data(), row.size_bytes()), 0);
        EXPECT_EQ(copy[vocab], -7);
        std::vector<LogitCandidate> wanted;
        const LogitFacts want = ref::logit_facts(row, inverse[static_cast<std::size_t>(n)], wanted), got = facts[static_cast<std::size_t>(n)];
        ASSERT_EQ(got.odd, want.odd);
        if (got.odd >= 0) continue;
        EXPECT_EQ(got.best, want.best);
        EXPECT_NEAR(got.sum, want.sum, 1e-10 * want.sum);
        std::vector<LogitCandidate> candidates(got.candidates.begin(), got.candidates.end());
        std::sort(candidates.begin(), candidates.end(), [](const auto& x, const auto& y) { return x.id < y.id; });
        ASSERT_EQ(candidates.size(), wanted.size());
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          EXPECT_EQ(candidates[i].id, wanted[i].id);
          EXPECT_EQ(candidates[i].logit, wanted[i].logit);
        }
      }
      EXPECT_TRUE(std::all_of(kept.begin(), kept.begin() + stride, [](float x) { return x == -7; }));
    }
  }
}

}  // namespace
}  // namespace palimpsest::test
