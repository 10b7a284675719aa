#pragma once

// Warpgroup matrix products with both operands in shared memory, or A in registers, for the widths that attention needs. BF16 in, F32 out.
//
// Operands are tiles of 128-byte rows, swizzled (hopper.cuh). Where K runs along a row (K-major), 32 bytes on for the next 16 of K; where K runs
// from row to row (the transposed operand, "MN-major"), 2048 bytes on: both have groups of eight rows 1024 bytes apart. An operand is named by
// the lower half of its descriptor, since the upper half is the same for all and the next 16 of K are then one addition away.
// PTX ISA 8.x, chapter wgmma.

#include "kernels/cuda/sm90/hopper.cuh"

namespace palimpsest::cuda::sm90 {

/// Lower half of the descriptor of a tile at `address`. A transposed operand wider than 64 finds its next 64 columns `stride` bytes on.
__device__ inline std::uint32_t operand(std::uint32_t address, int stride = 16) {
  return (address & 0x3ffff) >> 4 | static_cast<std::uint32_t>(stride >> 4) << 16;
}
/// What registers hold is what the products that were waited for have left there: the compiler, which does not know of the wait, reads them no sooner.
__device__ inline void settled(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ inline void settled(int& x) { asm volatile("" : "+r"(x)::"memory"); }
template <class T, int kCount>
__device__ void settled(T (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) settled(x[i]);
}

inline constexpr int kStepAlong = 32 >> 4;    ///< to the next 16 of K along rows
inline constexpr int kStepAcross = 2048 >> 4;  ///< and from row to row

/// d [64, N] = (accumulate ? d : 0) + A [64, 16] B [N, 16]^T, one warpgroup, both in shared memory. kTransposedA: A lies as [16, 64].
template <int N, bool kTransposedA>
__device__ void wgmma_shared(float* d, std::uint32_t a, std::uint32_t b, int accumulate);

#define PALIMPSEST_WGMMA(n, transposed, as_number, registers, at_a, at_b, at_accumulate, ...) \
  template <> \
  __device__ inline void wgmma_shared<n, transposed>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %" #at_accumulate ", 0;\nmov.b32 h, 0x40000040;\n" \
                 "mov.b64 x, {%" #at_a ", h};\nmov.b64 y, {%" #at_b ", h};\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" registers \
                 "}, x, y, p, 1, 1, " #as_number ", 0;\n}\n" \
                 : __VA_ARGS__ \
                 : "r"(a), "r"(b), "r"(accumulate)); \
  }
#define PALIMPSEST_WGMMA_BOTH(n, ...) PALIMPSEST_WGMMA(n, false, 0, __VA_ARGS__) PALIMPSEST_WGMMA(n, true, 1, __VA_ARGS__)
PALIMPSEST_WGMMA_BOTH(16, PALIMPSEST_R8, 8, 9, 10, PALIMPSEST_D8(0))
PALIMPSEST_WGMMA_BOTH(32, PALIMPSEST_R16, 16, 17, 18, PALIMPSEST_D16(0))
PALIMPSEST_WGMMA_BOTH(48, PALIMPSEST_R24, 24, 25, 26, PALIMPSEST_D16(0), PALIMPSEST_D8(16))
PALIMPSEST_WGMMA_BOTH(64, PALIMPSEST_R32, 32, 33, 34, PALIMPSEST_D32(0))
PALIMPSEST_WGMMA(128, false, 0, PALIMPSEST_R64, 64, 65, 66, PALIMPSEST_D32(0), PALIMPSEST_D32(32))
#undef PALIMPSEST_WGMMA
#undef PALIMPSEST_WGMMA_BOTH

/// d [64, 128] = (accumulate ? d : 0) + A [64, 16] B [16, 128]: A in registers, B transposed, as values lie.
__device__ inline void wgmma_values(float* d, const std::uint32_t* a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 y;\nsetp.ne.b32 p, %69, 0;\nmov.b32 h, 0x40000040;\nmov.b64 y, {%68, h};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" PALIMPSEST_R64 "}, "
      "{%64, %65, %66, %67}, y, p, 1, 1, 1;\n}\n"
      : PALIMPSEST_D32(0), PALIMPSEST_D32(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate));
}

