#pragma once

// Activations in MXFP8 on a device: the numbers that ref::round_mxfp8 defines (kernels/ref/activations.h), as F32; each is a BF16 number.

#include <cstdint>

namespace palimpsest::cuda {

/// Bits of the larger magnitude. As integers they keep their order, with infinity and NaN above all others.
__device__ inline std::uint32_t larger(std::uint32_t bits, float x) { return max(bits, __float_as_uint(x) & 0x7fffffffu); }
/// Over so many neighbouring lanes, all of which are here.
template <int kLanes>
__device__ std::uint32_t largest_of_lanes(std::uint32_t bits) {
  const std::uint32_t lanes = ((1u << kLanes) - 1) << (threadIdx.x % 32 / kLanes * kLanes);
#pragma unroll
  for (int by = 1; by < kLanes; by *= 2) bits = max(bits, __shfl_xor_sync(lanes, bits, by));
  return bits;
}

/// Rounds any of 32 numbers, the largest magnitude of which has these bits.
struct Mxfp8 {
  float inverse, scale;
  __device__ explicit Mxfp8(std::uint32_t largest) {
    const std::uint32_t exponent = largest >> 23;
    const bool zero = exponent < 27;  // below ref::kLeastActivation
    inverse = __uint_as_float(zero ? 0 : (262 - exponent) << 23);
    scale = __uint_as_float(zero ? 0 : exponent == 255 ? 0x7fc00000u : (exponent - 8) << 23);
  }
  __device__ float operator()(float x) const {
    const float in = fminf(fmaxf(x * inverse, -448.0f), 448.0f);
    // 1.5 * 2^23 steps of E4M3 at this number: what is added to that is rounded to whole steps.
    const float steps = __uint_as_float((__float_as_uint(fmaxf(fabsf(in), 0x1p-6f)) & 0x7f800000u) + 0x0a400000u);
    return __fmul_rn(__fsub_rn(__fadd_rn(in, steps), steps), scale);
  }
};

}  // namespace palimpsest::cuda
