// Products of the shapes of Kimi-Linear-48B: what is used for so many rows beside the kernels that take any number of rows, which have the same bits.

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cases.h"
#include "kernels/cuda/plain_kernels.h"
#include "kernels/cuda/tile_kernels.h"

namespace palimpsest::bench {
namespace {

using Fill = DeviceTensor::Fill;

enum Kind { kBF16, kMxfp4, kF16, kQ8_0, kQ4_K, kQ6_K };
constexpr const char* kNames[] = {" BF16", " MXFP4", " F16", " Q8_0", " Q4_K", " Q6_K"};

/// Weights [n, k] as they are stored.
struct Weights {
  DeviceTensor numbers, scales;
  Matrix matrix;
  Weights(Kind kind, std::int64_t n, std::int64_t k, std::uint64_t seed) {
    if (kind == kBF16 || kind == kF16) {
      numbers = DeviceTensor(DType::kBF16, {n, k}, Fill::kNormal, 0, 0.03f, seed);
      matrix.dense = numbers;
      if (kind == kF16) matrix.dense.dtype = DType::kF16;  // the bits of other numbers, near 1
    } else if (kind == kMxfp4) {
      numbers = DeviceTensor(DType::kI8, {n, k / 2}, Fill::kUniform, -128, 127, seed);
      scales = DeviceTensor(DType::kI8, {n, k / 32}, Fill::kUniform, 116, 124, seed + 1);
      matrix.mx = {numbers, scales};
      matrix.mx.codes.dtype = matrix.mx.scales.dtype = DType::kU8;
    } else {
      // Random bytes, 4096 blocks again and again; the upper bytes of d and dmin make them 2^-10 to 2^-8.
      const BlockType type = kind == kQ8_0 ? BlockType::kQ8_0 : kind == kQ4_K ? BlockType::kQ4_K : BlockType::kQ6_K;
      const auto size = static_cast<std::size_t>(block_bytes(type)), all = static_cast<std::size_t>(n * k / block_columns(type)) * size;
      const std::size_t at = kind == kQ6_K ? 209u : 1u;
      std::vector<std::uint8_t> bytes(all);
      for (std::size_t i = 0; i < all; ++i) {
        bytes[i] = i >= 4096 * size ? bytes[i - 4096 * size] : static_cast<std::uint8_t>(256 * base::uniform(seed, i, 0));
        if (i % size == at || (kind == kQ4_K && i % size == 3)) bytes[i] = static_cast<std::uint8_t>(0x14 + bytes[i] % 8);
      }
      numbers = DeviceTensor(DType::kU8, {static_cast<std::int64_t>(all)});
      numbers.upload(bytes.data());
      matrix.blocks = BlockTensor::contiguous(numbers.get().data, type, n, k, DeviceKind::kCuda);
    }
  }
  /// Rows [first, first + count).
  Matrix rows(std::int64_t first, std::int64_t count) const {
    Matrix m;
    if (matrix.is_mx()) m.mx = {matrix.mx.codes.rows(first, count), matrix.mx.scales.rows(first, count)};
    else if (!matrix.is_blocks()) m.dense = matrix.dense.rows(first, count);
    else m.blocks = matrix.blocks, m.blocks.rows = count, m.blocks.data = static_cast<std::uint8_t*>(m.blocks.data) + first * m.blocks.row_bytes;
    return m;
  }
};

/// A line: the time without and with what is new, the floor, and whether both gave the same bits.
void report_pair(const std::string& name, double before, double now, double flops, double bytes, const Difference& difference, Report& report) {
  Result result;
  result.name = name;
  result.microseconds = now;
  result.flops = flops;
  result.bytes = bytes;
  result.output = difference;
  const double floor = std::max(bytes / ceilings().copy_tbs * 1e-6, ceilings().gemm_tflops > 0 ? flops / ceilings().gemm_tflops * 1e-6 : 0);
  std::printf("%-62s %9.1f -> %9.1f us, floor %8.1f%s\n", name.c_str(), before, now, floor, difference.rms == 0 && difference.finite ? "" : "  OTHER BITS");
  report.add(result);
}

/// Several such sets of weights in turn, so that L2 holds none.
void dense_case(const char* what, Kind kind, int parts, std::int64_t rows, std::int64_t k, const std::vector<std::int64_t>& outputs, Report& report) {
  const std::string name = std::string("products ") + what + kNames[kind] + (parts == 2 ? " q16" : " q8") + " T=" + std::to_string(rows);
  if (!wanted(name)) return;
  const DeviceTensor x(DType::kF32, {rows, k}, Fill::kNormal, 0, 1, 1);
  std::vector<Weights> weights;
  std::vector<DeviceTensor> y, want;
  double flops = 0, bytes = static_cast<double>(x.get().bytes());
  for (const std::int64_t n : outputs) {
    weights.emplace_back(kind, n, k, static_cast<std::uint64_t>(3 + weights.size()));
    y.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{rows, n});
    want.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{rows, n});
    flops += 2.0 * static_cast<double>(rows * n * k);
    bytes += static_cast<double>(weights.back().matrix.bytes() + rows * n * 4);
  }
  const int rotations = static_cast<int>(std::clamp(3e8 / bytes, 1.0, 16.0));
  while (weights.size() < outputs.size() * static_cast<std::size_t>(rotations)) weights.emplace_back(kind, outputs[weights.size() % outputs.size()], k, static_cast<std::uint64_t>(3 + weights.size()));
  const auto products = [&](int turn, const std::vector<DeviceTensor>& to) {
    std::vector<MatmulArgs> all;
    for (std::size_t i = 0; i < to.size(); ++i) all.push_back({x, weights[static_cast<std::size_t>(turn) * to.size() + i].matrix, to[i]});
    return all;
  };
  const std::int64_t workspace = cuda::tile_workspace_bytes(products(0, y), parts);
  const DeviceTensor memory(DType::kU8, {std::max<std::int64_t>(workspace, 1)});
  void* const there = workspace > 0 ? memory.get().data : nullptr;
  const auto run_old = [&](int turn, cudaStream_t stream) { cuda::tile_matmul(products(turn, want), parts, nullptr, stream); };
  const auto run = [&](int turn, cudaStream_t stream) { cuda::tile_matmul(products(turn, y), parts, there, stream); };
  run_old(0, nullptr);
  run(0, nullptr);
  Difference difference;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const Difference one = compare(y[i], want[i]);
    difference.rms = std::max(difference.rms, one.rms);
    difference.finite = difference.finite && one.finite;
  }
  const double before = time_graph(rotations, run_old), now = time_graph(rotations, run);
  report_pair(name, before, now, flops, bytes, difference, report);
}

