#include <functional>

#include "gpu/device_test.h"
#include "kernels/cuda/latent_checks.h"
#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/latent_case.h"
#include "kernels/ref/latent_decode.h"
#include "palimpsest/error.h"

namespace palimpsest::test {
namespace {

constexpr std::int64_t kKeys = 192, kValues = 128;

struct DecodeOptions {
  std::int64_t heads = 12;
  std::int64_t block_tokens = 64;
  DType input = DType::kBF16, output = DType::kF32;
  bool gate = true;
  double spread = 1;
  DType list = DType::kBF16;
};

/// A problem in host memory; sequence n depends on its index first_sequence + n alone.
class DecodeCase {
 public:
  DecodeCase(const DecodeOptions& options, const std::vector<LatentRows>& batch, std::int64_t first_sequence = 0)
      : options_(options),
        latent_({.heads = options.heads, .dn = 128, .p = 64, .dv = kValues, .r = 512, .block_tokens = options.block_tokens, .list = options.list, .kv_b = WeightForm::kBF16, .q8_group = 192},
                batch, first_sequence, options.spread) {
    const LatentAttentionArgs base = latent_.args();
    rows_ = latent_.rows();
    for (std::size_t n = 0; n < batch.size(); ++n) {
      longest_ = std::max(longest_, batch[n].past + batch[n].rows);
      const auto gate = random_normal(batch[n].rows * options.heads * kValues, static_cast<std::uint64_t>(first_sequence) + n + 1000);
      gate_.insert(gate_.end(), gate.begin(), gate.end());
    }
    gate16_ = to_bf16(gate_);
    q16_ = to_bf16(latent_.q());
    o_.resize(static_cast<std::size_t>(rows_ * options.heads * kValues));
    args.q = input(latent_.q().data(), q16_.data(), kKeys);
    args.kv_b = base.kv_b.dense;
    args.list = base.list;
    args.cu_seqlens = base.rows.cu_seqlens;
    args.slots = base.rows.slots;
    args.past = base.past;
    args.scale = 1 / std::sqrt(static_cast<float>(kKeys));
    if (options.gate) args.gate = input(gate_.data(), gate16_.data(), kValues);
    args.o = Tensor::contiguous(o_.data(), options.output, {rows_, options.heads, kValues});
  }

  LatentDecodeArgs args;
  std::int64_t longest() const { return longest_; }
  LatentCase& latent() { return latent_; }
  std::vector<std::uint16_t>& q16() { return q16_; }

 private:
  Tensor input(float* wide, std::uint16_t* narrow, std::int64_t width) const {
    void* data = options_.input == DType::kBF16 ? static_cast<void*>(narrow) : wide;
    return Tensor::contiguous(data, options_.input, {rows_, options_.heads, width});
  }

