#include <functional>

#include "gpu/device_test.h"
#include "kernels/cuda/latent_checks.h"
#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/product_workspace.h"
#include "kernels/ref/latent_decode.h"
#include "palimpsest/error.h"
#include "support/numeric.h"

namespace palimpsest::test {
namespace {

constexpr std::int64_t kKeys = 128, kShared = 64, kValues = 128;

struct Lengths {
  std::int64_t past = 0, rows = 0;
};

/// A problem in host memory; sequence n depends on its index first_sequence + n alone.
struct PrefillCase {
  std::vector<std::int64_t> cu{0}, cu_keys{0};
  std::vector<std::uint16_t> q, k, k_pe, v, gate;
  std::vector<float> o;
  LatentPrefillArgs args;

  PrefillCase(std::int64_t heads, const std::vector<Lengths>& batch, bool gated = true, DType output = DType::kF32, std::uint64_t first_sequence = 0) {
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const std::int64_t rows = batch[n].rows, keys = batch[n].past + rows;
      cu.push_back(cu.back() + rows);
      cu_keys.push_back(cu_keys.back() + keys);
      const std::uint64_t seed = 10 * (first_sequence + n);
      append(q, random_normal(rows * heads * (kKeys + kShared), seed));
      append(k, random_normal(keys * heads * kKeys, seed + 1));
      append(k_pe, random_normal(keys * kShared, seed + 2));
      append(v, random_normal(keys * heads * kValues, seed + 3));
      append(gate, random_normal(rows * heads * kValues, seed + 4));
    }
    const std::int64_t rows = cu.back(), keys = cu_keys.back(), ends = static_cast<std::int64_t>(cu.size());
    o.resize(static_cast<std::size_t>(rows * heads * kValues));
    args.q = Tensor::contiguous(q.data(), DType::kBF16, {rows, heads, kKeys + kShared});
    args.k = Tensor::contiguous(k.data(), DType::kBF16, {keys, heads, kKeys});
    args.k_pe = Tensor::contiguous(k_pe.data(), DType::kBF16, {keys, kShared});
    args.v = Tensor::contiguous(v.data(), DType::kBF16, {keys, heads, kValues});
    if (gated) args.gate = Tensor::contiguous(gate.data(), DType::kBF16, {rows, heads, kValues});
    args.cu_seqlens = Tensor::contiguous(cu.data(), DType::kI64, {ends});
    args.cu_keys = Tensor::contiguous(cu_keys.data(), DType::kI64, {ends});
    args.scale = 1 / std::sqrt(static_cast<float>(kKeys + kShared));
    args.o = Tensor::contiguous(o.data(), output, {rows, heads, kValues});
  }
  static void append(std::vector<std::uint16_t>& to, const std::vector<float>& x) {
    const auto narrow = to_bf16(x);
    to.insert(to.end(), narrow.begin(), narrow.end());
  }
  std::int64_t most_keys() const {
    std::int64_t most = 1;
    for (std::size_t n = 1; n < cu_keys.size(); ++n) most = std::max(most, cu_keys[n] - cu_keys[n - 1]);
    return most;
  }
};

class LatentPrefill : public DeviceTest {
 protected:
  LatentPrefillArgs there(const LatentPrefillArgs& a) {
    LatentPrefillArgs t = a;
    for (Tensor* x : {&t.q, &t.k, &t.k_pe, &t.v, &t.gate, &t.cu_seqlens, &t.cu_keys, &t.o}) *x = to_device(*x);
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
  std::vector<double> run(const LatentPrefillArgs& a) {
    const LatentPrefillArgs t = there(a);
    cuda::latent_prefill(t, nullptr);
    return read(t.o);
  }
  std::vector<double> truth(const LatentPrefillArgs& a, std::int64_t most_keys) {
    LatentPrefillArgs t = there(a);
    std::vector<double> o(static_cast<std::size_t>(a.o.numel()));
    t.o = to_device(Tensor::contiguous(o.data(), DType::kF64, {a.o.size(0), a.o.size(1), a.o.size(2)}));
    cuda::ref_latent_prefill(t, most_keys, 1);
    return read(t.o);
  }
};

double worst_ratio(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); i += kValues) {
    double difference = 0, squares = 0;
    for (std::size_t j = i; j < i + kValues; ++j) {
      difference += (got[j] - want[j]) * (got[j] - want[j]);
      squares += want[j] * want[j];
    }
    const double ratio = std::sqrt(difference / squares);
    worst = std::isfinite(ratio) ? std::max(worst, ratio) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

TEST_F(LatentPrefill, MatchesTheTruth) {
  const std::vector<std::vector<Lengths>> batches = {{{0, 1}, {0, 0}, {0, 127}, {0, 128}, {0, 129}, {0, 64}, {0, 300}},
                                                     {{1, 1}, {63, 66}, {127, 1}, {128, 130}, {400, 200}, {500, 1}, {7, 0}}};
  for (const auto& batch : batches) {
    for (const std::int64_t heads : {1, 3, 12}) {
      PrefillCase c(heads, batch, heads != 3, heads == 12 ? DType::kBF16 : DType::kF32);
      const double ratio = worst_ratio(run(c.args), truth(c.args, c.most_keys()));
      std::printf("%lld heads: worst RMS ratio of a row %.1e\n", static_cast<long long>(heads), ratio);
      EXPECT_LE(ratio, 0.005) << heads;
    }
  }
}

TEST_F(LatentPrefill, TheDeviceReferenceIsTheHostOne) {
  PrefillCase c(2, {{3, 5}, {0, 0}, {0, 4}});
  std::vector<double> o(static_cast<std::size_t>(c.args.o.numel())), weights(8);
  LatentPrefillArgs args = c.args;
  args.o = Tensor::contiguous(o.data(), DType::kF64, {9, 2, kValues});
  for (std::int64_t row = 0; row < 9; ++row) {
    for (std::int64_t head = 0; head < 2; ++head) {
      const ref::VisibleKeys keys = ref::visible_keys(args, row);
      for (std::int64_t j = 0; j < keys.seen; ++j) weights[static_cast<std::size_t>(j)] = ref::prefill_score<double>(args, keys, row, head, j);
      ref::softmax(weights.data(), keys.seen);
      for (std::int64_t d = 0; d < kValues; ++d) ref::prefill_output<double>(args, keys, row, head, d, weights.data());
    }
  }
  EXPECT_LE(worst_ratio(truth(c.args, 8), o), 1e-13);
}

/// Keys and values of others may hold NaN: nobody else notices.
TEST_F(LatentPrefill, BatchMatesAndLaterRowsChangeNoBit) {
  const std::vector<Lengths> batch = {{0, 200}, {150, 90}, {0, 70}};
  PrefillCase together(3, batch);
  const std::vector<double> all = run(together.args);
  for (std::int64_t i = together.cu_keys[2] * 3 * kValues; i < together.cu_keys[3] * 3 * kValues; ++i) {
    together.k[static_cast<std::size_t>(i)] = together.v[static_cast<std::size_t>(i)] = 0x7fc0;
  }
  const std::vector<double> beside = run(together.args);
  for (std::int64_t i = 0; i < together.cu[2] * 3 * kValues; ++i) ASSERT_EQ(all[static_cast<std::size_t>(i)], beside[static_cast<std::size_t>(i)]) << i;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    PrefillCase alone(3, {batch[n]}, true, DType::kF32, n);
    const std::vector<double> one = run(alone.args);
    for (std::size_t i = 0; i < one.size(); ++i) ASSERT_EQ(one[i], all[static_cast<std::size_t>(together.cu[n]) * 3 * kValues + i]) << n << " " << i;
  }
}

TEST_F(LatentPrefill, CutsOfThePromptChangeNoBit) {
  PrefillCase whole(2, {{0, 300}}, false);
  const std::vector<double> all = run(whole.args);
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 77}, {77, 300}, {200, 201}}) {
    LatentPrefillArgs part = whole.args;
    std::vector<std::int64_t> cu = {0, end - begin}, cu_keys = {0, end};
    part.q = part.q.rows(begin, end - begin);
    part.k = part.k.rows(0, end);
    part.k_pe = part.k_pe.rows(0, end);
    part.v = part.v.rows(0, end);
    part.o = part.o.rows(begin, end - begin);
    part.cu_seqlens = Tensor::contiguous(cu.data(), DType::kI64, {2});
    part.cu_keys = Tensor::contiguous(cu_keys.data(), DType::kI64, {2});
    const std::vector<double> some = run(part);
    for (std::size_t i = 0; i < some.size(); ++i) ASSERT_EQ(some[i], all[static_cast<std::size_t>(begin) * 2 * kValues + i]) << begin << " " << i;
  }
}