/// As many matrices in turn, beside the plain kernels, which compute in F32.
void form_case(Kind kind, int parts, std::int64_t rows, std::int64_t n, int matrices, Report& report) {
  constexpr std::int64_t k = 4096;
  const std::string name = std::string("products forms") + kNames[kind] + (parts == 2 ? " q16" : " q8") + " T=" + std::to_string(rows) + " n=" + std::to_string(n);
  if (!wanted(name)) return;
  const DeviceTensor x(DType::kF32, {rows, k}, Fill::kNormal, 0, 1, 1), y(DType::kF32, {rows, n}), want(DType::kF32, {rows, n});
  std::vector<Weights> weights;
  for (int i = 0; i < matrices; ++i) weights.emplace_back(kind, n, k, static_cast<std::uint64_t>(i));
  const auto run = [&](int i, cudaStream_t stream) {
    const MatmulArgs product{x, weights[static_cast<std::size_t>(i)].matrix, y};
    cuda::tile_matmul({&product, 1}, parts, nullptr, stream);
  };
  const auto run_plain = [&](int i, cudaStream_t stream) { cuda::plain::matmul({x, weights[static_cast<std::size_t>(i)].matrix, want}, stream); };
  const bool compared = rows <= 64;  // or they take too long
  run(0, nullptr);
  if (compared) run_plain(0, nullptr);
  const Difference difference = compared ? compare(y, want) : Difference{};
  const double before = compared ? time_graph(matrices, run_plain) : 0, now = time_graph(matrices, run);
  report_pair(name, before, now, 2.0 * static_cast<double>(rows * n * k), static_cast<double>(weights[0].matrix.bytes() + rows * n * 4 + x.get().bytes()), difference, report);
}

