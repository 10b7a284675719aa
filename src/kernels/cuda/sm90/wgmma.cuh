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
inline constexpr int kStepAlong = 32 >> 4;    ///< to the next 16 of K along rows
inline constexpr int kStepAcross = 2048 >> 4;  ///< and from row to row

// Operands of inline assembly: n registers of an accumulator.
#define PALIMPSEST_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PALIMPSEST_D8(i) PALIMPSEST_D4(i), PALIMPSEST_D4(i + 4)
#define PALIMPSEST_D16(i) PALIMPSEST_D8(i), PALIMPSEST_D8(i + 8)
#define PALIMPSEST_D32(i) PALIMPSEST_D16(i), PALIMPSEST_D16(i + 16)

/// d [64, N] = (accumulate ? d : 0) + A [64, 16] B [N, 16]^T, one warpgroup, both in shared memory. kTransposedA: A lies as [16, 64].
template <int N, bool kTransposedA>
__device__ void wgmma_shared(float* d, std::uint32_t a, std::uint32_t b, int accumulate);

template <>
__device__ inline void wgmma_shared<16, false>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %10, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%8, h};\nmov.b64 y, {%9, h};\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "x, y, p, 1, 1, 0, 0;\n}\n"
      : PALIMPSEST_D8(0)
      : "r"(a), "r"(b), "r"(accumulate));
}
template <>
__device__ inline void wgmma_shared<16, true>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %10, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%8, h};\nmov.b64 y, {%9, h};\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "x, y, p, 1, 1, 1, 0;\n}\n"
      : PALIMPSEST_D8(0)
      : "r"(a), "r"(b), "r"(accumulate));
}
template <>
__device__ inline void wgmma_shared<32, false>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %18, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%16, h};\nmov.b64 y, {%17, h};\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "x, y, p, 1, 1, 0, 0;\n}\n"
      : PALIMPSEST_D16(0)
      : "r"(a), "r"(b), "r"(accumulate));
}
template <>
__device__ inline void wgmma_shared<32, true>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %18, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%16, h};\nmov.b64 y, {%17, h};\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "x, y, p, 1, 1, 1, 0;\n}\n"
      : PALIMPSEST_D16(0)
      : "r"(a), "r"(b), "r"(accumulate));
}
template <>
__device__ inline void wgmma_shared<48, false>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %26, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%24, h};\nmov.b64 y, {%25, h};\n"
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
      "x, y, p, 1, 1, 0, 0;\n}\n"
      : PALIMPSEST_D16(0), PALIMPSEST_D8(16)
      : "r"(a), "r"(b), "r"(accumulate));
}
template <>
__device__ inline void wgmma_shared<48, true>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %26, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%24, h};\nmov.b64 y, {%25, h};\n"
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
      "x, y, p, 1, 1, 1, 0;\n}\n"
      : PALIMPSEST_D16(0), PALIMPSEST_D8(16)
      : "r"(a), "r"(b), "r"(accumulate));
}
template <>
__device__ inline void wgmma_shared<64, false>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %34, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%32, h};\nmov.b64 y, {%33, h};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "x, y, p, 1, 1, 0, 0;\n}\n"
      : PALIMPSEST_D32(0)
      : "r"(a), "r"(b), "r"(accumulate));
}
template <>
__device__ inline void wgmma_shared<64, true>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %34, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%32, h};\nmov.b64 y, {%33, h};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "x, y, p, 1, 1, 1, 0;\n}\n"
      : PALIMPSEST_D32(0)
      : "r"(a), "r"(b), "r"(accumulate));
}
template <>
__device__ inline void wgmma_shared<128, false>(float* d, std::uint32_t a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 x, y;\nsetp.ne.b32 p, %66, 0;\nmov.b32 h, 0x40000040;\nmov.b64 x, {%64, h};\nmov.b64 y, {%65, h};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "x, y, p, 1, 1, 0, 0;\n}\n"
      : PALIMPSEST_D32(0), PALIMPSEST_D32(32)
      : "r"(a), "r"(b), "r"(accumulate));
}

/// d [64, 128] = (accumulate ? d : 0) + A [64, 16] B [16, 128]: A in registers, B transposed, as values lie.
__device__ inline void wgmma_values(float* d, const std::uint32_t* a, std::uint32_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 h;\n.reg .b64 y;\nsetp.ne.b32 p, %69, 0;\nmov.b32 h, 0x40000040;\nmov.b64 y, {%68, h};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, y, p, 1, 1, 1;\n}\n"
      : PALIMPSEST_D32(0), PALIMPSEST_D32(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate));
}

#undef PALIMPSEST_D4
#undef PALIMPSEST_D8
#undef PALIMPSEST_D16
#undef PALIMPSEST_D32

}  // namespace palimpsest::cuda::sm90