/// d [64, N] = (accumulate ? d : 0) + A [64, 16] B [N, 16]^T: A in registers, B K-major; BF16, or F16.
template <int N>
__device__ void wgmma_along(float* d, const std::uint32_t* a, std::uint32_t b, int accumulate);
template <int N>
__device__ void wgmma_along_f16(float* d, const std::uint32_t* a, std::uint32_t b, int accumulate);

#define PALIMPSEST_WGMMA(name, type, n, registers, a0, a1, a2, a3, at_b, at_accumulate, ...) \
  template <> \
  __device__ inline void name<n>(float* d, const std::uint32_t* a, std::uint32_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 y;\nsetp.ne.b32 p, %" #at_accumulate ", 0;\nmov.b32 h, 0x40000040;\nmov.b64 y, {%" #at_b ", h};\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type " {" registers "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, y, p, 1, 1, 0;\n}\n" \
                 : __VA_ARGS__ \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate)); \
  }
PALIMPSEST_WGMMA(wgmma_along, bf16, 32, PALIMPSEST_R16, 16, 17, 18, 19, 20, 21, PALIMPSEST_D16(0))
PALIMPSEST_WGMMA(wgmma_along, bf16, 64, PALIMPSEST_R32, 32, 33, 34, 35, 36, 37, PALIMPSEST_D32(0))
PALIMPSEST_WGMMA(wgmma_along_f16, f16, 16, PALIMPSEST_R8, 8, 9, 10, 11, 12, 13, PALIMPSEST_D8(0))
PALIMPSEST_WGMMA(wgmma_along_f16, f16, 32, PALIMPSEST_R16, 16, 17, 18, 19, 20, 21, PALIMPSEST_D16(0))
PALIMPSEST_WGMMA(wgmma_along_f16, f16, 48, PALIMPSEST_R24, 24, 25, 26, 27, 28, 29, PALIMPSEST_D16(0), PALIMPSEST_D8(16))
#undef PALIMPSEST_WGMMA

/// d [64, N] = (accumulate ? d : 0) + A [64, 32] B [N, 32]^T, signed 8-bit integers in shared memory; B in rows of 64 bytes with a 64-byte swizzle.
template <int N>
__device__ void wgmma_codes(int* d, std::uint32_t a, std::uint32_t b, int accumulate);

#define PALIMPSEST_I8(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
#define PALIMPSEST_I16(i) PALIMPSEST_I8(i), PALIMPSEST_I8(i + 8)
#define PALIMPSEST_WGMMA(n, registers, at_a, at_b, at_accumulate, ...) \
  template <> \
  __device__ inline void wgmma_codes<n>(int* d, std::uint32_t a, std::uint32_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\n.reg .b32 g, h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %" #at_accumulate ", 0;\nmov.b32 g, 0x40000040;\nmov.b32 h, 0x80000020;\n" \
                 "mov.b64 x, {%" #at_a ", g};\nmov.b64 y, {%" #at_b ", h};\nwgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8.s8 {" registers "}, x, y, p;\n}\n" \
                 : __VA_ARGS__ \
                 : "r"(a), "r"(b), "r"(accumulate)); \
  }
PALIMPSEST_WGMMA(32, PALIMPSEST_R16, 16, 17, 18, PALIMPSEST_I16(0))
PALIMPSEST_WGMMA(64, PALIMPSEST_R32, 32, 33, 34, PALIMPSEST_I16(0), PALIMPSEST_I16(16))
PALIMPSEST_WGMMA(48, PALIMPSEST_R24, 24, 25, 26, PALIMPSEST_I16(0), PALIMPSEST_I8(16))
#undef PALIMPSEST_WGMMA
#undef PALIMPSEST_I16
#undef PALIMPSEST_I8

}  // namespace palimpsest::cuda::sm90
