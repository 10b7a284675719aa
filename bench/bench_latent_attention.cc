// Latent attention at Kimi K3's widths (512 + 64, heads of 128 + 64 and 128) against this machine's floors, measured in the same run:
//   of_fma    multiply-adds that the form needs / time, as a share of the measured rate of the same threads
//   of_read   bytes of the list / time, as a share of the measured read bandwidth (decode only)
// A decode must take at least the larger of the two floors.

#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "base/number_formats.h"
#include "base/rng.h"
#include "kernels/cpu/latent_attention.h"
#include "kernels/cpu/latent_tasks.h"
#include "machine/machine.h"
#include "ops/ops.h"

namespace {

using namespace palimpsest;

constexpr std::int64_t kLatent = 512, kShared = 64, kNope = 128, kValue = 128, kBlock = 64;

struct Problem {
  Problem(std::int64_t num_heads, std::int64_t tokens_before, std::int64_t rows, bool in_q8 = false)
      : heads(num_heads), past(tokens_before), q8(in_q8), cu{0, rows} {
    const std::int64_t blocks = (past + rows + kBlock - 1) / kBlock;
    // Any bits are codes; as BF16 scales these are numbers below one.
    list = random(blocks * kBlock * (kLatent + kShared), 1);
    kv_b = random(heads * (kNope + kValue) * kLatent, 2);
    q.resize(static_cast<std::size_t>(rows * heads * (kNope + kShared)), 0.01f);
    o.resize(static_cast<std::size_t>(rows * heads * kValue));
    table.resize(static_cast<std::size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
  }

  static std::vector<std::uint16_t> random(std::int64_t n, std::uint64_t seed) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = float_to_bf16(static_cast<float>(base::uniform(seed, i % 65536, 0) - 0.5));
    }
    return values;
  }

  LatentAttentionArgs args(LatentForm form) {
    LatentAttentionArgs a;
    a.q = Tensor::contiguous(q.data(), DType::kF32, {cu[1], heads, kNope + kShared});
    a.kv_b.dense = Tensor::contiguous(kv_b.data(), DType::kBF16, {heads * (kNope + kValue), kLatent});
    const auto blocks = static_cast<std::int64_t>(table.size());
    const Q8Rows rows = q8_latent_rows(kLatent, kShared);
    a.list = {q8 ? Tensor::contiguous(list.data(), DType::kI8, {blocks, kBlock, rows.row_bytes()})
                 : Tensor::contiguous(list.data(), DType::kBF16, {blocks, kBlock, kLatent + kShared}),
              Tensor::contiguous(table.data(), DType::kI32, {1, blocks}), q8 ? rows : Q8Rows{}};
    a.rows = {Tensor::contiguous(cu.data(), DType::kI64, {2}), Tensor::contiguous(&slot, DType::kI32, {1})};
    a.past = Tensor::contiguous(&past, DType::kI64, {1});
    a.scale = 1 / std::sqrt(static_cast<float>(kNope + kShared));
    a.o = Tensor::contiguous(o.data(), DType::kF32, {cu[1], heads, kValue});
    a.form = form;
    return a;
  }

  std::int64_t heads, past;
  bool q8;
  std::vector<std::int64_t> cu;
  std::int32_t slot = 0;
  std::vector<std::int32_t> table;
  std::vector<std::uint16_t> list, kv_b;
  std::vector<float> q, o;
};

double fma_rate(int threads) {
  static const double one = measure_fma_rate(1), two = measure_fma_rate(2);
  return threads == 1 ? one : two;
}
double read_bandwidth(int threads) {
  static const double one = measure_read_bandwidth(256 << 20, 1), two = measure_read_bandwidth(256 << 20, 2);
  return threads == 1 ? one : two;
}

void run(benchmark::State& state, Problem& problem, LatentForm form, int threads, double operations, double bytes) {
  ExecContext ctx(threads);
  ctx.workspace.reserve(
      cpu::latent_attention_workspace_bytes(problem.heads, kLatent, kLatent + kShared, problem.cu[1]));
  const LatentAttentionArgs args = problem.args(form);
  for (auto _ : state) ops::latent_attention(ctx, args);
  const auto per_second = [](double n) { return benchmark::Counter(n, benchmark::Counter::kIsIterationInvariantRate); };
  state.counters["of_fma"] = per_second(operations / fma_rate(threads));
  if (bytes > 0) state.counters["of_read"] = per_second(bytes / read_bandwidth(threads));
}

void Decode(benchmark::State& state) {
  const std::int64_t heads = state.range(0), length = state.range(1);
  const bool q8 = state.range(3) != 0;
  Problem problem(heads, length - 1, 1, q8);
  const double attend = 2.0 * static_cast<double>(length * heads * (2 * kLatent + kShared));
  const double fold = 2.0 * static_cast<double>(heads * (kNope + kValue) * kLatent);
  run(state, problem, LatentForm::kAbsorbed, static_cast<int>(state.range(2)), attend + fold,
      static_cast<double>(length * (q8 ? q8_latent_rows(kLatent, kShared).row_bytes() : 2 * (kLatent + kShared))));
}

void Prefill(benchmark::State& state) {
  const std::int64_t heads = state.range(0), rows = state.range(1);
  Problem problem(heads, 0, rows);
  const double pairs = static_cast<double>(rows * (rows + 1) / 2);
  const double keys = 2.0 * static_cast<double>(heads * rows * (kNope + kValue) * kLatent);
  run(state, problem, LatentForm::kMaterialized, static_cast<int>(state.range(2)),
      keys + 2.0 * pairs * static_cast<double>(heads * (kNope + kShared + kValue)), 0);
}

/// Some rows after a long past, as in the second turn of a chat. Operations: of the form that is measured.
void Append(benchmark::State& state) {
  const std::int64_t heads = state.range(0), past = state.range(1), rows = state.range(2);
  const auto form = static_cast<LatentForm>(state.range(3));
  Problem problem(heads, past, rows);
  const cpu::LatentShape shape{heads, kNope, kShared, kValue, kLatent};
  const bool absorbed = form == LatentForm::kAbsorbed || (form == LatentForm::kAuto && cpu::prefers_absorbed(shape, past, rows));
  const std::int64_t pairs = cpu::attended_pairs(past, rows), fold = kLatent * (kNope + kValue);
  const std::int64_t each_head = absorbed ? pairs * (2 * kLatent + kShared) + rows * fold : pairs * (kNope + kShared + kValue) + (past + rows) * fold;
  run(state, problem, form, static_cast<int>(state.range(4)), 2.0 * static_cast<double>(heads * each_head), 0);
}

BENCHMARK(Decode)->ArgNames({"heads", "length", "threads", "q8"})->ArgsProduct({{3, 32, 96}, {2048, 131072}, {1, 2}, {0, 1}})->UseRealTime();
BENCHMARK(Append)->ArgNames({"heads", "past", "rows", "form", "threads"})->ArgsProduct({{12}, {4096}, {4, 16, 64, 128, 256, 512}, {0, 1, 2}, {1, 2}})->UseRealTime();
/// Kimi Linear's heads, whose rows lie 24 and 16 KiB apart.
BENCHMARK(Append)->ArgNames({"heads", "past", "rows", "form", "threads"})->ArgsProduct({{32}, {4096}, {512, 2048}, {2}, {1}})->UseRealTime();
BENCHMARK(Prefill)->ArgNames({"heads", "rows", "threads"})->ArgsProduct({{3}, {512, 4096}, {1, 2}})->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
