#pragma once

// Stored forms as tensor cores take them: what a lane loads of a weight's row, and how it becomes operands. One struct a form.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/mxfp8.cuh"
#include "kernels/cuda/plain/stored_matrix.cuh"

namespace palimpsest::cuda::tiles {

using plain::Form;
using plain::StoredMatrix;

/// What a lane of four holds of a unit of a weight's row: `kEights` times eight columns, four and the four kGap columns on.
/// kApart: how many columns lie between the two numbers of a word of eight(). kBytes: of a unit in memory.
/// kParts: BF16 numbers whose sum a weight is. kScales: eight() gives integers, and the sums of each 32 columns (1) or each 16 (2) are multiplied by
/// scale(); kMins: less a minimum times the sum of the activations of the 32.
/// kMostTiles: of few_rows with many outputs. kChunk: units of a chunk of many_rows.
/// Forms of kWords > 0 words name the pieces of memory that a lane takes, so that they may wait in shared memory; settle() follows when all lanes have
/// theirs.
template <Form kForm>
struct Unit;
struct UnitDefaults {
  static constexpr int kGap = 4, kParts = 1, kScales = 0, kMostTiles = 2, kChunk = 1, kWords = 0;
  static constexpr bool kMins = false;
  __device__ void settle() {}
};
/// Calls f(first word, words, pointer) for each piece: pieces() of such forms.
template <int kCount>
struct UnitWords : UnitDefaults {
  static constexpr int kWords = kCount;
  alignas(16) std::uint32_t words[kCount];
};
template <int kNumber>
using Number = std::integral_constant<int, kNumber>;
template <>
struct Unit<Form::kBF16> : UnitDefaults {
  static constexpr int kColumns = 32, kEights = 1, kApart = 1, kBytes = 64, kMostTiles = 4, kChunk = 3;
  uint4 data;
  __device__ void load(const StoredMatrix& w, int row, int unit, int quad) {
    data = __ldg(reinterpret_cast<const uint4*>(w.data + row * w.row_bytes) + 4 * unit + quad);
  }
  __device__ uint4 eight(int) const { return data; }
  __device__ static int column(int unit, int, int quad) { return 32 * unit + 8 * quad; }
};
/// 11 bits: the upper eight in one BF16 number and what is left in another.
template <>
struct Unit<Form::kF16> : UnitWords<4> {
  static constexpr int kColumns = 32, kEights = 1, kApart = 1, kBytes = 64, kMostTiles = 4, kChunk = 2, kParts = 2;
  template <class F>
  __device__ void pieces(const StoredMatrix& w, int row, int unit, int quad, F f) {
    f(Number<0>{}, Number<4>{}, w.data + row * w.row_bytes + 64 * unit + 16 * quad);
  }
  __device__ void eight(int, uint4 (&parts)[2]) const {
    std::uint32_t *const upper = &parts[0].x, *const rest = &parts[1].x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(words + i));
      const std::uint32_t a = __float_as_uint(pair.x), b = __float_as_uint(pair.y);
      upper[i] = __byte_perm(a, b, 0x7632);
      rest[i] = __byte_perm(__float_as_uint(pair.x - __uint_as_float(a & 0xffff0000u)), __float_as_uint(pair.y - __uint_as_float(b & 0xffff0000u)), 0x7632);
    }
  }
  __device__ static int column(int unit, int, int quad) { return 32 * unit + 8 * quad; }
};
template <>
struct Unit<Form::kMx> : UnitDefaults {
  static constexpr int kColumns = 128, kEights = 4, kApart = 4, kBytes = 64;
  uint4 codes;
  std::uint32_t scale;
  __device__ void load(const StoredMatrix& w, int row, int unit, int quad) {
    codes = __ldg(reinterpret_cast<const uint4*>(w.data + row * w.row_bytes) + 4 * unit + quad);
    scale = __ldg(w.scales + row * w.scale_row_bytes + 4 * unit + quad);
  }
  /// Exact: the bits of E2M1 at the places of BF16's are the number times 2^-126, so times 2^(scale - 1). Two numbers of a word are kApart columns apart.
  __device__ std::uint32_t word(int j) const { return j == 0 ? codes.x : j == 1 ? codes.y : j == 2 ? codes.z : codes.w; }
  __device__ uint4 eight(int j) const { return decode(word(j), scale); }
  __device__ static uint4 decode(std::uint32_t word, std::uint32_t scale) { return scale > 128 ? decode<true>(word, scale) : decode<false>(word, scale); }
  /// kLarge: a scale may be above 128, which takes two multiplications. kTwice: with what to multiply by made for both halves of a word at once.
  template <bool kLarge, bool kTwice = false>
  __device__ static uint4 decode(std::uint32_t word, std::uint32_t scale) {
    const std::uint32_t least = kLarge ? min(scale, 128u) : scale, first = kTwice ? least * 0x00800080u + 0x3f003f00u : (least + 126) << 7;
    uint4 out;
    std::uint32_t* to = &out.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Two codes, each twice, 6 bits apart: one product instead of two shifts, which would take the unit that masks are waiting for.
      const std::uint32_t codes = (i < 2 ? word : word >> 8) & (i % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
      to[i] = times<kTwice>((codes * (i % 2 == 0 ? (1u << 12) + (1u << 6) : (1u << 8) + (1u << 2))) & 0x81c081c0u, first);
    }
    if constexpr (kLarge) {
      const std::uint32_t left = scale == 255 ? 0x7fffu : scale > 128 ? (scale - 1) << 7 : 0x3f80u;  // what is left of the scale
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = times<kTwice>(to[i], left * (kTwice ? 0x00010001u : 1));
    }
    return out;
  }
  template <bool kTwice>
  __device__ static std::uint32_t times(std::uint32_t pair, std::uint32_t by) {
    std::uint32_t out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(kTwice ? by : by | by << 16));
    return out;
  }
  __device__ static int column(int unit, int j, int quad) { return 128 * unit + 32 * quad + 8 * j; }
};

/// kOne is 128 in two BF16 numbers: seven bits below it are the integers from there on.
constexpr std::uint32_t kOne = 0x43004300u;
__device__ inline std::uint32_t less(std::uint32_t pair, std::uint32_t by) {
  std::uint32_t out;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(by));
  return out;
}
/// The F16 in the lower half.
__device__ inline float half_of(std::uint32_t word) { return __half2float(__ushort_as_half(static_cast<unsigned short>(word))); }
__device__ inline float byte_of(std::uint32_t word, int i) { return static_cast<float>(word >> 8 * i & 255); }

/// Blocks d | 32 signed bytes, two of them a unit: 17 words, of which a lane takes those that its codes lie in.
template <>
struct Unit<Form::kQ8_0> : UnitWords<5> {
  static constexpr int kColumns = 64, kEights = 2, kApart = 2, kBytes = 68, kScales = 1, kChunk = 2;
  template <class F>
  __device__ void pieces(const StoredMatrix& w, int row, int unit, int quad, F f) {
    const std::uint8_t* const from = w.data + row * w.row_bytes + 68 * unit + 8 * quad;
    f(Number<0>{}, Number<1>{}, from), f(Number<1>{}, Number<1>{}, from + 4), f(Number<2>{}, Number<1>{}, from + 8);
    f(Number<3>{}, Number<1>{}, from + 36), f(Number<4>{}, Number<1>{}, from + 40);
  }
  /// Seven bits, less 128 where the eighth is set.
  __device__ static std::uint32_t pair(std::uint32_t word) { return less((word & 0x007f007fu) | kOne, (word & 0x00800080u) | kOne); }
  __device__ uint4 eight(int j) const {
    const std::uint32_t a = j == 0 ? __funnelshift_r(words[0], words[1], 16) : words[3], b = j == 0 ? __funnelshift_r(words[1], words[2], 16) : words[4];
    return {pair(a), pair(a >> 8), pair(b), pair(b >> 8)};
  }
  /// The first word of the first lane and the last word of the last begin and end with them.
  __device__ void scale(int j, float (&scale)[1], float&) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    scale[0] = half_of(j == 0 ? __shfl_sync(~0u, words[0], lane & ~3) : __shfl_sync(~0u, words[2], lane | 3) >> 16);
  }
  __device__ static int column(int unit, int j, int quad) { return 64 * unit + 32 * j + 8 * quad; }
};

