#include <functional>

#include "gpu/device_test.h"
#include "kernels/cuda/activation_checks.h"
#include "kernels/cuda/activation_kernels.h"
#include "kernels/ragged_batch.h"
#include "kernels/ref/attention_residual.h"
#include "kernels/ref/gated_rms_norm.h"
#include "kernels/ref/short_conv.h"
#include "palimpsest/error.h"
#include "support/numeric.h"

namespace palimpsest::test {
namespace {

/// Numbers in host memory, of either type.
struct Numbers {
  std::vector<float> wide;
  std::vector<std::uint16_t> narrow;
  Tensor tensor;

  Numbers(DType type, std::initializer_list<std::int64_t> sizes, std::uint64_t seed, double deviation = 1) {
    std::int64_t n = 1;
    for (const std::int64_t size : sizes) n *= size;
    wide = random_normal(n, seed, deviation);
    narrow = to_bf16(wide);
    tensor = Tensor::contiguous(type == DType::kF32 ? static_cast<void*>(wide.data()) : narrow.data(), type, sizes);
  }
};

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values(static_cast<std::size_t>(t.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = ref::load<double>(t, static_cast<std::int64_t>(i));
  return values;
}

class Activations : public DeviceTest {
 protected:
  std::vector<double> read(Tensor t) {
    std::vector<std::byte> host(static_cast<std::size_t>(t.bytes()));
    from_device(t, host.data());
    t.data = host.data();
    return values_of(t);
  }
};

/// |got - want| <= absolute + relative |want|, with the rounding of the result's type on top.
testing::AssertionResult close(const std::vector<double>& got, const std::vector<double>& want, DType type, double absolute, double relative) {
  const double allowed = relative + (type == DType::kBF16 ? kEpsBF16 : kEpsF32);
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= absolute + allowed * std::abs(want[i]))) return testing::AssertionFailure() << i << ": got " << got[i] << ", want " << want[i];
  }
  return testing::AssertionSuccess();
}

TEST_F(Activations, GatedRmsNorm) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const std::int64_t width : {64, 128, 256}) {
      for (const std::int64_t rows : {1, 7, 61}) {
        Numbers x(type, {rows, 3, width}, 1), gate(type, {rows, 3, width}, 2, 3), weight(DType::kF32, {width}, 3);
        std::vector<double> want(static_cast<std::size_t>(x.tensor.numel()));
        GatedRmsNormArgs args{x.tensor, weight.tensor, gate.tensor, rows == 7 ? Unary::kSilu : Unary::kSigmoid, 1e-5f, Tensor::contiguous(want.data(), DType::kF64, {rows, 3, width})};
        ref::gated_rms_norm<double>(args);
        for (Tensor* t : {&args.x, &args.weight, &args.gate}) *t = to_device(*t);
        args.y = rows == 61 ? args.x : to_device(x.tensor);  // in place, too
        cuda::gated_rms_norm(args, nullptr);
        // Sums of `width` squares of one sign, and exp to a few units in the last place.
        EXPECT_TRUE(close(read(args.y), want, type, 0, static_cast<double>(width + 64) * kEpsF32)) << width << " " << rows;
      }
    }
  }
}

class ShortConvolution : public Activations {
 protected:
  void check(DType type, std::int64_t channels, std::int64_t taps, const std::vector<std::int64_t>& lengths, std::int64_t gap, bool without_slot = false) {
    RaggedBatch batch(lengths);
    if (without_slot) batch.slot_ids[0] = -1;
    Numbers x(type, {batch.rows(), channels + gap}, 1), weight(DType::kF32, {channels, taps}, 2, 0.5), tails(type, {batch.slots(), taps - 1, channels}, 3);
    ShortConvArgs args;
    args.x = x.tensor;
    args.x.sizes[1] = channels;
    args.weight = weight.tensor;
    args.rows = batch.ragged();
    args.tails = tails.tensor;
    ShortConvArgs there = args, truth = args;
    there.x = to_device(x.tensor);
    there.x.sizes[1] = channels;
    there.weight = to_device(args.weight);
    there.tails = to_device(args.tails);
    there.rows = to_device(args.rows);
    Numbers y(type, {batch.rows(), channels}, 4);
    there.y = to_device(y.tensor);
    std::vector<double> want(static_cast<std::size_t>(y.tensor.numel())), want_tails = values_of(args.tails);
    truth.y = Tensor::contiguous(want.data(), DType::kF64, {batch.rows(), channels});
    truth.tails = Tensor::contiguous(want_tails.data(), DType::kF64, {batch.slots(), taps - 1, channels});
    ref::short_conv<double>(truth);
    cuda::short_conv(there, nullptr);
    // Products of at most 5 * 2 deviations, `taps` of them; silu at most doubles an error.
    EXPECT_TRUE(close(read(there.y), want, type, 2 * static_cast<double>((taps + 1) * taps) * 10 * kEpsF32, 64 * kEpsF32)) << channels << " channels, " << taps << " taps";
    EXPECT_EQ(read(there.tails), want_tails);
  }
};

