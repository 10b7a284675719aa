#pragma once

// Hopper's asynchronous pieces, each as one function: warpgroup matrix products with A in registers and B in shared memory, bulk copies that
// complete on an mbarrier, and the warp products and transposes of earlier chips. PTX ISA 8.x, chapters wgmma, mbarrier, cp.async.bulk, mma.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace palimpsest::cuda::sm90 {

__device__ inline std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

/// Two floats rounded to bf16: the first in the low half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

__device__ inline std::uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
/// The two bf16 of a word.
__device__ inline float2 unpack_bf16(std::uint32_t pair) { return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)); }

// -- images: tiles of rows of 64 bf16 (128 bytes), 16-byte pieces of row r swizzled by r % 8, as wgmma reads them (128-byte swizzle) --------

/// Byte offset of element (row, column) of such a tile, which begins at a multiple of 1024 bytes.
__device__ inline int swizzled(int row, int column) { return row * 128 + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2; }

/// N neighbouring numbers (1, or 4 from a multiple of 4 on) of row n to an image of 64 rows of a batch's x (RowImage), each as `parts` BF16 numbers.
template <int N>
__device__ void put_in_image(void* image, int parts, int n, int column, const float* x) {
  auto* to = static_cast<unsigned char*>(image) + column / 64 * parts * (64 * 128) + column % 32 / 8 * 4 + column % 2 * 2;
  float rest[N];
#pragma unroll
  for (int i = 0; i < N; ++i) rest[i] = x[i];
  for (int p = 0; p < parts; ++p, to += 64 * 128) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      unsigned char* const at = to + swizzled(n, column % 64 / 32 * 32 + (column % 8 + i) / 2 * 8);
      if constexpr (N == 1) {
        const __nv_bfloat16 part = __float2bfloat16_rn(rest[0]);
        *reinterpret_cast<__nv_bfloat16*>(at) = part;
        rest[0] -= __bfloat162float(part);
      } else {
        const std::uint32_t word = pack_bf16(rest[i], rest[i + 1]);
        *reinterpret_cast<std::uint32_t*>(at) = word;
        const float2 part = unpack_bf16(word);
        rest[i] -= part.x, rest[i + 1] -= part.y;
      }
    }
  }
}

/// Descriptor of a K-major tile: groups of eight rows lie 1024 bytes apart. 32 bytes on for the next 16 of K.
__device__ inline std::uint64_t tile_descriptor(std::uint32_t address) {
  return (static_cast<std::uint64_t>(address) & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

/// A descriptor from its halves: the first holds the address / 16 in bits 0..13, so that constants may be added to it.
__device__ inline std::uint64_t descriptor(std::uint32_t low, std::uint32_t high) {
  std::uint64_t d;
  asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(low), "r"(high));
  return d;
}
/// 16 rows of 16 bf16 of K without a swizzle: byte offset of element (row, column).
__device__ inline int small_offset(int row, int column) { return row / 8 * 256 + column / 8 * 128 + row % 8 * 16 + column % 8 * 2; }

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Operands of inline assembly: n registers of an accumulator, and their names.
#define PALIMPSEST_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PALIMPSEST_D8(i) PALIMPSEST_D4(i), PALIMPSEST_D4(i + 4)
#define PALIMPSEST_D16(i) PALIMPSEST_D8(i), PALIMPSEST_D8(i + 8)
#define PALIMPSEST_D32(i) PALIMPSEST_D16(i), PALIMPSEST_D16(i + 16)
#define PALIMPSEST_R8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PALIMPSEST_R16 PALIMPSEST_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PALIMPSEST_R24 PALIMPSEST_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define PALIMPSEST_R32 PALIMPSEST_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define PALIMPSEST_R96 \
  PALIMPSEST_R64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define PALIMPSEST_R64 \
  PALIMPSEST_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/// d [64, N] = (accumulate ? d : 0) + A [64, 16] B [N, 16]^T, one warpgroup, A in registers; d and a in the fragment layout of m64nNk16. The last
/// argument but the outputs is 1 where B lies as [16, N]. Numbers: of the operands behind the accumulator.
#define PALIMPSEST_WGMMA(name, n, registers, a0, a1, a2, a3, at_b, at_accumulate, rows, ...) \
  __device__ inline void name(float* d, const std::uint32_t* a, std::uint64_t b, int accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #at_accumulate ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" registers \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #at_b ", p, 1, 1, " #rows ";\n}\n" \
                 : __VA_ARGS__ \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)); \
  }
