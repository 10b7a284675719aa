// Per-target header: 8-bit integers with one BF16 or F32 scale per 32 columns as a weight format of
// the dense products (see matmul_tile-inl.h for what a format is).
//
// A step is widened to two vectors of float, in natural order, and multiplied by its scale. With a
// BF16 scale the product has at most 15 significant bits, so the decoded value is exact.

#if defined(PALIMPSEST_KERNELS_CPU_INT8_FORMAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_INT8_FORMAT_INL_H_
#undef PALIMPSEST_KERNELS_CPU_INT8_FORMAT_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_INT8_FORMAT_INL_H_
#endif

#include <hwy/cache_control.h>

#include "base/number_formats.h"
#include "kernels/cpu/simd-inl.h"
#include "palimpsest/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

template <bool kBf16Scales>
struct Int8Format {
  static constexpr bool kSplit = false;
  static constexpr int kStreams = 4;  // each needs two addresses
  using D = hn::ScalableTag<float>;
  static constexpr std::int64_t kL = static_cast<std::int64_t>(hn::MaxLanes(D()));
  static constexpr std::int64_t kScaleBytes = kBf16Scales ? 2 : 4;

  const std::int8_t* codes;
  std::int64_t row_bytes;  ///< of the codes
  const std::uint8_t* scales;
  std::int64_t scales_row_bytes;

  struct Row {
    const std::int8_t* p;
    const std::uint8_t* scale;

    HWY_INLINE Pair<D> pair(std::int64_t step) const {
      const D d;
      const std::int8_t* q = p + step * 2 * kL;
      const auto s = hn::Set(d, load_scale(scale + step * 2 * kL / 32 * kScaleBytes));
#if HWY_TARGET == HWY_SCALAR
      return {hn::Mul(hn::Set(d, static_cast<float>(q[0])), s),
              hn::Mul(hn::Set(d, static_cast<float>(q[1])), s)};
#else
      const hn::RebindToSigned<D> d32;
      const hn::Rebind<std::int8_t, D> d8;
      return {hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, q))), s),
              hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, q + kL))), s)};
#endif
    }
    /// Columns are a multiple of 32, hence of every target's step.
    HWY_INLINE Pair<D> tail(std::int64_t step, std::int64_t) const { return pair(step); }
    HWY_INLINE void prefetch() const {
      for (std::int64_t i = 0; i < 512; i += 64) hwy::Prefetch(p + i);
      hwy::Prefetch(scale);
    }
    HWY_INLINE void prefetch(std::int64_t step, std::int64_t distance) const {
      hwy::Prefetch(p + step * 2 * kL + distance);
    }
  };
  static HWY_INLINE float load_scale(const std::uint8_t* p) {
    if constexpr (kBf16Scales) {
      std::uint16_t bits;
      std::memcpy(&bits, p, sizeof bits);
      return bf16_to_float(bits);
    } else {
      float value;
      std::memcpy(&value, p, sizeof value);
      return value;
    }
  }
  HWY_INLINE Row row(std::int64_t n, std::int64_t k0) const {
    return {codes + n * row_bytes + k0, scales + n * scales_row_bytes + k0 / 32 * kScaleBytes};
  }
};

/// Calls f with the format of an 8-bit matrix.
template <class Function>
HWY_INLINE void with_int8_format(const Int8Tensor& w, Function f) {
  const auto call = [&](auto bf16) HWY_ATTR {
    using Format = Int8Format<bf16()>;
    f(Format{w.codes.as<std::int8_t>(), w.codes.stride(0), w.scales.as<std::uint8_t>(),
             w.scales.stride(0) * Format::kScaleBytes});
  };
  if (w.scales.dtype == DType::kBF16) return call(std::true_type());
  call(std::false_type());
}

HWY_INLINE void int8_to_f32(const Int8Tensor& w, std::int64_t row, std::int64_t columns, float* to) {
  with_int8_format(w, [&](const auto& format) HWY_ATTR {
    using Format = std::remove_cvref_t<decltype(format)>;
    const auto from = format.row(row, 0);
    for (std::int64_t step = 0; step * 2 * Format::kL < columns; ++step) {
      const auto x = from.pair(step);
      float* out = to + step * 2 * Format::kL;
      hn::StoreU(x.a, typename Format::D(), out);
      hn::StoreU(x.b, typename Format::D(), out + Format::kL);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif
