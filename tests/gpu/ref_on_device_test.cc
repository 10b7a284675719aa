// The references give the same answers on the device as on the host. In double, with sums in the same order and without contracted
// multiply-adds, only exp and sqrt may differ: by an ulp or two, however few terms a sum has.

#include <cmath>

#include "gpu/device_test.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/latent_case.h"
#include "kernels/ref/matmul.h"
#include "kernels/ref/page_memory.h"
#include "kernels/ref/rms_norm.h"

namespace palimpsest::test {
namespace {

class RefOnDevice : public DeviceTest {};

/// Worst |a - b| relative to the largest |b|.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst / largest;
}

constexpr double kFewUlps = 64 * 0x1p-53;

TEST_F(RefOnDevice, MatmulIsTheSameBits) {
  auto x = random_normal(5 * 64, 1);
  auto w = to_bf16(random_normal(7 * 64, 2));
  std::vector<double> host(35), device(35);
  MatmulArgs args{Tensor::contiguous(x.data(), DType::kF32, {5, 64}), {}, Tensor::contiguous(host.data(), DType::kF64, {5, 7})};
  args.w.dense = Tensor::contiguous(w.data(), DType::kBF16, {7, 64});
  ref::matmul<double>(args);
  const MatmulArgs there{to_device(args.x), to_device(args.w), to_device(Tensor::contiguous(device.data(), DType::kF64, {5, 7}))};
  cuda::ref_matmul(there, DType::kF64);
  from_device(there.y, device.data());
  EXPECT_EQ(device, host);
}

TEST_F(RefOnDevice, RmsNorm) {
  auto x = random_normal(6 * 33, 3), weight = random_normal(33, 4);
  std::vector<double> host(6 * 33), device(6 * 33);
  const RmsNormArgs args{Tensor::contiguous(x.data(), DType::kF32, {6, 33}), Tensor::contiguous(weight.data(), DType::kF32, {33}), 1e-5f,
                         Tensor::contiguous(host.data(), DType::kF64, {6, 33})};
  ref::rms_norm<double>(args);
  const RmsNormArgs there{to_device(args.x), to_device(args.weight), args.eps,
                          to_device(Tensor::contiguous(device.data(), DType::kF64, {6, 33}))};
  cuda::ref_rms_norm(there, DType::kF64);
  from_device(there.y, device.data());
  EXPECT_LE(distance(device, host), kFewUlps);
}

TEST_F(RefOnDevice, PageMemory) {
  constexpr std::int64_t kT = 9, kH = 2, kK = 8, kV = 5;
  auto q = random_normal(kT * kH * kK, 5, 0.3), k = random_normal(kT * kH * kK, 6, 0.3), v = random_normal(kT * kH * kV, 7);
  auto g = random_uniform(kT * kH * kK, 8, -2, -0.01), beta = random_uniform(kT * kH, 9, 0, 1);
  std::vector<double> pages(2 * kH * kV * kK, 0.1), device_pages = pages, host(kT * kH * kV), device(host.size());
  std::vector<std::int64_t> cu = {0, 4, kT}, past = {0, 0};
  std::vector<std::int32_t> slots = {1, 0};
  PageMemoryArgs args;
  args.q = Tensor::contiguous(q.data(), DType::kF32, {kT, kH, kK});
  args.k = Tensor::contiguous(k.data(), DType::kF32, {kT, kH, kK});
  args.v = Tensor::contiguous(v.data(), DType::kF32, {kT, kH, kV});
  args.g = Tensor::contiguous(g.data(), DType::kF32, {kT, kH, kK});
  args.beta = Tensor::contiguous(beta.data(), DType::kF32, {kT, kH});
  args.pages = Tensor::contiguous(pages.data(), DType::kF64, {2, kH, kV, kK});
  args.rows = {Tensor::contiguous(cu.data(), DType::kI64, {3}), Tensor::contiguous(slots.data(), DType::kI32, {2})};
  args.past = Tensor::contiguous(past.data(), DType::kI64, {2});
  args.o = Tensor::contiguous(host.data(), DType::kF64, {kT, kH, kV});
  PageMemoryArgs there = args;
  for (Tensor* t : {&there.q, &there.k, &there.v, &there.g, &there.beta, &there.pages, &there.past, &there.o}) *t = to_device(*t);
  there.rows = to_device(args.rows);
  ref::page_memory<double>(args);
  cuda::ref_page_memory(there, DType::kF64);
  from_device(there.o, device.data());
  from_device(there.pages, device_pages.data());
  EXPECT_LE(distance(device, host), kFewUlps);
  EXPECT_LE(distance(device_pages, pages), kFewUlps);
}

TEST_F(RefOnDevice, LatentAttention) {
  for (const DType list : {DType::kF32, DType::kBF16}) {
    for (const WeightForm kv_b : {WeightForm::kF32, WeightForm::kBF16, WeightForm::kMxfp4}) {
      LatentCase c({.heads = 3, .block_tokens = 24, .list = list, .kv_b = kv_b}, {{3, 30}, {0, 0}, {50, 2}});
      LatentAttentionArgs args = c.args();
      std::vector<double> host(static_cast<std::size_t>(args.o.numel())), device(host.size());
      args.o = Tensor::contiguous(host.data(), DType::kF64, {args.o.size(0), args.o.size(1), args.o.size(2)});
      LatentAttentionArgs there = args;
      for (Tensor* t : {&there.q, &there.list.blocks, &there.list.table, &there.past, &there.o}) *t = to_device(*t);
      there.kv_b = to_device(args.kv_b);
      there.rows = to_device(args.rows);
      ref::latent_attention<double>(args);
      cuda::ref_latent_attention(there, 52, DType::kF64);
      from_device(there.o, device.data());
      EXPECT_LE(distance(device, host), kFewUlps);
      cuda::ref_latent_attention(there, 52, DType::kF32);
      from_device(there.o, device.data());
      const LatentTruth truth = latent_truth(c.args());
      EXPECT_TRUE(within_bound(std::vector<float>(device.begin(), device.end()), host, truth.magnitude, truth.bound));
    }
  }
}

TEST(Devices, AreListedOrAReasonIsGiven) {
  const cuda::DeviceList list = cuda::query_devices();
  EXPECT_EQ(list.devices.empty(), !list.reason.empty()) << list.reason;
  for (const auto& device : list.devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.memory_total, 0);
    EXPECT_LE(device.memory_free, device.memory_total);
    std::printf("%s: %.1f GiB, compute capability %d.%d\n", device.name.c_str(), static_cast<double>(device.memory_total) / (1 << 30),
                device.major, device.minor);
  }
}

}  // namespace
}  // namespace palimpsest::test