void expert_case(Kind kind, int parts, std::int64_t rows, int most_before, Report& report) {
  const std::string name = std::string("products experts") + kNames[kind] + (parts == 2 ? " q16" : " q8") + " T=" + std::to_string(rows);
  if (!wanted(name)) return;
  constexpr std::int64_t kExperts = 256, kTopK = 8, kWidth = 2304, kInter = 1024;
  constexpr int kRotations = 8;
  const Weights w1(kind, kExperts * kInter, kWidth, 1), w3(kind, kExperts * kInter, kWidth, 3), w2(kind, kExperts * kWidth, kInter, 5);
  std::vector<ExpertMatrices> experts;
  for (std::int64_t e = 0; e < kExperts; ++e) experts.push_back({w1.rows(e * kInter, kInter), w3.rows(e * kInter, kInter), w2.rows(e * kWidth, kWidth)});
  std::vector<std::uint8_t> table(static_cast<std::size_t>(cuda::plain::expert_table_bytes(kExperts)));
  cuda::plain::make_expert_table(experts.data(), kExperts, table.data());
  const DeviceTensor table_there(DType::kU8, {static_cast<std::int64_t>(table.size())});
  table_there.upload(table.data());
  const DeviceTensor x(DType::kF32, {rows, kWidth}, Fill::kNormal, 0, 1, 1), shares(DType::kF32, {rows, kTopK}, Fill::kUniform, 0.1f, 1, 2);
  const DeviceTensor y(DType::kF32, {rows, kWidth}), want(DType::kF32, {rows, kWidth});
  std::vector<DeviceTensor> ids;
  double touched = 0;
  for (int r = 0; r < kRotations; ++r) {
    std::vector<std::int32_t> chosen;
    std::vector<bool> seen(kExperts);
    for (std::int64_t t = 0; t < rows; ++t) {
      std::vector<std::int32_t> all(kExperts);
      for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<std::int32_t>(e);
      for (std::int64_t j = 0; j < kTopK; ++j) {
        const auto at = static_cast<std::size_t>(j + static_cast<std::int64_t>(base::uniform(static_cast<std::uint64_t>(7 + r), static_cast<std::uint64_t>(t * kTopK + j), 0) * static_cast<double>(kExperts - j)));
        std::swap(all[static_cast<std::size_t>(j)], all[at]);
        chosen.push_back(all[static_cast<std::size_t>(j)]);
        seen[static_cast<std::size_t>(chosen.back())] = true;
      }
    }
    touched += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / kRotations;
    ids.emplace_back(DType::kI32, std::initializer_list<std::int64_t>{rows, kTopK});
    ids.back().upload(chosen.data());
  }
  const DeviceTensor memory(DType::kU8, {cuda::plain::experts_workspace_bytes(rows, kTopK, kWidth, kInter, kExperts)});
  const int parts_before = kind > kMxfp4 ? 0 : parts;  // plain kernels
  const auto run = [&](int i, const Tensor& to, int most, cudaStream_t stream) {
    ExpertsArgs args;
    args.x = x, args.ids = ids[static_cast<std::size_t>(i)], args.weights = shares, args.y = to;
    args.experts = experts.data(), args.device_experts = table_there.get().data, args.num_experts = kExperts;
    cuda::plain::experts(args, kInter, to.data == want.get().data ? parts_before : parts, memory.get().data, stream, most);
  };
  run(0, want, most_before, nullptr);
  run(0, y, cuda::plain::kWideExpertRows, nullptr);
  const Difference difference = compare(y, want);
  const double before = time_graph(kRotations, [&](int i, cudaStream_t stream) { run(i, want, most_before, stream); });
  const double now = time_graph(kRotations, [&](int i, cudaStream_t stream) { run(i, y, cuda::plain::kWideExpertRows, stream); });
  const double expert = static_cast<double>(experts[0].w1.bytes() + experts[0].w3.bytes() + experts[0].w2.bytes());
  report_pair(name, before, now, 6.0 * static_cast<double>(rows * kTopK * kWidth * kInter), touched * expert + 2.0 * static_cast<double>(x.get().bytes()), difference, report);
}

}  // namespace