PALIMPSEST_WGMMA(wgmma_n16, 16, PALIMPSEST_R8, 8, 9, 10, 11, 12, 13, 0, PALIMPSEST_D8(0))
PALIMPSEST_WGMMA(wgmma_n32, 32, PALIMPSEST_R16, 16, 17, 18, 19, 20, 21, 0, PALIMPSEST_D16(0))
PALIMPSEST_WGMMA(wgmma_n64, 64, PALIMPSEST_R32, 32, 33, 34, 35, 36, 37, 0, PALIMPSEST_D32(0))
PALIMPSEST_WGMMA(wgmma_n128, 128, PALIMPSEST_R64, 64, 65, 66, 67, 68, 69, 0, PALIMPSEST_D32(0), PALIMPSEST_D32(32))
PALIMPSEST_WGMMA(wgmma_n128_rows, 128, PALIMPSEST_R64, 64, 65, 66, 67, 68, 69, 1, PALIMPSEST_D32(0), PALIMPSEST_D32(32))
#undef PALIMPSEST_WGMMA

// -- products of one warp ----------------------------------------------------------------------------------------------------------------

/// d [16, 8] += A [16, 16] B [8, 16]^T.
__device__ inline void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// d [16, 8] = c + A [16, 16] B [8, 16]^T in F16, c the same everywhere.
__device__ inline void mma_f16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, float c) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c));
}
/// d += A B^T in F16.
__device__ inline void mma_f16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/// Four 8 x 8 tiles; lane l gives the address of row l % 8 of tile l / 8.
__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
/// The same, each tile transposed.
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}
/// The way back: four 8 x 8 tiles to the rows that the lanes name.
__device__ inline void store_matrices(const std::uint32_t (&r)[4], void* row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ inline void store_matrices_transposed(const std::uint32_t (&r)[4], void* row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}
/// The transpose of an 8 x 8 tile of bf16 held by a warp.
__device__ inline std::uint32_t transpose(std::uint32_t x) {
  std::uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// -- barriers and bulk copies --------------------------------------------------------------------------------------------------------------

__device__ inline void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrivals a warp makes once all of its lanes are done: one, after they have met. compute-sanitizer's racecheck does not follow that order; for it
/// code is compiled so that every lane arrives for itself.
#ifdef PALIMPSEST_RACECHECK
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif
__device__ inline void warp_arrive(std::uint64_t* barrier) {
  __syncwarp();
  if (kWarpArrivals > 1 || threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
/// The place in another block of the cluster where p is in this one.
__device__ inline std::uint32_t address_in(int block, const void* p) {
  std::uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(block));
  return address;
}
/// The same barrier of another block of the cluster. Orders nothing but this block's reads of shared memory before it (a release for the whole
/// cluster waits for all writes to device memory: about 1000 cycles).
__device__ inline void barrier_arrive(std::uint64_t* barrier, int block) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(block, barrier)) : "memory");
}
__device__ inline void barrier_expect(std::uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ inline void barrier_expect(std::uint64_t* barrier, int bytes, int block) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(address_in(block, barrier)), "r"(bytes) : "memory");
}
/// All threads of the cluster.
__device__ inline void cluster_meet() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
__device__ inline void barrier_wait(std::uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT_%=:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
/// Whether the phase of this parity is over.
__device__ inline bool barrier_passed(std::uint64_t* barrier, int parity) {
  std::uint32_t passed;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
               : "=r"(passed)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return passed != 0;
}
/// Global to shared memory, in multiples of 16 bytes; completes on the barrier.
__device__ inline void copy_bulk(void* to, const void* from, int bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/// The same to blocks 0 and 1 of the cluster, at the same place in each, completing on the barrier of each.
__device__ inline void copy_bulk_to_both(void* to, const void* from, int bytes, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<unsigned short>(3))
               : "memory");
}

/// kBytes (4, 8 or 16) of global memory to shared memory, or zeros where not `valid`.
template <int kBytes>
__device__ inline void copy_piece(std::uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes) : "memory");
}
/// An arrival at the barrier once all pieces that this thread asked for are there: one of those it was made for.
__device__ inline void pieces_arrive(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Until all pieces that this thread asked for are there.
__device__ inline void wait_pieces() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Pieces so far belong together; until all but the last kGroups groups are there.
__device__ inline void end_pieces() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroups>
__device__ void wait_pieces_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// Shared to global memory, in multiples of 16 bytes. Writers call copies_follow() before the barrier in front of this.
__device__ inline void copy_bulk_out(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
__device__ inline void copies_follow() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// Until the copies of this thread have read their source.
__device__ inline void wait_copies_out() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Asks for the line of memory around an address to be brought to L2.
__device__ inline void bring_to_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

/// x, of which the compiler knows nothing from here on: what hangs on it is computed again instead of kept through a loop.
__device__ inline int forgotten(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// 1 / x, to a few units in the last place.
__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// -- registers of a warpgroup, where a block has one of each kind -----------------------------------------------------------------------------

template <int kRegisters>
__device__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// 2^x, to a few units in the last place; 0 far below.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace palimpsest::cuda::sm90