/// Blocks d, dmin | 12 bytes of scales and mins | 128 bytes of nibbles, 64 columns in 32 bytes (k_scale() in ref/block_formats.h). A unit is half of one.
template <>
struct Unit<Form::kQ4_K> : UnitWords<8> {
  static constexpr int kColumns = 128, kEights = 4, kApart = 2, kBytes = 72, kScales = 1;
  static constexpr bool kMins = true;
  bool upper;
  template <class F>
  __device__ void pieces(const StoredMatrix& w, int row, int unit, int quad, F f) {
    const std::uint8_t* const block = w.data + row * w.row_bytes + unit / 2 * 144;
    upper = unit % 2 != 0;
    f(Number<0>{}, Number<4>{}, block);
    f(Number<4>{}, Number<2>{}, block + 16 + unit % 2 * 64 + 8 * quad), f(Number<6>{}, Number<2>{}, block + 48 + unit % 2 * 64 + 8 * quad);
  }
  __device__ static std::uint32_t pair(std::uint32_t word) { return less((word & 0x000f000fu) | kOne, kOne); }
  __device__ uint4 eight(int j) const {
    const std::uint32_t a = words[4 + j / 2 * 2] >> j % 2 * 4, b = words[5 + j / 2 * 2] >> j % 2 * 4;
    return {pair(a), pair(a >> 8), pair(b), pair(b >> 8)};
  }
  __device__ void scale(int j, float (&scale)[1], float& min) const {
    const std::uint32_t scales = upper ? (words[3] & 0x0f0f0f0fu) | (words[1] >> 2 & 0x30303030u) : words[1] & 0x3f3f3f3fu;
    const std::uint32_t mins = upper ? (words[3] >> 4 & 0x0f0f0f0fu) | (words[2] >> 2 & 0x30303030u) : words[2] & 0x3f3f3f3fu;
    scale[0] = half_of(words[0]) * byte_of(scales, j);
    min = half_of(words[0] >> 16) * byte_of(mins, j);
  }
  __device__ static int column(int unit, int j, int quad) { return 128 * unit + 32 * j + 8 * quad; }
};