void product_cases(Report& report) {
  for (const int parts : {1, 2}) {
    dense_case("KDA in", kBF16, parts, 1, 2304, {4096, 4096, 4096, 128, 128, 32}, report);
    dense_case("KDA out", kBF16, parts, 1, 4096, {2304}, report);
    dense_case("KDA gates", kBF16, parts, 1, 128, {4096, 4096}, report);
    dense_case("router and shared up", kBF16, parts, 1, 2304, {256, 1024, 1024}, report);
    dense_case("head", kBF16, parts, 1, 2304, {163840}, report);
    for (const std::int64_t rows : {64, 12}) {
      dense_case("KDA in", kBF16, parts, rows, 2304, {4096, 4096, 4096, 128, 128, 32}, report);
      dense_case("KDA out", kBF16, parts, rows, 4096, {2304}, report);
      dense_case("KDA gates", kBF16, parts, rows, 128, {4096, 4096}, report);
      dense_case("MLA q", kBF16, parts, rows, 2304, {6144, 576}, report);
      dense_case("router and shared up", kBF16, parts, rows, 2304, {256, 1024, 1024}, report);
      dense_case("shared down", kBF16, parts, rows, 1024, {2304}, report);
      dense_case("head", kBF16, parts, rows, 2304, {163840}, report);
    }
    for (const std::int64_t rows : {std::int64_t{8192}, std::int64_t{2048}, std::int64_t{512}}) {
      dense_case("KDA in", kBF16, parts, rows, 2304, {4096, 4096, 4096, 128, 128, 32}, report);
      dense_case("KDA out", kBF16, parts, rows, 4096, {2304}, report);
      if (rows != 8192) continue;
      dense_case("KDA gate", kBF16, parts, rows, 128, {4096}, report);
      dense_case("MLA q", kBF16, parts, rows, 2304, {6144, 576}, report);
      dense_case("dense up", kBF16, parts, rows, 2304, {9216, 9216}, report);
      dense_case("dense down", kBF16, parts, rows, 9216, {2304}, report);
      dense_case("shared up", kBF16, parts, rows, 2304, {1024, 1024}, report);
      dense_case("shared down", kBF16, parts, rows, 1024, {2304}, report);
      dense_case("KDA in", kMxfp4, parts, rows, 2304, {4096, 4096, 4096}, report);
    }
    for (const Kind kind : {kBF16, kMxfp4}) {
      expert_case(kind, parts, 8192, 64, report);
      expert_case(kind, parts, 2048, 64, report);
      expert_case(kind, parts, 512, 64, report);
      for (const std::int64_t rows : {64, 32, 16, 12, 8, 1}) expert_case(kind, parts, rows, 0, report);
    }
    for (const Kind kind : {kF16, kQ8_0, kQ4_K, kQ6_K}) {
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{8}, std::int64_t{64}, std::int64_t{512}, std::int64_t{2048}}) {
        form_case(kind, parts, rows, 57344, 1, report);
        if (rows <= 8) form_case(kind, parts, rows, 4096, 8, report);
      }
      if (kind == kQ6_K || kind == kF16) continue;
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{16}, std::int64_t{64}}) expert_case(kind, parts, rows, 0, report);
    }
  }
}

}  // namespace palimpsest::bench
