#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/short_conv.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/rows-inl.h"

// Work is cut into bands of channels, each walked through all rows of all sequences: the W rows that an output needs are then in L1, and
// a thread owns its part of every tail.

namespace palimpsest::cpu {
#ifndef PALIMPSEST_KERNELS_CPU_SHORT_CONV_CONSTANTS_
#define PALIMPSEST_KERNELS_CPU_SHORT_CONV_CONSTANTS_
inline constexpr std::int64_t kConvBand = 64;
inline constexpr std::int64_t kMaxTaps = 8;
#endif
}  // namespace palimpsest::cpu

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// y = sum_i weights[i] * rows[i], or silu of it, over n channels, taps in ascending order. weights is [W][kConvBand].
HWY_INLINE void convolve_row(const float* weights, const float* const* rows, std::int64_t taps, bool activate, float* y,
                              std::int64_t n) {
  const FloatTag d;
  for (std::int64_t c = 0; c < n; c += kLanes) {
    const std::int64_t count = std::min(kLanes, n - c);
    FloatVec sum = hn::Zero(d);
    for (std::int64_t i = 0; i < taps; ++i) {
      const FloatVec row = count == kLanes ? hn::LoadU(d, rows[i] + c) : load_first(rows[i] + c, count);
      sum = hn::MulAdd(hn::LoadU(d, weights + i * kConvBand + c), row, sum);
    }
    const FloatVec y_c = activate ? silu(d, sum) : sum;
    if (count == kLanes) hn::StoreU(y_c, d, y + c);
    else store_first(y_c, y + c, count);
  }
}

/// Channels [c, c + n) of one sequence of `length` rows that starts at batch row `first`.
HWY_INLINE void convolve_sequence(const ShortConvArgs& args, const float* weights, std::int64_t first, std::int64_t length,
                                  float* tail, std::int64_t c, std::int64_t n) {
  const std::int64_t channels = args.x.size(1), taps = args.weight.size(1), history = taps - 1;
  // Row i of the sequence; rows before 0 lie in the tail.
  const auto row = [&](std::int64_t i) {
    return i < 0 ? tail + (history + i) * channels + c : args.x.at<const float>(first + i) + c;
  };
  for (std::int64_t t = 0; t < length; ++t) {
    const float* rows[kMaxTaps];
    for (std::int64_t i = 0; i < taps; ++i) rows[i] = row(t - history + i);
    convolve_row(weights, rows, taps, args.silu, args.y.as<float>() + (first + t) * channels + c, n);
  }
  // Oldest first: what moves down comes from a row not yet overwritten.
  for (std::int64_t j = 0; j < history && length > 0; ++j) {
    std::memcpy(tail + j * channels + c, row(length - history + j), static_cast<std::size_t>(n) * sizeof(float));
  }
}

/// Bands [begin, end) of channels.
void ShortConvBands(const ShortConvArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t channels = args.x.size(1), taps = args.weight.size(1), sequences = args.rows.slots.size(0);
  const std::int64_t* cu = args.rows.cu_seqlens.as<const std::int64_t>();
  for (std::int64_t band = begin; band < end; ++band) {
    const std::int64_t c = band * kConvBand, n = std::min(kConvBand, channels - c);
    alignas(64) float weights[kMaxTaps * kConvBand] = {};
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < taps; ++i) weights[i * kConvBand + j] = args.weight.as<const float>()[(c + j) * taps + i];
    }
    for (std::int64_t s = 0; s < sequences; ++s) {
      float* tail = args.tails.as<float>() + args.rows.slots.as<const std::int32_t>()[s] * args.tails.stride(0);
      convolve_sequence(args, weights, cu[s], cu[s + 1] - cu[s], tail, c, n);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(ShortConvBands);

void short_conv(ExecContext& ctx, const ShortConvArgs& args) {
  const std::int64_t bands = (args.x.size(1) + kConvBand - 1) / kConvBand;
  ctx.pool.parallel_for(bands, row_grain(4 * args.x.size(0) * kConvBand), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(ShortConvBands)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