/// Blocks of 128 bytes of low nibbles | 64 bytes of upper 2 bits | 16 signed scales | d, at even addresses. A unit is half of one. A lane takes whole
/// words; where they begin two bytes before its own, the neighbour has the rest.
template <>
struct Unit<Form::kQ6_K> : UnitWords<10> {
  static constexpr int kColumns = 128, kEights = 4, kApart = 2, kGap = 16, kBytes = 105, kScales = 2, kMostTiles = 1;
  int before;  ///< bytes
  template <class F>
  __device__ void pieces(const StoredMatrix& w, int row, int unit, int quad, F f) {
    const std::uint8_t* block = w.data + row * w.row_bytes + unit / 2 * 210;
    before = static_cast<int>(reinterpret_cast<std::uintptr_t>(block) % 4);
    block -= before;
    const std::uint8_t *const low = block + unit % 2 * 64, *const high = block + 128 + unit % 2 * 32;
    f(Number<0>{}, Number<1>{}, low + 4 * quad), f(Number<1>{}, Number<1>{}, low + 16 + 4 * quad), f(Number<2>{}, Number<1>{}, low + 32 + 4 * quad);
    f(Number<3>{}, Number<1>{}, low + 48 + 4 * quad), f(Number<4>{}, Number<1>{}, low + 64);
    f(Number<5>{}, Number<1>{}, high + 4 * quad), f(Number<6>{}, Number<1>{}, high + 16 + 4 * quad), f(Number<7>{}, Number<1>{}, high + 32);
    f(Number<8>{}, Number<1>{}, block + 192 + unit % 2 * 8 + ((before + 2 * quad) & ~3)), f(Number<9>{}, Number<1>{}, block + 208);
  }
  /// words[0..3] and [5..6]: this lane's; [8] two scales, those of eight(quad).
  __device__ void settle() {
    const int lane = static_cast<int>(threadIdx.x) % 32, quad = lane % 4, next = (lane & ~3) | ((lane + 1) & 3);
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      if (i == 4) continue;
      words[i] = __funnelshift_r(words[i], __shfl_sync(~0u, quad == 0 ? words[i + 1] : words[i], next), 8 * before);
    }
    words[8] >>= (before + 2 * quad) % 4 * 8;
    words[9] >>= 8 * before;
  }
  __device__ static std::uint32_t pair(std::uint32_t nibbles, std::uint32_t upper) { return less((nibbles & 0x000f000fu) | (upper & 0x00300030u) | kOne, kOne + 0x00200020u); }
  __device__ uint4 eight(int j) const {
    uint4 out;
    std::uint32_t* const to = &out.x;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t nibbles = words[j % 2 * 2 + i] >> j / 2 * 4, upper = j < 2 ? words[5 + i] << (4 - 2 * j) : words[5 + i] >> (2 * j - 4);
      to[2 * i] = pair(nibbles, upper);
      to[2 * i + 1] = pair(nibbles >> 8, upper >> 8);
    }
    return out;
  }
  __device__ void scale(int j, float (&scale)[2], float&) const {
    const std::uint32_t both = __shfl_sync(~0u, words[8], (static_cast<int>(threadIdx.x) % 32 & ~3) | j);
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] = half_of(words[9]) * static_cast<float>(static_cast<std::int8_t>(both >> 8 * i));
  }
  __device__ static int column(int unit, int j, int quad) { return 128 * unit + 32 * j + 4 * quad; }
};

/// To registers, from memory (bytes) or shared memory (words).
template <class Count, class T>
__device__ void copy_words(std::uint32_t* to, const T* from) {
  using Piece = std::conditional_t<Count::value == 4, uint4, std::conditional_t<Count::value == 2, uint2, std::uint32_t>>;
  const auto* const piece = reinterpret_cast<const Piece*>(from);
  if constexpr (sizeof(T) == 1) *reinterpret_cast<Piece*>(to) = __ldg(piece);
  else *reinterpret_cast<Piece*>(to) = *piece;
}
/// A unit from memory.
template <class U>
__device__ void load_unit(U& u, const StoredMatrix& w, int row, int unit, int quad) {
  if constexpr (U::kWords == 0) u.load(w, row, unit, quad);
  else u.pieces(w, row, unit, quad, [&](auto first, auto count, const std::uint8_t* from) { copy_words<decltype(count)>(u.words + first, from); });
}

