#include <functional>

#include "gpu/delta_step_case.h"
#include "gpu/device_test.h"
#include "kernels/cuda/delta_checks.h"
#include "kernels/cuda/delta_kernels.h"
#include "palimpsest/error.h"

namespace palimpsest::test {
namespace {

struct PrefillResult {
  std::vector<double> o, pages, snapshots;
};

class DeltaPrefill : public DeviceTest {
 protected:
  std::vector<double> read(Tensor t) {
    std::vector<std::byte> host(static_cast<std::size_t>(t.bytes()));
    from_device(t, host.data());
    t.data = host.data();
    return values_of(t);
  }
  static DeltaPrefillArgs prefill_args(DeltaCase& problem) {
    DeltaPrefillArgs args;
    args.in = problem.args.in;
    args.pages = problem.args.pages;
    args.cu_seqlens = problem.args.cu_seqlens;
    args.slots = problem.args.slots;
    args.past = problem.batch.past();
    args.o = problem.args.o;
    return args;
  }
  /// `share`: of the largest useful workspace; at least what is needed.
  PrefillResult run(const DeltaPrefillArgs& args, double share = 1, const std::function<void(const DeltaPrefillArgs&)>& launch = {}) {
    DeltaPrefillArgs there = args;
    for (Tensor* t : {&there.in.q, &there.in.k, &there.in.v, &there.in.f, &there.in.b, &there.in.a_log, &there.in.dt_bias, &there.pages,
                      &there.cu_seqlens, &there.slots, &there.past, &there.o, &there.snapshots, &there.snapshot_slots}) {
      *t = to_device(*t);
    }
    const auto need = cuda::delta_prefill_workspace(args);
    const auto bytes = std::max({std::int64_t{256}, need.least, static_cast<std::int64_t>(share * static_cast<double>(need.all))});
    memory_.emplace_back(bytes);
    there.workspace = Tensor::contiguous(memory_.back().data(), DType::kU8, {bytes}, DeviceKind::kCuda);
    if (launch) launch(there);
    else cuda::delta_prefill(there, nullptr);
    return {read(there.o), read(there.pages), there.snapshots.defined() ? read(there.snapshots) : std::vector<double>{}};
  }
  /// The truth in double, computed on the device.
  PrefillResult truth(const DeltaPrefillArgs& args) {
    DeltaStepArgs there;
    there.in = args.in;
    for (Tensor* t : {&there.in.q, &there.in.k, &there.in.v, &there.in.f, &there.in.b, &there.in.a_log, &there.in.dt_bias}) *t = to_device(*t);
    there.cu_seqlens = to_device(args.cu_seqlens);
    there.slots = to_device(args.slots);
    there.snapshot_slots = to_device(args.snapshot_slots);
    const auto doubles = [&](const Tensor& t) {
      if (!t.defined()) return t;
      const std::vector<double> x = values_of(t);
      return to_device(Tensor::contiguous(const_cast<double*>(x.data()), DType::kF64, {t.sizes[0], t.sizes[1], t.sizes[2], t.rank > 3 ? t.sizes[3] : 1}));
    };
    there.pages = doubles(args.pages);
    there.snapshots = doubles(args.snapshots);
    there.o = doubles(args.o);
    there.o.rank = 3;
    cuda::ref_delta_step(there);
    return {read(there.o), read(there.pages), there.snapshots.defined() ? read(there.snapshots) : std::vector<double>{}};
  }
};

DeltaShape shape_of(DeltaShape s) {
  s.width = s.values = 128;
  s.conv = s.norm = false;
  return s;
}

double rms_ratio(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0, squares = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    squares += want[i] * want[i];
  }
  return std::sqrt(difference / squares);
}

// Operands rounded to BF16 on the longest path, from a key to the page: row and column of A, T, its operand, W, S, U, and the key of the write.
constexpr DeltaErrors kChunked{.c = 8, .eps = kEpsBF16, .chunk = 64};

void expect_right(const PrefillResult& got, const DeltaCase& problem) {
  const DeltaTruth truth = delta_truth(problem, kChunked);
  EXPECT_TRUE(within(got.o, truth.o, truth.o_bound)) << problem.shape.text();
  EXPECT_TRUE(within(got.pages, truth.pages, truth.page_bound)) << problem.shape.text();
  const double o = rms_ratio(got.o, truth.o), pages = rms_ratio(got.pages, truth.pages);
  EXPECT_LE(o, 0.005) << problem.shape.text();
  EXPECT_LE(pages, 0.005) << problem.shape.text();
  std::printf("%s: RMS ratio o %.1e S %.1e\n", problem.shape.text().c_str(), o, pages);
}

TEST_F(DeltaPrefill, MatchesTheTruth) {
  const std::vector<std::int64_t> ragged = {1, 0, 63, 64, 65, 130, 7};
  for (const DeltaGate gate : {DeltaGate::kBounded, DeltaGate::kSoftplus, DeltaGate::kLogDecay, DeltaGate::kNone}) {
    for (const bool channel : {true, false}) {
      if (gate == DeltaGate::kNone && channel) continue;
      DeltaCase problem(shape_of({.heads = 1, .value_heads = 2, .gate = gate, .gate_per_channel = channel, .gap = 8, .lengths = ragged}));
      expect_right(run(prefill_args(problem)), problem);
    }
  }
}

TEST_F(DeltaPrefill, PlainWrites) {
  DeltaCase problem(shape_of({.heads = 2, .value_heads = 2, .write = PageWrite::kPlain, .lengths = {100, 20}}));
  expect_right(run(prefill_args(problem)), problem);
}

TEST_F(DeltaPrefill, GatesFarBeyondTheRangeOfFloat) {
  DeltaCase problem(shape_of({.heads = 1, .value_heads = 1, .gate = DeltaGate::kLogDecay, .lengths = {150}}));
  auto* f = problem.args.in.f.as<std::uint16_t>();
  for (std::int64_t i = 0; i < problem.args.in.f.numel(); ++i) {
    const double u = base::uniform(5, static_cast<std::uint64_t>(i), 0);
    f[i] = float_to_bf16(static_cast<float>(u < 0.3 ? -200 * u : -0.005));  // whole blocks underflow beside channels that keep everything
  }
  expect_right(run(prefill_args(problem)), problem);
}

TEST_F(DeltaPrefill, BoundedGatesAtBothEnds) {
  DeltaCase problem(shape_of({.heads = 1, .value_heads = 1, .lengths = {300}}));
  auto* f = problem.args.in.f.as<std::uint16_t>();
  for (std::int64_t i = 0; i < problem.args.in.f.numel(); ++i) {
    const double u = base::uniform(5, static_cast<std::uint64_t>(i / 16), 0);  // for 16 channels of a token: the bound, next to nothing, or between
    f[i] = float_to_bf16(static_cast<float>(u < 0.4 ? 60 : u < 0.8 ? -60 : 0));
  }
  for (std::int64_t i = 0; i < 64 * 128; ++i) f[i] = float_to_bf16(60);  // and whole chunks at the bound
  expect_right(run(prefill_args(problem)), problem);
}

TEST_F(DeltaPrefill, NearlyCollinearKeys) {
  for (const DeltaGate gate : {DeltaGate::kLogDecay, DeltaGate::kBounded}) {
    DeltaCase problem(shape_of({.heads = 1, .value_heads = 1, .gate = gate, .lengths = {200}}));
    auto* k = problem.args.in.k.as<std::uint16_t>();
    auto* f = problem.args.in.f.as<std::uint16_t>();
    auto* b = problem.args.in.b.as<std::uint16_t>();
    for (std::int64_t t = 0; t < 200; ++t) {
      b[t] = float_to_bf16(5);
      for (std::int64_t d = 0; d < 128; ++d) {
        k[t * 128 + d] = float_to_bf16(static_cast<float>(std::cos(0.1 * static_cast<double>(d)) + 0.02 * base::uniform(6, static_cast<std::uint64_t>(t * 128 + d), 0)));
        f[t * 128 + d] = float_to_bf16(gate == DeltaGate::kLogDecay ? -0.001f : -20.0f);
      }
    }
    // Finite, and within the bound; the RMS ratio is 0.008, since BF16 operands hold little of what tells such keys apart.
    const PrefillResult got = run(prefill_args(problem));
    const DeltaTruth truth = delta_truth(problem, kChunked);
    EXPECT_TRUE(within(got.o, truth.o, truth.o_bound));
    EXPECT_TRUE(within(got.pages, truth.pages, truth.page_bound));
    std::printf("collinear keys, gate %d: RMS ratio o %.1e S %.1e\n", static_cast<int>(gate), rms_ratio(got.o, truth.o), rms_ratio(got.pages, truth.pages));
  }
}

TEST_F(DeltaPrefill, ManyChunksOfAnyAlignment) {
  for (const std::int64_t gap : {0, 4, 8}) {  // rows at multiples of 8 and of 16 bytes
    for (const DType output : {DType::kBF16, DType::kF32}) {
      DeltaCase problem(shape_of({.heads = 1, .value_heads = 2, .output = output, .gap = gap, .lengths = {700, 33, 0, 16}, .past = {5, 0, 3, 16}}));
      expect_right(run(prefill_args(problem)), problem);
    }
  }
}

TEST_F(DeltaPrefill, ContinuesInTheMiddleOfAChunk) {
  DeltaCase problem(shape_of({.heads = 2, .value_heads = 2, .output = DType::kBF16, .lengths = {100, 40, 64}, .past = {30, 63, 64}}));
  expect_right(run(prefill_args(problem)), problem);
}

TEST_F(DeltaPrefill, StatesInBF16) {
  DeltaCase problem(shape_of({.heads = 2, .value_heads = 2, .state = DType::kBF16, .lengths = {70, 1}}));
  expect_right(run(prefill_args(problem)), problem);
}

// Gates that forget within a few tokens, that do not, and heads of both kinds.
enum class Speed { kFast, kSlow, kMixed };
void set_speed(DeltaCase& problem, Speed speed) {
  for (std::int64_t h = 0; h < problem.shape.value_heads; ++h) {
    const bool fast = speed == Speed::kFast || (speed == Speed::kMixed && h % 2 == 0);
    auto* bias = const_cast<float*>(problem.args.in.dt_bias.as<float>());
    const std::int64_t gates = problem.args.in.dt_bias.numel() / problem.shape.value_heads;
    for (std::int64_t d = 0; d < gates; ++d) bias[h * gates + d] = fast ? 1.0f : -7 + 8 * static_cast<float>(d) / static_cast<float>(gates);
  }
}

TEST_F(DeltaPrefill, SegmentsOfFewHeads) {
  for (const Speed speed : {Speed::kFast, Speed::kSlow, Speed::kMixed}) {
    DeltaCase problem(shape_of({.heads = 2, .value_heads = 2, .gap = 8, .lengths = {2600, 600, 0, 40, 1100}, .past = {100, 0, 5, 510, 1024}}));
    set_speed(problem, speed);
    const DeltaPrefillArgs args = prefill_args(problem);
    const PrefillResult got = run(args), want = truth(args);
    EXPECT_LE(rms_ratio(got.o, want.o), 0.005) << static_cast<int>(speed);
    EXPECT_LE(rms_ratio(got.pages, want.pages), 0.005) << static_cast<int>(speed);
    std::printf("speed %d: RMS ratio o %.1e S %.1e\n", static_cast<int>(speed), rms_ratio(got.o, want.o), rms_ratio(got.pages, want.pages));
  }
}

TEST_F(DeltaPrefill, SegmentsOfFewHeadsAreWithinTheBound) {
  DeltaCase problem(shape_of({.heads = 1, .value_heads = 1, .output = DType::kBF16, .lengths = {1700}, .past = {7}}));
  set_speed(problem, Speed::kSlow);
  expect_right(run(prefill_args(problem)), problem);
}

TEST_F(DeltaPrefill, SegmentsOfManyHeads) {
  DeltaCase problem(shape_of({.heads = 50, .value_heads = 50, .lengths = {4200, 70}, .past = {10, 0}}));
  set_speed(problem, Speed::kMixed);
  const DeltaPrefillArgs args = prefill_args(problem);
  const PrefillResult got = run(args), want = truth(args);
  EXPECT_LE(rms_ratio(got.o, want.o), 0.005);
  EXPECT_LE(rms_ratio(got.pages, want.pages), 0.005);
}

TEST_F(DeltaPrefill, SnapshotsAtMultiplesOf64) {
  struct Form {
    DeltaGate gate;
    bool channel;
    std::int64_t heads;
  };
  for (const Form form : {Form{DeltaGate::kBounded, true, 2}, {DeltaGate::kBounded, false, 2}, {DeltaGate::kSoftplus, true, 2}, {DeltaGate::kSoftplus, false, 2},
                          {DeltaGate::kBounded, true, 50}}) {
    const std::int64_t heads = form.heads;
    DeltaCase problem(shape_of({.heads = heads, .value_heads = heads, .gate = form.gate, .gate_per_channel = form.channel,
                                .lengths = {200, 64, 70, heads > 2 ? 100 : 1300}, .past = {30, 0, 0, 64}}));
    DeltaPrefillArgs args = prefill_args(problem);
    std::vector<std::int32_t> slots;
    std::int32_t next = 0;
    for (std::int64_t n = 0; n < 4; ++n) {
      for (std::int64_t t = 0; t < problem.shape.lengths[static_cast<std::size_t>(n)]; ++t) {
        const bool wanted = (problem.shape.past[static_cast<std::size_t>(n)] + t + 1) % 64 == 0 && t % 3 != 0;
        slots.push_back(wanted ? next++ : -1);
      }
    }
    std::vector<float> snapshots(static_cast<std::size_t>(next * heads) * 128 * 128);
    args.snapshots = Tensor::contiguous(snapshots.data(), DType::kF32, {next, heads, 128, 128});
    args.snapshot_slots = Tensor::contiguous(slots.data(), DType::kI32, {static_cast<std::int64_t>(slots.size())});
    const PrefillResult got = run(args), want = truth(args);
    EXPECT_LE(rms_ratio(got.snapshots, want.snapshots), 0.005) << static_cast<int>(form.gate) << form.channel << heads;
    EXPECT_LE(rms_ratio(got.o, want.o), 0.005) << static_cast<int>(form.gate) << form.channel << heads;
    EXPECT_LE(rms_ratio(got.pages, want.pages), 0.005) << static_cast<int>(form.gate) << form.channel << heads;
  }
}

// What the kernels in chunks do not take is walked token by token.
TEST_F(DeltaPrefill, OtherShapesAndTypes) {
  struct Form {
    std::int64_t width, values;
    DType input, output;
  };
  for (const Form form : {Form{64, 64, DType::kBF16, DType::kF32}, {256, 128, DType::kBF16, DType::kF32}, {64, 96, DType::kBF16, DType::kF32}, {128, 256, DType::kBF16, DType::kBF16},
                          {128, 128, DType::kF32, DType::kF32}, {128, 128, DType::kF16, DType::kF16}}) {
    for (const bool channel : {true, false}) {
      DeltaCase problem({.heads = 1, .value_heads = 2, .width = form.width, .values = form.values, .gate_per_channel = channel, .input = form.input, .output = form.output,
                         .conv = false, .norm = false, .lengths = {70, 0, 131}, .past = {30, 0, 64}});
      DeltaPrefillArgs args = prefill_args(problem);
      std::vector<std::int32_t> slots(201, 0);  // rows 33, 133 and 197 end at positions 64, 128 and 192; the others are ignored
      slots[133] = 1, slots[197] = 2;
      std::vector<float> snapshots(static_cast<std::size_t>(3 * 2 * form.values * form.width));
      args.snapshots = Tensor::contiguous(snapshots.data(), DType::kF32, {3, 2, form.values, form.width});
      args.snapshot_slots = Tensor::contiguous(slots.data(), DType::kI32, {201});
      const PrefillResult got = run(args);
      for (std::size_t t = 0; t < 201; ++t) {
        if (t != 33 && t != 133 && t != 197) slots[t] = -1;
      }
      const PrefillResult want = truth(args);
      EXPECT_LE(rms_ratio(got.o, want.o), form.output == DType::kF32 ? 1e-4 : 0.005) << problem.shape.text();
      EXPECT_LE(rms_ratio(got.pages, want.pages), 1e-4) << problem.shape.text();
      EXPECT_LE(rms_ratio(got.snapshots, want.snapshots), 1e-4) << problem.shape.text();
    }
  }
}

// A gate a head, of one sequence with rows enough that a block makes the factors of all value heads of a key head, and of its beginning, which has not.
TEST_F(DeltaPrefill, SharedProductsChangeNoBit) {
  for (const DType output : {DType::kBF16, DType::kF32}) {
    DeltaCase problem(shape_of({.heads = 20, .value_heads = 40, .gate = DeltaGate::kSoftplus, .gate_per_channel = false, .output = output, .lengths = {3400}, .past = {10}}));
    DeltaPrefillArgs args = prefill_args(problem);
    const PrefillResult all = run(args), want = truth(args);
    EXPECT_LE(rms_ratio(all.o, want.o), 0.005);
    EXPECT_LE(rms_ratio(all.pages, want.pages), 0.005);
    std::int64_t cu[2] = {0, 1000};
    for (Tensor* t : {&args.in.q, &args.in.k, &args.in.v, &args.in.f, &args.in.b, &args.o}) *t = t->rows(0, cu[1]);
    args.cu_seqlens = Tensor::contiguous(cu, DType::kI64, {2});
    const PrefillResult some = run(args);
    for (std::size_t i = 0; i < some.o.size(); ++i) ASSERT_EQ(some.o[i], all.o[i]) << i;
  }
}

// A gate a head and few heads: segments of 2048 positions, by batch and alone.
TEST_F(DeltaPrefill, SegmentsWithAGateAHead) {
  for (const DType output : {DType::kBF16, DType::kF32}) {
    DeltaCase problem(shape_of({.heads = 2, .value_heads = 4, .gate = DeltaGate::kSoftplus, .gate_per_channel = false, .output = output, .gap = 8,
                                .lengths = {600, 6300, 0, 40, 2100}, .past = {2000, 100, 5, 2040, 2048}}));
    DeltaPrefillArgs args = prefill_args(problem);
    const PrefillResult all = run(args), want = truth(args);
    EXPECT_LE(rms_ratio(all.o, want.o), 0.005);
    EXPECT_LE(rms_ratio(all.pages, want.pages), 0.005);
    std::printf("RMS ratio o %.1e S %.1e\n", rms_ratio(all.o, want.o), rms_ratio(all.pages, want.pages));
    std::int64_t cu[2] = {0, 6000};  // the second sequence, without its last rows
    std::int32_t slot = args.slots.as<std::int32_t>()[1];
    for (Tensor* t : {&args.in.q, &args.in.k, &args.in.v, &args.in.f, &args.in.b, &args.o}) *t = t->rows(600, cu[1]);
    args.cu_seqlens = Tensor::contiguous(cu, DType::kI64, {2});
    args.slots = Tensor::contiguous(&slot, DType::kI32, {1});
    std::int64_t past = 100;
    args.past = Tensor::contiguous(&past, DType::kI64, {1});
    const PrefillResult alone = run(args);
    for (std::size_t i = 0; i < alone.o.size(); ++i) ASSERT_EQ(alone.o[i], all.o[600 * 4 * 128 + i]) << i;
  }
}

TEST_F(DeltaPrefill, SegmentsWithAGateAHeadAreWithinTheBound) {
  DeltaCase problem(shape_of({.heads = 1, .value_heads = 1, .gate = DeltaGate::kSoftplus, .gate_per_channel = false, .output = DType::kBF16, .lengths = {4300}}));
  set_speed(problem, Speed::kSlow);
  expect_right(run(prefill_args(problem)), problem);
}

// A gate a head and many heads: a workspace that does not hold the factors of all chunks, between whose launches a BF16 page is not rounded.
TEST_F(DeltaPrefill, PassesOverChunksChangeNoBit) {
  for (const DType state : {DType::kF32, DType::kBF16}) {
    DeltaCase problem(shape_of({.heads = 18, .value_heads = 18, .gate = DeltaGate::kSoftplus, .gate_per_channel = false, .state = state, .lengths = {700, 0, 90, 300}, .past = {7, 0, 64, 3}}));
    const DeltaPrefillArgs args = prefill_args(problem);
    const PrefillResult all = run(args), want = truth(args);
    EXPECT_LE(rms_ratio(all.o, want.o), 0.005);
    for (const double share : {0.5, 0.0}) {
      const PrefillResult some = run(args, share);
      EXPECT_EQ(some.o, all.o) << share;
      EXPECT_EQ(some.pages, all.pages) << share;
    }
  }
}

// A graph is captured with one batch and replayed with another of as many rows: lengths are read on the device only.
TEST_F(DeltaPrefill, AGraphIsReplayedWithOtherLengths) {
  struct Form {
    DeltaGate gate;
    bool channel;
    std::int64_t heads;
  };
  for (const Form form : {Form{DeltaGate::kBounded, true, 2}, {DeltaGate::kBounded, true, 50}, {DeltaGate::kSoftplus, false, 4}, {DeltaGate::kSoftplus, true, 2}}) {
    DeltaShape shape = shape_of({.heads = form.heads, .value_heads = form.heads, .gate = form.gate, .gate_per_channel = form.channel, .lengths = {700, 0, 60, 40}});
    DeltaCase captured(shape);
    shape.lengths = {90, 3, 0, 707};
    DeltaCase problem(shape);
    const DeltaPrefillArgs args = prefill_args(problem);
    const PrefillResult want = run(args);
    const PrefillResult got = run(args, 1, [&](const DeltaPrefillArgs& there) {
      auto& lengths = memory_.emplace_back(args.cu_seqlens.bytes());
      lengths.copy_from_host(captured.args.cu_seqlens.data, args.cu_seqlens.bytes());
      DeltaPrefillArgs first = there;
      first.cu_seqlens.data = lengths.data();
      test::replay([&](void* stream) { cuda::delta_prefill(first, stream); },
                   [&] { lengths.copy_from_host(args.cu_seqlens.data, args.cu_seqlens.bytes()); });
    });
    EXPECT_EQ(got.o, want.o) << form.heads;
    EXPECT_EQ(got.pages, want.pages) << form.heads;
  }
}

TEST_F(DeltaPrefill, BatchMatesLaterTokensAndWorkspaceChangeNoBit) {
  struct Form {
    DeltaGate gate;
    bool channel;
    std::int64_t rows;
  };
  // In one kernel, with segments; in two, with a workspace; a gate a head.
  for (const Form form : {Form{DeltaGate::kBounded, true, 90}, {DeltaGate::kBounded, true, 1390}, {DeltaGate::kSoftplus, true, 90}, {DeltaGate::kSoftplus, false, 390}}) {
    DeltaCase problem(shape_of({.heads = 3, .value_heads = 3, .gate = form.gate, .gate_per_channel = form.channel, .lengths = {200, form.rows, 300}}));
    set_speed(problem, Speed::kMixed);
    DeltaPrefillArgs args = prefill_args(problem);
    const PrefillResult together = run(args), again = run(args), small = run(args, 0.2), least = run(args, 0);
    EXPECT_EQ(together.o, again.o);
    EXPECT_EQ(together.o, small.o);
    EXPECT_EQ(together.pages, small.pages);
    EXPECT_EQ(together.o, least.o);
    EXPECT_EQ(together.pages, least.pages);
    // The second sequence alone, without its last 37 rows.
    std::vector<std::int64_t> cu = {0, form.rows - 37};
    std::vector<std::int32_t> slot = {args.slots.as<std::int32_t>()[1]};
    for (Tensor* t : {&args.in.q, &args.in.k, &args.in.v, &args.in.f, &args.in.b, &args.o}) *t = t->rows(200, form.rows - 37);
    args.cu_seqlens = Tensor::contiguous(cu.data(), DType::kI64, {2});
    args.slots = Tensor::contiguous(slot.data(), DType::kI32, {1});
    args.past = {};
    const PrefillResult alone = run(args);
    for (std::size_t i = 0; i < alone.o.size(); ++i) ASSERT_EQ(alone.o[i], together.o[200 * 3 * 128 + i]) << i;
  }
}

TEST_F(DeltaPrefill, ANegativeSlotGivesZerosAndTouchesNothing) {
  DeltaCase problem(shape_of({.heads = 1, .value_heads = 2, .lengths = {70, 80, 3}}));
  problem.args.slots.as<std::int32_t>()[1] = -1;
  expect_right(run(prefill_args(problem)), problem);
}

struct ForwardForm {
  DeltaGate gate;
  bool channel;
};
/// What forward passes take: in chunks and never in segments; and steps.
constexpr ForwardForm kForwardForms[] = {{DeltaGate::kLogDecay, true}, {DeltaGate::kBounded, true}, {DeltaGate::kLogDecay, false}, {DeltaGate::kNone, false}};

// A prompt in passes that end at multiples of 64, each from the pages that the one before has left.
TEST_F(DeltaPrefill, InTurnCutsAtMultiplesOf64ChangeNoBit) {
  constexpr std::int64_t kRows = 2500, kHeads = 3;
  for (const ForwardForm form : kForwardForms) {
    DeltaCase problem(shape_of({.heads = kHeads, .value_heads = kHeads, .gate = form.gate, .gate_per_channel = form.channel, .lengths = {kRows}}));
    DeltaPrefillArgs args = prefill_args(problem);
    args.in_turn = true;
    const PrefillResult all = run(args), want = truth(args);
    EXPECT_LE(rms_ratio(all.o, want.o), 0.005);
    std::vector<double> o;
    std::vector<float> pages;
    std::int64_t begin = 0;
    for (const std::int64_t end : {64, 1024, 1088, 2304, 2500}) {
      DeltaPrefillArgs part = args;
      std::int64_t cu[2] = {0, end - begin}, past = begin;
      for (Tensor* t : {&part.in.q, &part.in.k, &part.in.v, &part.in.f, &part.in.b, &part.o}) {
        if (t->defined()) *t = t->rows(begin, cu[1]);
      }
      part.cu_seqlens = Tensor::contiguous(cu, DType::kI64, {2});
      part.past = Tensor::contiguous(&past, DType::kI64, {1});
      if (begin > 0) part.pages.data = pages.data();
      const PrefillResult some = run(part);
      o.insert(o.end(), some.o.begin(), some.o.end());
      pages.assign(some.pages.begin(), some.pages.end());
      begin = end;
    }
    EXPECT_EQ(o, all.o) << static_cast<int>(form.gate) << form.channel;
    EXPECT_EQ(std::vector<double>(pages.begin(), pages.end()), all.pages) << static_cast<int>(form.gate) << form.channel;
  }
}

TEST_F(DeltaPrefill, RowsOfOthersAreLeftAlone) {
  for (const ForwardForm form : kForwardForms) {
    DeltaCase problem(shape_of({.heads = 1, .value_heads = 2, .gate = form.gate, .gate_per_channel = form.channel, .lengths = {70, 80, 3}}));
    DeltaPrefillArgs args = prefill_args(problem);
    args.in_turn = true;
    const PrefillResult all = run(args);
    std::fill_n(args.o.as<float>(), args.o.numel(), 7.0f);
    args.slots.as<std::int32_t>()[1] = kRowsOfOthers;
    const PrefillResult some = run(args);
    for (std::size_t i = 0; i < some.o.size(); ++i) ASSERT_EQ(some.o[i], i / 256 < 70 || i / 256 >= 150 ? all.o[i] : 7.0) << i;
    DeltaStepArgs step;
    step.in = args.in, step.pages = args.pages, step.cu_seqlens = args.cu_seqlens, step.slots = args.slots, step.o = args.o;
    for (Tensor* t : {&step.in.q, &step.in.k, &step.in.v, &step.in.f, &step.in.b, &step.in.a_log, &step.in.dt_bias, &step.pages, &step.cu_seqlens, &step.slots, &step.o}) *t = to_device(*t);
    cuda::delta_step(step, 80, nullptr);
    const std::vector<double> stepped = read(step.o);
    for (std::size_t i = 0; i < stepped.size(); ++i) ASSERT_EQ(stepped[i] == 7.0, i / 256 >= 70 && i / 256 < 150) << i;
  }
}

TEST(DeltaPrefillChecks, RefuseWhatTheKernelCannotDo) {
  DeltaCase problem(shape_of({.heads = 2, .value_heads = 2, .lengths = {5}}));
  DeltaPrefillArgs good;
  good.in = problem.args.in;
  good.pages = problem.args.pages;
  good.cu_seqlens = problem.args.cu_seqlens;
  good.slots = problem.args.slots;
  good.o = problem.args.o;
  EXPECT_NO_THROW(cuda::check_delta_prefill(good));
  const auto refused = [](const DeltaPrefillArgs& a, const char* field) {
    try {
      cuda::check_delta_prefill(a);
      ADD_FAILURE() << field << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  };
  DeltaPrefillArgs a = good;
  a.in.q.sizes[2] = 96;
  refused(a, "q: key width 96");
  a = good;
  a.workspace.data = reinterpret_cast<void*>(16);
  refused(a, "workspace: must begin at a multiple of 128 bytes");
  a = good;
  a.cu_seqlens.sizes[0] = 1;
  refused(a, "cu_seqlens: shape [1], expected [2]");
}

}  // namespace
}  // namespace palimpsest::test