/// Keys of each sequence [first, first + count) of a case, one sequence after the other, as a window gives them.
struct Window {
  std::vector<std::uint16_t> k, k_pe, v;
  std::vector<std::int64_t> cu{0};
  Window(const PrefillCase& c, std::int64_t heads, std::int64_t first, std::int64_t count) {
    for (std::size_t n = 0; n + 1 < c.cu_keys.size(); ++n) {
      const std::int64_t begin = std::min(c.cu_keys[n] + first, c.cu_keys[n + 1]), end = std::min(begin + count, c.cu_keys[n + 1]);
      const auto take = [&](std::vector<std::uint16_t>& to, const std::vector<std::uint16_t>& from, std::int64_t width) {
        to.insert(to.end(), from.begin() + begin * width, from.begin() + end * width);
      };
      take(k, c.k, heads * kKeys);
      take(k_pe, c.k_pe, kShared);
      take(v, c.v, heads * kValues);
      cu.push_back(cu.back() + end - begin);
    }
  }
};

/// Keys that come by windows; one sequence has none, and its rows stay as they are.
TEST_F(LatentPrefill, WindowsOfKeysChangeNoBit) {
  constexpr std::int64_t kHeads = 3;
  const std::vector<Lengths> batch = {{0, 200}, {150, 390}, {0, 0}, {700, 70}, {1, 128}};
  PrefillCase c(kHeads, batch, false);
  const std::vector<double> want = run(c.args);
  std::vector<std::int64_t> past;
  for (const Lengths& l : batch) past.push_back(l.past);
  for (const std::int64_t count : {128, 256, 640, 1024}) {
    LatentPrefillArgs t = there(c.args);
    std::vector<float> carry(static_cast<std::size_t>(t.q.size(0) * kHeads * 8));
    t.carry = to_device(Tensor::contiguous(carry.data(), DType::kF32, {t.q.size(0), kHeads, 8}));
    t.past = to_device(Tensor::contiguous(past.data(), DType::kI64, {static_cast<std::int64_t>(past.size())}));
    t.window_keys = count;
    for (t.window = 0; t.window < c.most_keys(); t.window += count) {
      Window w(c, kHeads, t.window, count);
      const std::int64_t keys = w.cu.back();
      t.k = to_device(Tensor::contiguous(w.k.data(), DType::kBF16, {keys, kHeads, kKeys}));
      t.k_pe = to_device(Tensor::contiguous(w.k_pe.data(), DType::kBF16, {keys, kShared}));
      t.v = to_device(Tensor::contiguous(w.v.data(), DType::kBF16, {keys, kHeads, kValues}));
      t.cu_keys = to_device(Tensor::contiguous(w.cu.data(), DType::kI64, {static_cast<std::int64_t>(w.cu.size())}));
      cuda::latent_prefill(t, nullptr);
    }
    EXPECT_EQ(read(t.o), want) << "windows of " << count;
  }
}