TEST_F(ShortConvolution, MatchesTheTruth) {
  const std::vector<std::int64_t> ragged = {1, 0, 2, 3, 4, 31, 32, 33, 70, 0, 1};
  for (const DType type : {DType::kBF16, DType::kF32}) {
    check(type, 1040, 4, ragged, 0);
    check(type, 1040, 4, ragged, 16);
    check(type, 37, 4, ragged, 3);  // no pieces of 16 bytes
    check(type, 64, 2, ragged, 0);
    check(type, 64, 3, {5}, 0);
    check(type, 64, 8, ragged, 0);
    check(type, 64, 4, {9, 3}, 0, true);
  }
}

TEST_F(Activations, AttentionResidual) {
  struct Case {
    DType type;
    std::int64_t sources, rows, width;
  };
  for (const auto& [type, sources, rows, width] : {Case{DType::kBF16, 1, 3, 7168}, {DType::kBF16, 10, 300, 7168}, {DType::kBF16, 7, 5, 64}, {DType::kBF16, 9, 4, 3584},
                                                   {DType::kBF16, 16, 4, 512}, {DType::kBF16, 3, 4, 333}, {DType::kF32, 10, 5, 7168}, {DType::kF32, 2, 3, 40}}) {
    const std::int64_t few = std::min<std::int64_t>(rows, 5);
    Numbers all(type, {sources, few + 1, width}, 1), w(DType::kF32, {width}, 2, 4 / std::sqrt(static_cast<double>(width)));
    AttentionResidualArgs args;
    args.sources = all.tensor;
    args.sources.sizes[1] = rows;
    args.sources.strides[1] = rows > few ? 0 : width;  // the same token many times: more than one a block
    args.w = w.tensor;
    args.eps = 1e-5f;
    AttentionResidualArgs truth = args, there = args;
    std::vector<double> want(static_cast<std::size_t>(rows * width)), shares(static_cast<std::size_t>(rows * sources));
    truth.y = Tensor::contiguous(want.data(), DType::kF64, {rows, width});
    truth.p = Tensor::contiguous(shares.data(), DType::kF64, {rows, sources});
    if (rows > few) {
      for (std::int64_t t = 0; t < 1; ++t) ref::attention_residual_row<double>(truth, t);
      for (std::int64_t t = 1; t < rows; ++t) {
        std::copy_n(want.begin(), width, want.begin() + t * width);
        std::copy_n(shares.begin(), sources, shares.begin() + t * sources);
      }
    } else {
      ref::attention_residual<double>(truth);
    }
    Numbers y(type, {rows, width}, 3), p(DType::kF32, {rows, sources}, 4);
    const Tensor memory = to_device(all.tensor);
    there.sources.data = memory.data;
    there.w = to_device(args.w);
    there.y = to_device(y.tensor);
    there.p = to_device(p.tensor);
    cuda::attention_residual(there, nullptr);
    // Scores of a few units, from sums over a row: their errors multiply the shares.
    const double relative = 4 * std::sqrt(static_cast<double>(width)) * 16 * kEpsF32;
    EXPECT_TRUE(close(read(there.p), shares, DType::kF32, 1e-7, relative)) << sources << " x " << width;
    EXPECT_TRUE(close(read(there.y), want, type, 5 * relative, 0)) << sources << " x " << width;
  }
}

TEST(ActivationChecks, RefuseWhatTheKernelsCannotDo) {
  const auto message = [](const std::function<void()>& check) {
    try {
      check();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Numbers x(DType::kBF16, {2, 3, 96}, 1), weight(DType::kF32, {96}, 2), conv(DType::kF32, {96, 1}, 3), sources(DType::kBF16, {17, 3, 8}, 4);
  GatedRmsNormArgs norm{x.tensor, weight.tensor, x.tensor, Unary::kSigmoid, 0, x.tensor};
  EXPECT_NE(message([&] { cuda::check_gated_rms_norm(norm); }).find("heads of 96"), std::string::npos);
  ShortConvArgs short_conv;
  short_conv.x = short_conv.y = x.tensor.reshape({6, 96});
  short_conv.weight = conv.tensor;
  EXPECT_NE(message([&] { cuda::check_short_conv(short_conv); }).find("1 taps"), std::string::npos);
  AttentionResidualArgs residual;
  residual.sources = sources.tensor;
  EXPECT_NE(message([&] { cuda::check_attention_residual(residual); }).find("17 sources"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::test