  DecodeOptions options_;
  LatentCase latent_;
  std::int64_t rows_ = 0, longest_ = 1;
  std::vector<float> gate_, o_;
  std::vector<std::uint16_t> gate16_, q16_;
};

class LatentDecode : public DeviceTest {
 protected:
  LatentDecodeArgs there(const LatentDecodeArgs& a, std::int64_t max_length) {
    LatentDecodeArgs t = a;
    for (Tensor* x : {&t.q, &t.kv_b, &t.list.blocks, &t.list.table, &t.cu_seqlens, &t.slots, &t.past, &t.gate, &t.o}) *x = to_device(*x);
    const std::int64_t bytes = cuda::latent_decode_workspace(a.q.size(0), a.q.size(1), max_length);
    memory_.emplace_back(bytes);
    const std::vector<std::uint8_t> poison(static_cast<std::size_t>(bytes), 0xff);  // NaN
    memory_.back().copy_from_host(poison.data(), bytes);
    t.workspace = Tensor::contiguous(memory_.back().data(), DType::kU8, {bytes}, DeviceKind::kCuda);
    return t;
  }
  std::vector<double> read(const Tensor& t) {
    std::vector<std::byte> host(static_cast<std::size_t>(t.bytes()));
    from_device(t, host.data());
    Tensor copy = t;
    copy.data = host.data();
    std::vector<double> values(static_cast<std::size_t>(t.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = ref::load<double>(copy, static_cast<std::int64_t>(i));
    return values;
  }
  std::vector<double> run(const LatentDecodeArgs& a, std::int64_t max_length) {
    const LatentDecodeArgs t = there(a, max_length);
    cuda::latent_decode(t, max_length, nullptr);
    return read(t.o);
  }
  std::vector<double> truth(const LatentDecodeArgs& a, std::int64_t max_length) {
    LatentDecodeArgs t = there(a, max_length);
    std::vector<double> o(static_cast<std::size_t>(a.o.numel()));
    t.o = to_device(Tensor::contiguous(o.data(), DType::kF64, {a.o.size(0), a.o.size(1), a.o.size(2)}));
    cuda::ref_latent_decode(t, max_length);
    return read(t.o);
  }
};

/// Worst RMS ratio of a row and head; infinite where a number is not finite.
double worst_ratio(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); i += kValues) {
    double difference = 0, squares = 0;
    for (std::size_t j = i; j < i + kValues; ++j) {
      difference += (got[j] - want[j]) * (got[j] - want[j]);
      squares += want[j] * want[j];
    }
    const double ratio = squares == 0 ? (difference == 0 ? 0 : 1) : std::sqrt(difference / squares);
    worst = std::isfinite(ratio) ? std::max(worst, ratio) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

TEST_F(LatentDecode, MatchesTheTruth) {
  const std::vector<LatentRows> lengths = {{0, 1}, {62, 1}, {63, 1}, {64, 1}, {254, 1}, {255, 1}, {256, 1}, {299, 1}, {700, 1}};
  for (const std::int64_t heads : {1, 12, 17, 32, 48, 64, 96, 128}) {
    DecodeCase c({.heads = heads, .input = heads % 2 == 0 ? DType::kBF16 : DType::kF32, .output = heads == 32 ? DType::kBF16 : DType::kF32, .gate = heads != 16}, lengths);
    LatentDecodeArgs args = c.args;
    if (heads % 32 == 0) args.cu_seqlens = {};  // one row a sequence: not needed
    const double ratio = worst_ratio(run(args, c.longest()), truth(c.args, c.longest()));
    std::printf("%lld heads: worst RMS ratio of a row %.1e\n", static_cast<long long>(heads), ratio);
    EXPECT_LE(ratio, 0.007) << heads;  // of one row; about 0.003 on average
  }
}

TEST_F(LatentDecode, ListsInCodes) {
  const std::vector<LatentRows> lengths = {{0, 1}, {63, 1}, {64, 1}, {254, 2}, {256, 1}, {699, 1}};
  for (const std::int64_t heads : {1, 12, 17, 32, 48, 64, 96, 128}) {
    DecodeCase c({.heads = heads, .list = DType::kI8}, lengths);
    const double ratio = worst_ratio(run(c.args, c.longest()), truth(c.args, c.longest()));
    std::printf("%lld heads, codes: worst RMS ratio of a row %.1e\n", static_cast<long long>(heads), ratio);
    EXPECT_LE(ratio, 0.007) << heads;
  }
}

TEST_F(LatentDecode, BlocksOfAnySizeAndSeveralRowsASequence) {
  for (const std::int64_t block : {8, 16, 24, 128}) {
    for (const std::int64_t heads : {12, 96}) {
      for (const DType list : {DType::kBF16, DType::kI8}) {
        DecodeCase c({.heads = heads, .block_tokens = block, .list = list}, {{100, 4}, {0, 0}, {0, 3}, {300, 1}, {61, 5}});
        EXPECT_LE(worst_ratio(run(c.args, c.longest()), truth(c.args, c.longest())), 0.007) << block << " tokens, " << heads << " heads";
      }
    }
  }
}

TEST_F(LatentDecode, LongListsHaveLongerSplits) {
  for (const auto& [heads, length] : {std::pair<std::int64_t, std::int64_t>{12, 16500}, {96, 8192}}) {
    for (const DType list : {DType::kBF16, DType::kI8}) {
      DecodeCase c({.heads = heads, .list = list}, {{length - 1, 1}, {5, 1}});
      EXPECT_LE(worst_ratio(run(c.args, c.longest()), truth(c.args, c.longest())), 0.007) << heads << " heads, " << length;
    }
  }
}

TEST_F(LatentDecode, EveryNumberWithinTheBoundOfItsData) {
  DecodeCase c({.heads = 2, .input = DType::kF32, .gate = false}, {{129, 2}, {0, 1}});
  LatentAttentionArgs definition = c.latent().args();
  definition.scale = c.args.scale;
  LatentTruth truth = latent_truth(definition);
  // Operands of products are BF16: q', a score's weight. Sums are F32 and far below.
  truth.bound = {.c = 2, .eps_acc = kEpsBF16 / 2};
  const std::vector<double> got = run(c.args, c.longest());
  EXPECT_TRUE(within_bound(std::vector<float>(got.begin(), got.end()), truth.want, truth.magnitude, truth.bound));
}

TEST_F(LatentDecode, TheDeviceReferenceIsTheDefinition) {
  for (const DType list : {DType::kBF16, DType::kI8}) {
    DecodeCase c({.heads = 2, .input = DType::kF32, .gate = false, .list = list}, {{30, 2}, {0, 0}, {70, 1}});
    LatentAttentionArgs definition = c.latent().args();
    std::vector<double> o(static_cast<std::size_t>(c.args.o.numel()));
    definition.o = Tensor::contiguous(o.data(), DType::kF64, {c.args.o.size(0), 2, kValues});
    definition.scale = c.args.scale;
    ref::latent_attention<double>(definition);
    EXPECT_LE(worst_ratio(truth(c.args, c.longest()), o), 1e-12);
  }
}

TEST_F(LatentDecode, BatchMatesAndRoomChangeNoBit) {
  for (const auto& [heads, list] : {std::pair<std::int64_t, DType>{12, DType::kBF16}, {96, DType::kBF16}, {12, DType::kI8}, {96, DType::kI8}}) {
    const std::vector<LatentRows> batch = {{700, 1}, {90, 7}, {1500, 1}};  // together more than eight rows
    DecodeCase together({.heads = heads, .list = list}, batch);
    const std::vector<double> all = run(together.args, 1501), again = run(together.args, 5000);
    EXPECT_EQ(all, again);
    std::size_t begin = 0;
    for (std::size_t n = 0; n < batch.size(); ++n) {
      DecodeCase alone({.heads = heads, .list = list}, {batch[n]}, static_cast<std::int64_t>(n));
      const std::vector<double> one = run(alone.args, alone.longest());
      for (std::size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one[i], all[begin + i]) << heads << " heads, sequence " << n << ", " << i;
      begin += one.size();
    }
  }
}

/// Scores jump by more than F32's range of exponents, up and down, within a tile and from tile to tile; all of them exact in BF16 and F32.
TEST_F(LatentDecode, ScoresFarApart) {
  for (const std::int64_t heads : {12, 96}) {
    DecodeCase c({.heads = heads}, {{299, 1}, {70, 1}});
    for (std::size_t i = 0; i < c.q16().size(); ++i) c.q16()[i] = i % kKeys == 128 ? float_to_bf16(static_cast<float>(64 << (i / kKeys % 4))) : 0;
    const Tensor blocks = c.args.list.blocks;
    for (std::int64_t n = 0; n < 2; ++n) {
      for (std::int64_t t = 0; t < (n == 0 ? 300 : 71); ++t) {
        const std::int64_t row = ref::list_row_offset(c.args.list, c.args.slots.as<std::int32_t>()[n], t);
        for (std::int64_t j = 512; j < 576; ++j) ref::store<float>(blocks, row + j, 0);
        ref::store<float>(blocks, row + 512, static_cast<float>((t * 37 + n) % 83 - (t < 100 ? 80 : 0) + (t >= 128 && t < 192 ? -200 : 0)));
      }
    }
    EXPECT_LE(worst_ratio(run(c.args, c.longest()), truth(c.args, c.longest())), 0.007);
  }
}

/// The same of codes, whose scales jump too, between tokens and between the parts of a row; some are zero. Queries beyond the range of F16.
TEST_F(LatentDecode, CodesAndScalesFarApart) {
  for (const std::int64_t heads : {12, 32, 96}) {
    DecodeCase c({.heads = heads, .list = DType::kI8}, {{299, 1}, {70, 1}});
    const int exponents[] = {-30, 20};
    for (std::size_t i = 0; i < c.q16().size(); ++i) {
      const int n = static_cast<std::int64_t>(i) < heads * kKeys ? 0 : 1;
      c.q16()[i] = i % kKeys == 128 ? float_to_bf16(std::ldexp(static_cast<float>(64 << (i / kKeys % 4)), exponents[n])) : 0;
    }
    const Tensor& blocks = c.args.list.blocks;
    const Tensor& table = c.args.list.table;
    for (std::int64_t n = 0; n < 2; ++n) {
      for (std::int64_t t = 0; t < (n == 0 ? 300 : 71); ++t) {
        const std::int64_t block = table.as<std::int32_t>()[c.args.slots.as<std::int32_t>()[n] * table.strides[0] + t / 64];
        auto* const at = static_cast<std::int8_t*>(blocks.data) + block * blocks.strides[0];
        std::int8_t* const codes = q8_codes(c.args.list.q8, at, t % 64);
        auto* const scales = reinterpret_cast<std::uint16_t*>(q8_scales(c.args.list.q8, at, 64, t % 64));
        std::fill(codes + 512, codes + 576, std::int8_t{0});
        codes[512] = static_cast<std::int8_t>((t * 37 + n) % 83 - (t < 100 ? 80 : 0));
        for (int g = 0; g < 3; ++g) scales[g] = t < 64 && n == 0 ? 0 : float_to_bf16(std::ldexp(1.5F, static_cast<int>((t * 7 + g * 11) % 25) - 12));
        scales[3] = float_to_bf16(std::ldexp(t >= 128 && t < 192 ? 0.25F : 1.0F, -exponents[n]));
      }
    }
    EXPECT_LE(worst_ratio(run(c.args, c.longest()), truth(c.args, c.longest())), 0.007) << heads << " heads";
  }
}

TEST_F(LatentDecode, ANegativeSlotGivesZeros) {
  DecodeCase c({.heads = 12}, {{100, 1}, {200, 2}, {300, 1}});
  const_cast<std::int32_t*>(c.args.slots.as<std::int32_t>())[1] = -1;
  const std::vector<double> got = run(c.args, c.longest()), want = truth(c.args, c.longest());
  EXPECT_LE(worst_ratio(got, want), 0.007);
  for (std::int64_t i = 12 * kValues; i < 3 * 12 * kValues; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], 0);
}

TEST_F(LatentDecode, RowsThatItWritesFirstHaveTheBitsOfTheirOps) {
  const auto columns = [](Tensor t, std::int64_t begin, std::int64_t count) {
    t.data = t.as<float>() + begin;
    t.sizes[1] = count;
    return t;
  };
  for (const auto& lengths : {std::vector<LatentRows>{{130, 1}}, {{0, 1}, {62, 1}, {63, 1}, {64, 1}, {255, 1}, {256, 1}, {299, 1}, {700, 1}, {1, 1}, {20, 1}, {511, 1}}}) {
    for (const auto& [heads, list] : {std::pair<std::int64_t, DType>{12, DType::kBF16}, {32, DType::kBF16}, {96, DType::kBF16}, {12, DType::kI8}, {32, DType::kI8}, {96, DType::kI8}}) {
      DecodeCase c({.heads = heads, .input = DType::kF32, .gate = false, .list = list}, lengths);
      const std::int64_t rows = c.args.q.size(0);
      auto numbers = random_normal(rows * 576, 7), weight = random_normal(512, 8), none = std::vector<float>(static_cast<std::size_t>(rows * 512), NAN);
      LatentDecodeArgs whole = there(c.args, c.longest()), parts = there(c.args, c.longest());
      const RaggedRows ragged = {parts.cu_seqlens, parts.slots};
      whole.cu_seqlens = parts.cu_seqlens = {};
      whole.kv_a = to_device(Tensor::contiguous(numbers.data(), DType::kF32, {rows, 576}));
      whole.kv_a_layernorm = to_device(Tensor::contiguous(weight.data(), DType::kF32, {512})), whole.kv_a_eps = 1e-6f;
      const Tensor latent = to_device(Tensor::contiguous(none.data(), DType::kF32, {rows, 512}));
      cuda::plain::rms_norm({.x = columns(whole.kv_a, 0, 512), .weight = whole.kv_a_layernorm, .eps = 1e-6f, .y = latent}, nullptr);
      cuda::plain::latent_append({.latent = latent, .k_pe = columns(whole.kv_a, 512, 64), .list = parts.list, .rows = ragged, .past = parts.past}, nullptr);
      cuda::latent_decode(parts, c.longest(), nullptr);
      cuda::latent_decode(whole, c.longest(), nullptr);
      const std::vector<double> want = read(parts.o);
      EXPECT_FALSE(std::isnan(want.front()));
      EXPECT_EQ(read(whole.o), want) << heads << " heads, " << rows << " rows";
      std::vector<std::uint8_t> lists[2];
      for (const int i : {0, 1}) {
        const Tensor& blocks = (i == 0 ? whole : parts).list.blocks;
        lists[i].resize(static_cast<std::size_t>(blocks.bytes()));
        from_device(blocks, lists[i].data());
      }
      EXPECT_EQ(lists[0], lists[1]) << heads << " heads, " << rows << " rows";
      memory_.clear();
    }
  }
}

TEST(LatentDecodeChecks, RefuseWhatTheKernelsCannotDo) {
  DecodeCase c({.heads = 12}, {{10, 1}});
  const std::int64_t bytes = cuda::latent_decode_workspace(1, 12, 11);
  const auto message = [&](const std::function<void(LatentDecodeArgs&)>& change) {
    LatentDecodeArgs args = c.args;
    args.workspace = Tensor::contiguous(reinterpret_cast<void*>(4096), DType::kU8, {bytes});
    args.list.blocks.data = args.kv_b.data = reinterpret_cast<void*>(4096);
    change(args);
    try {
      cuda::check_latent_decode(args, 11);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message([](LatentDecodeArgs&) {}), "");
  EXPECT_NE(message([](LatentDecodeArgs& a) { a.workspace.sizes[0] -= 1; }).find("workspace"), std::string::npos);
  EXPECT_NE(message([](LatentDecodeArgs& a) { a.q.sizes[2] = 128; }).find("q: shape"), std::string::npos);
  EXPECT_NE(message([](LatentDecodeArgs& a) { a.list.blocks.sizes[1] = 20; }).find("list.blocks"), std::string::npos);
  EXPECT_NE(message([](LatentDecodeArgs& a) { a.list.blocks.dtype = DType::kF32; }).find("list.blocks"), std::string::npos);
  EXPECT_NE(message([](LatentDecodeArgs& a) { a.list.q8 = q8_latent_rows(512, 64); }).find("list.blocks: type"), std::string::npos);
  EXPECT_NE(message([](LatentDecodeArgs& a) { a.list.q8 = {512, 64, 171, 64}, a.list.blocks.dtype = DType::kI8; }).find("list.q8"), std::string::npos);
  EXPECT_NE(message([](LatentDecodeArgs& a) { a.past.sizes[0] = 3; }).find("past"), std::string::npos);
  EXPECT_NE(message([](LatentDecodeArgs& a) { a.kv_a = a.q; }).find("kv_a: given beside cu_seqlens"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::test
