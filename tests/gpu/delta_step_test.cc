#include "gpu/delta_step_case.h"
#include "gpu/device_test.h"
#include "kernels/cuda/delta_checks.h"
#include "kernels/cuda/delta_kernels.h"
#include "palimpsest/error.h"

namespace palimpsest::test {
namespace {

struct StepResult {
  std::vector<double> o, pages, tails, snapshots;
};

class DeltaStep : public DeviceTest {
 protected:
  DeltaStepArgs to_device(const DeltaStepArgs& a) {
    DeltaStepArgs there = a;
    for (Tensor* t : {&there.in.q, &there.in.k, &there.in.v, &there.in.f, &there.in.b, &there.in.a_log, &there.in.dt_bias, &there.conv.weight,
                      &there.conv.tails, &there.norm.weight, &there.norm.gate, &there.pages, &there.cu_seqlens, &there.slots, &there.snapshots,
                      &there.snapshot_slots, &there.o}) {
      *t = DeviceTest::to_device(*t);
    }
    return there;
  }
  std::vector<double> read(Tensor t) {
    if (!t.defined()) return {};
    std::vector<std::byte> host(static_cast<std::size_t>(t.bytes()));
    from_device(t, host.data());
    t.data = host.data();
    return values_of(t);
  }
  StepResult run(const DeltaStepArgs& a, std::int64_t max_rows = sm90_rows) {
    const DeltaStepArgs there = to_device(a);
    cuda::delta_step(there, max_rows, nullptr);
    return {read(there.o), read(there.pages), read(there.conv.tails), read(there.snapshots)};
  }
  static constexpr std::int64_t sm90_rows = 8;
};

std::vector<DeltaShape> shapes() {
  const std::vector<std::int64_t> ragged = {1, 0, 7, 8, 9, 17, 2};
  std::vector<DeltaShape> all;
  for (const std::int64_t width : {64, 128, 256}) {
    for (const std::int64_t values : {32, 96, 128, 256}) all.push_back({.heads = 3, .value_heads = 3, .width = width, .values = values, .lengths = ragged});
  }
  for (const DeltaGate gate : {DeltaGate::kNone, DeltaGate::kLogDecay, DeltaGate::kBounded, DeltaGate::kSoftplus}) {
    for (const bool channel : {true, false}) {
      for (const PageWrite write : {PageWrite::kPlain, PageWrite::kDelta}) {
        all.push_back({.heads = 2, .value_heads = 4, .width = 128, .values = 64, .gate = gate, .gate_per_channel = channel, .write = write,
                       .input = channel ? DType::kF32 : DType::kBF16, .conv = false, .norm = channel, .gap = 24, .lengths = {3, 1, 12}});
      }
    }
  }
  all.push_back({.heads = 12, .value_heads = 12, .width = 128, .values = 128, .output = DType::kBF16, .lengths = std::vector<std::int64_t>(30, 1)});
  all.push_back({.heads = 12, .value_heads = 12, .width = 128, .values = 128, .state = DType::kBF16, .lengths = std::vector<std::int64_t>(30, 2)});
  all.push_back({.heads = 2, .value_heads = 2, .width = 64, .values = 64, .state = DType::kBF16, .lengths = {5, 1}});
  // Several tokens at once in vectors: whole pages a block and slices of 32 rows, rounds of sixteen tokens.
  all.push_back({.heads = 12, .value_heads = 12, .width = 128, .values = 128, .output = DType::kBF16, .lengths = std::vector<std::int64_t>(30, 16)});
  all.push_back({.heads = 2, .value_heads = 2, .width = 128, .values = 128, .state = DType::kBF16, .gap = 4, .lengths = {3, 33, 16, 2}});
  all.push_back({.heads = 2, .value_heads = 2, .width = 128, .values = 64, .input = DType::kF16, .output = DType::kF16, .lengths = {4, 1}});
  return all;
}

TEST_F(DeltaStep, MatchesTheTruth) {
  for (const DeltaShape& shape : shapes()) {
    const DeltaCase problem(shape);
    const DeltaTruth truth = delta_truth(problem);
    const StepResult got = run(problem.args, 16);
    EXPECT_TRUE(within(got.o, truth.o, truth.o_bound)) << shape.text();
    EXPECT_TRUE(within(got.pages, truth.pages, truth.page_bound)) << shape.text();
    if (!shape.conv) continue;
    for (std::int64_t n = 0; n < problem.batch.sequences(); ++n) {
      for (std::int64_t c = 0; c < problem.args.conv.weight.sizes[0]; ++c) ref::delta_tail_channel<double>(problem.args, n, c);
    }
    EXPECT_EQ(got.tails, values_of(problem.args.conv.tails)) << shape.text();
  }
}

TEST_F(DeltaStep, TheDeviceReferenceIsTheHostOne) {
  DeltaCase problem({.heads = 2, .value_heads = 2, .width = 64, .values = 32, .lengths = {3, 1, 0, 2}});
  const DeltaTruth truth = delta_truth(problem);
  std::vector<double> pages = values_of(problem.args.pages), o(truth.o.size());
  DeltaStepArgs args = problem.args;
  args.pages = Tensor::contiguous(pages.data(), DType::kF64, {args.pages.sizes[0], 2, 32, 64});
  args.o = Tensor::contiguous(o.data(), DType::kF64, {args.o.sizes[0], 2, 32});
  const DeltaStepArgs there = to_device(args);
  cuda::ref_delta_step(there);
  // Both in double: a few thousand roundings of 2^-53 instead of the bound's 2^-24.
  const auto tight = [](std::vector<double> bound) {
    for (double& b : bound) b *= 0x1p-24;
    return bound;
  };
  EXPECT_TRUE(within(read(there.o), truth.o, tight(truth.o_bound)));
  EXPECT_TRUE(within(read(there.pages), truth.pages, tight(truth.page_bound)));
}

TEST_F(DeltaStep, BatchMatesChangeNoBit) {
  // Many pages run as whole pages a block, few as slices of 32 rows.
  const DeltaShape many{.heads = 3, .value_heads = 3, .width = 128, .values = 128, .lengths = std::vector<std::int64_t>(100, 3)};
  DeltaCase problem(many);
  const StepResult together = run(problem.args);
  const std::int64_t row_size = 3 * 128, page = 3 * 128 * 128;
  for (const std::int64_t n : {0, 57, 99}) {
    DeltaStepArgs alone = problem.args;
    std::vector<std::int64_t> cu = {0, 3};
    std::vector<std::int32_t> slot = {alone.slots.as<std::int32_t>()[n]};
    for (Tensor* t : {&alone.in.q, &alone.in.k, &alone.in.v, &alone.in.f, &alone.in.b, &alone.norm.gate, &alone.o}) *t = t->rows(3 * n, 3);
    alone.cu_seqlens = Tensor::contiguous(cu.data(), DType::kI64, {2});
    alone.slots = Tensor::contiguous(slot.data(), DType::kI32, {1});
    const StepResult got = run(alone);
    for (std::int64_t i = 0; i < 3 * row_size; ++i) ASSERT_EQ(got.o[static_cast<std::size_t>(i)], together.o[static_cast<std::size_t>(3 * n * row_size + i)]);
    for (std::int64_t i = slot[0] * page; i < (slot[0] + 1) * page; ++i) ASSERT_EQ(got.pages[static_cast<std::size_t>(i)], together.pages[static_cast<std::size_t>(i)]);
  }
}

TEST_F(DeltaStep, TokensInFlightChangeNoBit) {
  const DeltaCase problem({.heads = 2, .value_heads = 2, .width = 128, .values = 64, .lengths = {16, 5}});
  const StepResult one = run(problem.args, 1);
  for (const std::int64_t rows : {8, 16}) {
    const StepResult many = run(problem.args, rows);
    EXPECT_EQ(many.o, one.o);
    EXPECT_EQ(many.pages, one.pages);
    EXPECT_EQ(many.tails, one.tails);
  }
  std::vector<std::int32_t> cu = {0, 16, 21};
  DeltaStepArgs narrow = problem.args;
  narrow.cu_seqlens = Tensor::contiguous(cu.data(), DType::kI32, {3});
  EXPECT_EQ(run(narrow, 16).o, one.o);
}

TEST_F(DeltaStep, RowsThatCannotBeReadInVectorsGiveTheSameBits) {
  for (const std::int64_t heads : {2, 40}) {
    const DeltaShape shape{.heads = heads, .value_heads = heads, .width = 128, .values = 128, .state = DType::kBF16, .lengths = std::vector<std::int64_t>(7, 5)};
    const DeltaCase in_vectors(shape);
    DeltaCase apart(shape);
    std::vector<std::uint16_t> keys(static_cast<std::size_t>(35 * (heads * 128 + 1)));
    apart.args.in.k = Tensor::contiguous(keys.data(), DType::kBF16, {35, heads, 128});
    apart.args.in.k.strides[0] += 1;
    for (std::int64_t r = 0; r < 35; ++r) std::copy_n(in_vectors.args.in.k.as<std::uint16_t>() + r * heads * 128, heads * 128, keys.begin() + r * (heads * 128 + 1));
    const StepResult want = run(in_vectors.args), got = run(apart.args);
    EXPECT_EQ(got.o, want.o);
    EXPECT_EQ(got.pages, want.pages);
    EXPECT_EQ(got.tails, want.tails);
  }
}

TEST_F(DeltaStep, OneTokenASequenceIsTheSameBitsAsRaggedRows) {
  // Without cu_seqlens the kernel for plain decode runs.
  for (const bool many : {false, true}) {
    for (const bool extras : {false, true}) {
      for (const DType state : {DType::kF32, DType::kBF16}) {
        const DeltaCase problem({.heads = 12, .value_heads = 12, .width = 128, .values = 128, .state = state, .output = DType::kBF16, .conv = extras,
                                 .norm = extras, .lengths = std::vector<std::int64_t>(many ? 30 : 2, 1)});
        DeltaStepArgs plain = problem.args;
        plain.cu_seqlens = {};
        plain.slots.as<std::int32_t>()[1] = -1;
        const StepResult ragged = run(problem.args), got = run(plain);
        EXPECT_EQ(got.o, ragged.o) << many << extras;
        EXPECT_EQ(got.pages, ragged.pages) << many << extras;
        EXPECT_EQ(got.tails, ragged.tails) << many << extras;
        const DeltaTruth truth = delta_truth(problem);
        EXPECT_TRUE(within(got.o, truth.o, truth.o_bound));
        EXPECT_TRUE(within(got.pages, truth.pages, truth.page_bound));
      }
    }
  }
}

TEST_F(DeltaStep, SnapshotsAreThePagesOfShorterRuns) {
  for (const std::int64_t width : {64, 128}) {
    DeltaCase problem({.heads = 2, .value_heads = 2, .width = width, .values = 32, .lengths = {6}});
    std::vector<std::int32_t> to = {3, -1, 0, -1, -1, 2};
    const std::size_t page = static_cast<std::size_t>(2 * 32 * width);
    std::vector<float> snapshots(4 * page, 7);
    DeltaStepArgs args = problem.args;
    args.snapshots = Tensor::contiguous(snapshots.data(), DType::kF32, {4, 2, 32, width});
    args.snapshot_slots = Tensor::contiguous(to.data(), DType::kI32, {6});
    const std::vector<double> got = run(args).snapshots;
    const std::size_t slot = static_cast<std::size_t>(args.slots.as<std::int32_t>()[0]);
    for (std::size_t i = 0; i < page; ++i) ASSERT_EQ(got[page + i], 7);  // slot 1 was not asked for
    for (const std::size_t length : {1, 3, 6}) {
      std::vector<std::int64_t> cu = {0, static_cast<std::int64_t>(length)};
      DeltaStepArgs shorter = problem.args;
      for (Tensor* t : {&shorter.in.q, &shorter.in.k, &shorter.in.v, &shorter.in.f, &shorter.in.b, &shorter.norm.gate, &shorter.o}) *t = t->rows(0, cu[1]);
      shorter.cu_seqlens = Tensor::contiguous(cu.data(), DType::kI64, {2});
      const std::vector<double> pages = run(shorter).pages;
      const std::size_t from = page * static_cast<std::size_t>(to[length - 1]);
      for (std::size_t i = 0; i < page; ++i) ASSERT_EQ(got[from + i], pages[slot * page + i]) << length;
    }
  }
}

TEST_F(DeltaStep, ANegativeSlotGivesZerosAndTouchesNothing) {
  DeltaCase problem({.heads = 2, .value_heads = 2, .width = 64, .values = 64, .lengths = {2, 3, 1}});
  problem.args.slots.as<std::int32_t>()[1] = -1;
  const std::vector<double> pages = values_of(problem.args.pages), tails = values_of(problem.args.conv.tails);
  const StepResult got = run(problem.args);
  const DeltaTruth truth = delta_truth(problem);
  EXPECT_TRUE(within(got.o, truth.o, truth.o_bound));
  EXPECT_TRUE(within(got.pages, truth.pages, truth.page_bound));  // zero bounds for the slot that nobody names
  EXPECT_EQ(got.tails.size(), tails.size());
  const std::size_t tail = static_cast<std::size_t>(problem.args.conv.tails.strides[0]), unused = 3;  // the middle sequence's slot
  for (std::size_t i = unused * tail; i < (unused + 1) * tail; ++i) ASSERT_EQ(got.tails[i], tails[i]);
}

TEST(DeltaStepChecks, RefuseWhatTheKernelCannotDo) {
  const DeltaCase good({.heads = 2, .value_heads = 2, .width = 64, .values = 32});
  const auto refused = [](DeltaStepArgs a, const char* field) {
    try {
      cuda::check_delta_step(a);
      ADD_FAILURE() << field << " was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  };
  EXPECT_NO_THROW(cuda::check_delta_step(good.args));
  DeltaStepArgs a = good.args;
  a.in.k.sizes[0] = 2;
  refused(a, "k: shape [2, 2, 64], expected [1, 2, 64]");
  a = good.args;
  a.in.v.sizes[1] = 3;
  refused(a, "v: 3 value heads are not a multiple of 2 heads");
  a = good.args;
  a.pages.data = a.pages.as<float>() + 1;
  refused(a, "pages: rows of K must be contiguous and begin at multiples of 16 bytes");
  a = good.args;
  a.o.dtype = DType::kI32;
  refused(a, "o: type");
  a = good.args;
  a.cu_seqlens = {};
  a.slots.sizes[0] = 4;
  refused(a, "slots: 4 sequences for 1 rows");
  a = good.args;
  a.in.q.sizes[2] = 96;
  refused(a, "q: key width 96");
}

}  // namespace
}  // namespace palimpsest::test