__device__ inline void mma(float (&acc)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/// 32 columns, of which a lane holds eight: `low` and `high` of rows g and g + 8 of the weight, g = lane / 4; x of row g of the tile.
template <int kParts>
__device__ void multiply(float (&acc)[4], const uint4& low, const uint4& high, const uint4 (&x)[kParts]) {
#pragma unroll
  for (int p = 0; p < kParts; ++p) mma(acc, low.x, high.x, low.y, high.y, x[p].x, x[p].y);
#pragma unroll
  for (int p = 0; p < kParts; ++p) mma(acc, low.z, high.z, low.w, high.w, x[p].z, x[p].w);
}

/// 32 columns of 16 rows of a weight.
template <Form kForm>
struct Operand {
  using U = Unit<kForm>;
  uint4 low[U::kParts], high[U::kParts];
  float scale[2][U::kScales > 0 ? U::kScales : 1], min[2];  ///< of rows g and g + 8
  __device__ void set(const U& l, const U& h, int j) {
    if constexpr (U::kParts == 1) low[0] = l.eight(j), high[0] = h.eight(j);
    else l.eight(j, low), h.eight(j, high);
    if constexpr (U::kScales > 0) l.scale(j, scale[0], min[0]), h.scale(j, scale[1], min[1]);
  }
  template <int kParts>
  __device__ void add16(float (&acc)[4], const uint4 (&x)[kParts], int step) const {
#pragma unroll
    for (int i = 0; i < kParts * U::kParts; ++i) {
      const std::uint32_t *l = &low[i % U::kParts].x + 2 * step, *h = &high[i % U::kParts].x + 2 * step, *b = &x[i / U::kParts].x + 2 * step;
      mma(acc, l[0], h[0], l[1], h[1], b[0], b[1]);
    }
  }
  /// acc += the products; `sums` as sums_of() gives them.
  template <int kParts>
  __device__ void add(float (&acc)[4], const uint4 (&x)[kParts], const float (&sums)[4]) const {
    float part[4] = {};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      add16(U::kScales == 0 ? acc : part, x, step);
      if (U::kScales == 2 - step || U::kScales == 2) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          acc[c] = __fmaf_rn(scale[c / 2][U::kScales == 2 ? step : 0], part[c], acc[c]);
          part[c] = 0;
        }
      }
    }
    if constexpr (U::kMins) {
#pragma unroll
      for (int c = 0; c < 4; ++c) acc[c] = __fmaf_rn(-min[c / 2], sums[c], acc[c]);
    }
  }
};
/// Of 32 activations, rounded, where a form has minima: a product with ones.
template <Form kForm, int kParts>
__device__ void sums_of(const uint4 (&x)[kParts], float (&sums)[4]) {
  if constexpr (Unit<kForm>::kMins) {
    constexpr std::uint32_t kOnes = 0x3f803f80u;
    const uint4 ones = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[c] = 0;
    multiply(sums, ones, ones, x);
  }
}

struct Eight {
  float4 a, b;
  template <int kGap = 4>
  __device__ void load(const float* row, int column) {
    a = __ldg(reinterpret_cast<const float4*>(row + column));
    b = __ldg(reinterpret_cast<const float4*>(row + column + kGap));
  }
  __device__ std::uint32_t largest(std::uint32_t bits = 0) const {
    bits = larger(larger(larger(larger(bits, a.x), a.y), a.z), a.w);
    return larger(larger(larger(larger(bits, b.x), b.y), b.z), b.w);
  }
  __device__ void round(const Mxfp8& to) { a = {to(a.x), to(a.y), to(a.z), to(a.w)}, b = {to(b.x), to(b.y), to(b.z), to(b.w)}; }
  /// These and the eights of the three lanes beside are 32 columns.
  __device__ void round_beside() { round(Mxfp8(largest_of_lanes<4>(largest()))); }
  /// Pairs of numbers that are kApart apart.
  template <int kApart, int kParts>
  __device__ void split(uint4 (&parts)[kParts]) const {
    const float in_order[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float rest[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) rest[i] = in_order[i / (2 * kApart) * 2 * kApart + i % (2 * kApart) / 2 + i % 2 * kApart];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      std::uint32_t* to = &parts[p].x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to[i]) : "f"(rest[2 * i + 1]), "f"(rest[2 * i]));
        rest[2 * i] -= __uint_as_float(to[i] << 16);
        rest[2 * i + 1] -= __uint_as_float(to[i] & 0xffff0000u);
      }
    }
  }
};
/// The 32 columns of a unit of MXFP4 that a lane has.
__device__ inline void round_unit(Eight (&x)[4]) {
  const Mxfp8 to(x[3].largest(x[2].largest(x[1].largest(x[0].largest()))));
#pragma unroll
  for (Eight& eight : x) eight.round(to);
}

}  // namespace palimpsest::cuda::tiles