TEST(LatentWindows, HoldTheirKeys) {
  for (std::int64_t sequences = 1; sequences < 300; ++sequences) {
    for (std::int64_t prompts = 1; prompts <= sequences; ++prompts) {
      const std::int64_t keys = cuda::window_keys(sequences, prompts);
      ASSERT_TRUE(keys >= 128 && keys % 128 == 0 && keys * prompts <= cuda::window_rows(sequences)) << prompts << " of " << sequences;
    }
  }
}

TEST_F(LatentPrefill, ScoresFarApart) {
  PrefillCase c(2, {{0, 400}});
  for (auto& x : c.q) x = float_to_bf16(std::ldexp(1.0f, static_cast<int>((&x - c.q.data()) / 192 % 5)));
  for (auto& x : c.k) x = 0;
  for (std::int64_t t = 0; t < 400; ++t) {
    for (std::int64_t j = 0; j < kShared; ++j) c.k_pe[static_cast<std::size_t>(t * kShared + j)] = 0;
    c.k_pe[static_cast<std::size_t>(t * kShared)] = float_to_bf16(static_cast<float>((t * 53 % 97 - 48) * 64));
  }
  EXPECT_LE(worst_ratio(run(c.args), truth(c.args, 400)), 0.005);
}

TEST(LatentPrefillChecks, RefuseWhatTheKernelCannotDo) {
  PrefillCase c(2, {{3, 4}});
  const auto message = [&](const std::function<void(LatentPrefillArgs&)>& change) {
    LatentPrefillArgs args = c.args;
    for (Tensor* t : {&args.q, &args.k, &args.k_pe, &args.v}) t->data = reinterpret_cast<void*>(4096);
    change(args);
    try {
      cuda::check_latent_prefill(args);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message([](LatentPrefillArgs&) {}), "");
  EXPECT_NE(message([](LatentPrefillArgs& a) { a.k.sizes[2] = 64; }).find("k: shape"), std::string::npos);
  EXPECT_NE(message([](LatentPrefillArgs& a) { a.v.dtype = DType::kF32; }).find("v: type"), std::string::npos);
  EXPECT_NE(message([](LatentPrefillArgs& a) { a.q.strides[0] = 2 * 192 + 4; }).find("q: rows"), std::string::npos);
  EXPECT_NE(message([](LatentPrefillArgs& a) { a.cu_keys = {}; }).find("k: shape"), std::string::npos);
  EXPECT_NE(message([](LatentPrefillArgs& a) {
              a.carry = Tensor::contiguous(a.o.data, DType::kF32, {4, 2, 8});
              a.past = Tensor::contiguous(a.o.data, DType::kI64, {1});
              a.window_keys = 100;
            }).find("window: 100 keys"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::test
