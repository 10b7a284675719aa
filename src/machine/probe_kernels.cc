#include "machine/probe_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "machine/probe_kernels.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::machine {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

const char* ProbeTarget() {
  return hwy::TargetName(HWY_TARGET);
}

template <int kStreams>
std::uint64_t read(const std::uint8_t* data, std::int64_t bytes) {
#if HWY_TARGET == HWY_SCALAR
  const hn::CappedTag<std::uint64_t, 1> d;
#else
  const hn::ScalableTag<std::uint64_t> d;
#endif
  const std::int64_t vector = static_cast<std::int64_t>(hn::Lanes(d)) * 8, part = bytes / kStreams;
  hn::Vec<decltype(d)> sum[kStreams];
  for (auto& s : sum) s = hn::Zero(d);
  for (std::int64_t i = 0; i < part; i += 2 * vector) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      const auto* p = reinterpret_cast<const std::uint64_t*>(data + s * part + i);
      sum[s] = hn::Add(sum[s], hn::Xor(hn::LoadU(d, p), hn::LoadU(d, p + hn::Lanes(d))));
    }
  }
  std::uint64_t total = 0;
  for (const auto& s : sum) total += hn::GetLane(hn::SumOfLanes(d, s));
  return total;
}

std::uint64_t ReadStreams(const std::uint8_t* data, std::int64_t bytes, int streams) {
  if (streams == 8) return read<8>(data, bytes);
  return streams == 4 ? read<4>(data, bytes) : read<1>(data, bytes);
}

void UpdateStream(float* data, std::int64_t bytes, float factor) {
  const hn::ScalableTag<float> d;
  const auto f = hn::Set(d, factor);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < bytes / 4; i += 4 * lanes) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) hn::StoreU(hn::Mul(hn::LoadU(d, data + i + k * lanes), f), d, data + i + k * lanes);
  }
}

double FmaChains(std::int64_t iterations, float* sink) {
  const hn::ScalableTag<float> d;
  // Enough chains for two units of latency 5; the factors keep the values finite and away from
  // subnormals.
  constexpr int kChains = 12;
  const auto factor = hn::Set(d, 0.5f), term = hn::Set(d, 0.25f + *sink * 0);
  hn::Vec<decltype(d)> acc[kChains];
  for (auto& a : acc) a = term;
  for (std::int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = hn::MulAdd(acc[c], factor, term);
  }
  for (const auto& a : acc) *sink += hn::GetLane(hn::SumOfLanes(d, a));
  return static_cast<double>(iterations) * kChains * static_cast<double>(hn::Lanes(d)) * 2;
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::machine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::machine {

HWY_EXPORT(ProbeTarget);
HWY_EXPORT(ReadStreams);
HWY_EXPORT(UpdateStream);
HWY_EXPORT(FmaChains);

const char* probe_target() {
  return HWY_DYNAMIC_DISPATCH(ProbeTarget)();
}

std::uint64_t read_streams(const std::uint8_t* data, std::int64_t bytes, int streams) {
  return HWY_DYNAMIC_DISPATCH(ReadStreams)(data, bytes, streams);
}

void update_stream(float* data, std::int64_t bytes, float factor) {
  HWY_DYNAMIC_DISPATCH(UpdateStream)(data, bytes, factor);
}

double fma_chains(std::int64_t iterations, float* sink) {
  return HWY_DYNAMIC_DISPATCH(FmaChains)(iterations, sink);
}

}  // namespace palimpsest::machine
#endif  // HWY_ONCE
