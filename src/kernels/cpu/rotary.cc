#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grain.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rotary.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

/// Heads [begin, end) of all T * H.
void RotaryHeads(const RotaryArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = args.x.size(1), width = args.x.size(2), n = args.cos.size(1);
  for (std::int64_t h = begin; h < end; ++h) {
    float* low = args.x.as<float>() + h * width;
    float* high = low + n;
    const float* cos = args.cos.as<const float>() + h / heads * n;
    const float* sin = args.sin.as<const float>() + h / heads * n;
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const std::int64_t count = n - i < kLanes ? n - i : kLanes;
      const FloatVec a = load_first(low + i, count), b = load_first(high + i, count);
      const FloatVec c = load_first(cos + i, count), s = load_first(sin + i, count);
      store_first(hn::NegMulAdd(b, s, hn::Mul(a, c)), low + i, count);
      store_first(hn::MulAdd(a, s, hn::Mul(b, c)), high + i, count);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(RotaryHeads);

void positions(ExecContext&, const PositionsArgs& args) {
  const std::int64_t* cu = args.rows.cu_seqlens.as<const std::int64_t>();
  for (std::int64_t s = 0; s < args.rows.slots.size(0); ++s) {
    for (std::int64_t t = cu[s]; t < cu[s + 1]; ++t) args.out.as<std::int32_t>()[t] = static_cast<std::int32_t>(args.past.as<const std::int64_t>()[s] + t - cu[s]);
  }
}

void rotary_table(ExecContext& ctx, const RotaryTableArgs& args) {
  const std::int64_t n = args.inv_freq.size(0), sequences = args.rows.slots.size(0);
  const std::int64_t* cu = args.rows.cu_seqlens.as<const std::int64_t>();
  // Angles in double: at a million tokens a float angle is off by a tenth of a radian.
  const auto fill_row = [&](std::int64_t t, std::int64_t position) {
    for (std::int64_t i = 0; i < n; ++i) {
      const double angle = static_cast<double>(position) * args.inv_freq.as<const double>()[i];
      *args.cos.at<float>(t, i) = static_cast<float>(std::cos(angle) * args.attention_factor);
      *args.sin.at<float>(t, i) = static_cast<float>(std::sin(angle) * args.attention_factor);
    }
  };
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t past = args.past.as<const std::int64_t>()[s];
    ctx.pool.parallel_for(cu[s + 1] - cu[s], row_grain(40 * n), [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) fill_row(cu[s] + i, past + i);
    });
  }
}

void rotary(ExecContext& ctx, const RotaryArgs& args) {
  ctx.pool.parallel_for(args.x.size(0) * args.x.size(1), row_grain(4 * args.cos.size(1)), [&args](std::int64_t begin, std::int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(RotaryHeads)(args, begin, end);
  });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
