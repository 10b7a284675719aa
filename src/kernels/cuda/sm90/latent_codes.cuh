#pragma once

// Absorbed decode over a list in 8-bit codes (q8_rows.h). With C_g the codes of group g (the thirds of the latent, the shared key channels) of 64
// tokens, s_g their scales, f that of the queries' integers (one for the latent, one for the keys), and weights of a tile as in latent_decode.cuh:
//
//     S^T [64 tokens, N heads] = sum_g s_g f (C_g Q'_g^T)          O_g^T [channels of g, N] += C_g^T (s_g P)^T
//
// Scores are products of integers, codes as they lie in shared memory: q' has 16 bits and goes as two 8-bit matrices, 256 high + low, side by side on
// the narrow side. In the other product codes are F16, which holds them exactly, made in the registers from which the tensor cores take them, five
// instructions for four. So nothing is rounded but q' and s_g P.
//
// Two warpgroups (one of more than 32 heads: registers) find scores and weights, tile by tile in turn; two add tiles to a half of the latent each; a
// warp of another asks for the list. More heads than a block takes are other blocks, side by side in the grid, which find the list in L2.
//
// F16 has exponents for 2^-24 to 2^16. s_g P is held in range by anchors of heads, as in latent_decode.cuh, and by a power of two for each group
// of channels. Both begin so that the largest number of the first tile is near 2^kTop, and move when one would pass 2^15. What is lost below 2^-24 is
// then 2^31 times smaller than what it is added to.

#include "kernels/cuda/sm90/latent_decode.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kGroups = 3;        ///< of the latent, 192 columns each but the last
inline constexpr int kTop = 7;           ///< of weights, in powers of two, where anchors have moved
inline constexpr int kLeastPower = -64;  ///< of groups: weights times scales that are smaller are zeros
inline constexpr int kBoxBytes = kTile * 128, kCodesBytes = 5 * kBoxBytes, kScalesBytes = kTile * 8;

extern __shared__ __align__(1024) unsigned char codes_memory[];

/// Shared memory of a block for N heads: constant addresses, which take no registers.
template <int N>
struct CodesMemory {
  static constexpr int kScorers = N < 48 ? 2 : 1;  ///< warpgroups that find scores and weights, tile by tile in turn
  static constexpr int kThreads = (kScorers + 3) * 128;
  static constexpr int kQueries = N * (kListRow * 2 + 8), kWeights = 2 * kGroups * N * 128, kFloats = (kScorers * 4 + 4) * (N + 4) * 4;
  static constexpr int kLimit = 227 * 1024 - 256;  ///< less barriers
  static constexpr int kTiles = (kLimit - kQueries - kWeights - kFloats) / (kCodesBytes + kScalesBytes);
  static constexpr int kBytes = 256 + kQueries + kWeights + kFloats + kTiles * (kCodesBytes + kScalesBytes);
  static_assert(kTiles >= 3 && kTiles <= 8);

  /// Of a tile: boxes [64 tokens, 128 columns], 128-byte swizzle; half of the last is zeros.
  __device__ static unsigned char* codes() { return codes_memory; }
  /// s_g P: [2 tiles, 3 groups], each [N, 64 tokens].
  __device__ static unsigned char* weights() { return codes_memory + kTiles * kCodesBytes; }
  /// The image of DecodeWorkspace.
  __device__ static unsigned char* queries() { return weights() + kWeights; }
  __device__ static const float* scales_of_queries() { return reinterpret_cast<const float*>(queries() + N * kListRow * 2); }  ///< [2, N]: of the latent, of the shared key channels
  /// Of a tile: BF16 [64, 4].
  __device__ static uint2* scales() { return reinterpret_cast<uint2*>(queries() + kQueries); }
  __device__ static float* maxima() { return reinterpret_cast<float*>(scales() + kTiles * kTile); }  ///< [warps, N]
  __device__ static float4* largest() { return reinterpret_cast<float4*>(maxima() + kScorers * 4 * N); }  ///< [warps], of a group each
  /// By which sums of tiles before this one are to be multiplied, and how far anchors have moved: [2 tiles, N].
  __device__ static float* factors() { return reinterpret_cast<float*>(largest() + kScorers * 4); }
  __device__ static float* moves() { return factors() + 2 * N; }
  /// [2 tiles]: powers of the groups; whether sums are to be multiplied.
  __device__ static int4* powers() { return reinterpret_cast<int4*>(moves() + 2 * N); }
  __device__ static std::uint64_t* full() { return reinterpret_cast<std::uint64_t*>(powers() + 2); }  ///< of the tiles
  __device__ static std::uint64_t* empty() { return full() + kTiles; }
  __device__ static std::uint64_t* weights_full() { return empty() + kTiles; }
  __device__ static std::uint64_t* weights_empty() { return weights_full() + 2; }
  __device__ static std::uint64_t* queries_full() { return weights_full() + 4; }
  __device__ static std::uint64_t* queries_empty() { return weights_full() + 5; }
};

/// Codes 0 and 2 of a word as F16: code + 128 below the exponent of 2^10, less 1152. `exponent` is 0x64806480 where the compiler does
/// not see it: as a constant it would take an instruction of its own.
__device__ inline std::uint32_t even_codes(std::uint32_t x, std::uint32_t exponent) {
  std::uint32_t y;
  asm("{\n.reg .b32 t;\nlop3.b32 t, %1, 0x00ff00ff, %2, 0x6a;\nadd.rn.f16x2 %0, t, %3;\n}\n" : "=r"(y) : "r"(x), "r"(exponent), "r"(0xe480e480u));
  return y;
}

__device__ inline float power_of_two(int e) { return __int_as_float((e + 127) << 23); }  ///< -126 <= e <= 127
__device__ inline int exponent_of(float x) { return min(max((__float_as_int(x) >> 23) - 127, -126), 126); }  ///< x >= 0

/// A warpgroup that finds scores and weights.
template <int N>
struct CodesScorer {
  static constexpr int kEights = N / 8;
  static constexpr int kScorers = CodesMemory<N>::kScorers, kBuffers = kScorers == 1 ? 2 : 1;  ///< of sums of a product
  static constexpr int kHeads = code_heads(N), kParts = N / kHeads;  ///< heads of a product, products of a group
  using Memory = CodesMemory<N>;

  const LatentDecodeArgs& a;
  const DecodeWorkspace& work;
  int turn, warp, lane;  ///< which tiles it takes
  int items_done = 0, tiles_done = 0;
  RingPlace<Memory::kTiles> place{};
  std::uint32_t codes, queries;  ///< operands
  float scores[N / 2];  ///< of tokens r, r + 8 and heads h, h + 1, less anchors
  float step[2][4];     ///< scales of tokens r and r + 8
  float anchor[kEights][2], sum[kEights][2];
  int power[kGroups];  ///< weights and sums of a group are so many powers of two too small

  __device__ int row() const { return 16 * warp + lane / 4; }
  __device__ int buffer() const { return tiles_done & 1; }
  __device__ int all() const { return 4 * turn + warp; }

  /// Product i of a tile, of a group and some heads.
  __device__ void multiply(int (&d)[kHeads], int i) const {
    const int g = i / kParts;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < (g < 2 ? 6 : 8 - 2 * g); ++k) {  // 32 columns each
      const int c = (g < 3 ? 3 * g : 8) + k / 2, columns = (c == 8 ? 0 : c + 1) * (N * 128 >> 4) + k % 2 * kStepAlong;
      wgmma_codes<2 * kHeads>(d, codes + c / 2 * (kBoxBytes >> 4) + c % 2 * 4 + k % 2 * kStepAlong, queries + i % kParts * (kHeads * 128 >> 4) + columns, k > 0);
    }
    wgmma_commit();
  }

  __device__ void add_product(int (&part)[kHeads], int i) {
    const int g = i / kParts;
    settled(part);
#pragma unroll
    for (int b = 0; b < kHeads / 8; ++b) {
      const int all = i % kParts * kHeads / 8 + b;
      const float2 f = *reinterpret_cast<const float2*>(Memory::scales_of_queries() + g / 3 * N + 8 * all + lane % 4 * 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float x = __int2float_rn(part[4 * b + e] * 256 + part[kHeads / 2 + 4 * b + e]), scale = step[e / 2][g], times = e % 2 == 0 ? f.x : f.y;
        float& score = scores[4 * all + e];
        score = g == 0 ? x * scale : g < 3 ? __fmaf_rn(x, scale, score) : __fmaf_rn(x * scale, times, score);
        if (g == 2) score = __fmaf_rn(score, times, -anchor[all][e % 2]);
      }
    }
  }

  /// In powers of two; tokens out of sight have none. Hands the tile back.
  __device__ void find_scores(int valid) {
    barrier_wait(Memory::full() + place.slot, place.turn);
    // From one lane, so that the compiler sees that they are the same for all.
    queries = __shfl_sync(~0u, operand(shared_address(Memory::queries())), 0);
    codes = __shfl_sync(~0u, operand(shared_address(Memory::codes())) + place.slot * (kCodesBytes >> 4), 0);
    int part[kBuffers][kHeads];
#pragma unroll
    for (int i = 0; i < kBuffers; ++i) multiply(part[i], i);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 x = row() + 8 * i < valid ? Memory::scales()[place.slot * kTile + row() + 8 * i] : uint2{};
      const float2 low = unpack_bf16(x.x), high = unpack_bf16(x.y);
      step[i][0] = low.x, step[i][1] = low.y, step[i][2] = high.x, step[i][3] = high.y;
    }
#pragma unroll
    for (int i = 0; i < 4 * kParts; ++i) {
      if (kBuffers == 2 && i < 4 * kParts - 1) wgmma_wait<1>();
      else wgmma_wait<0>();
      if (i == 4 * kParts - 1) warp_arrive(Memory::empty() + place.slot);
      add_product(part[i % kBuffers], i);
      if (i + kBuffers < 4 * kParts) multiply(part[i % kBuffers], i + kBuffers);
    }
    if (valid >= kTile) return;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) scores[i] = row() + i / 2 % 2 * 8 < valid ? scores[i] : -INFINITY;
  }

  /// s_g P to shared memory. Returns whether one is too large for F16, or P for sums of it, which are `added`.
  __device__ bool write_weights(float (&added)[kEights][2]) {
    float times[kGroups][2], most = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) times[g][i] = step[i][g] * power_of_two(-power[g]);
    }
    unsigned char* const to = Memory::weights() + buffer() * kGroups * N * 128 + swizzled(lane / 16 * 8 + lane % 8, 16 * warp + (lane & 8));
#pragma unroll
    for (int b = 0; b < kEights; b += 2) {
      float p[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) p[i] = exp2_fast(scores[4 * b + i]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        added[b + e / 2][e % 2] = p[e / 2 * 4 + e % 2] + p[e / 2 * 4 + 2 + e % 2];
        most = fmaxf(most, added[b + e / 2][e % 2]);
      }
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        std::uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = pack_f16(p[2 * i] * times[g][i % 2], p[2 * i + 1] * times[g][i % 2]);
        store_matrices_transposed(x, to + (g * N + 8 * b) * 128);
      }
    }
    copies_follow();
    float largest = 0x1p-60f;
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) largest = fmaxf(largest, times[i / 2][i % 2]);
    return most * largest > 32768;
  }

  /// New anchors and powers for this tile and all before it, of which there are none where `fresh`.
  __device__ void move_anchors(bool fresh) {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      float most = fmaxf(scores[i / 2 * 4 + i % 2], scores[i / 2 * 4 + 2 + i % 2]);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
      if (lane < 4) Memory::maxima()[all() * N + i / 2 * 8 + lane * 2 + i % 2] = most;
    }
    meet(1 + turn, 128);
    float above[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const int head = i / 2 * 8 + lane % 4 * 2 + i % 2;
      float most = -INFINITY;
#pragma unroll
      for (int w = 0; w < 4; ++w) most = fmaxf(most, Memory::maxima()[(4 * turn + w) * N + head]);
      const float up = fresh ? most - kTop : fmaxf(0, most - kTop), factor = fresh ? 0 : exp2_fast(-up);
      anchor[i / 2][i % 2] += up;
      sum[i / 2][i % 2] *= factor;
      if (warp == 0 && lane < 4) Memory::factors()[buffer() * N + head] = factor, Memory::moves()[buffer() * N + head] = up;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& score = scores[i / 2 * 4 + 2 * r + i % 2];
        score -= up;
        above[r] = fmaxf(above[r], score);
      }
    }
    float most[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      most[g] = fmaxf(exp2_fast(above[0]) * step[0][g], exp2_fast(above[1]) * step[1][g]);
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) most[g] = fmaxf(most[g], __shfl_xor_sync(~0u, most[g], offset));
    }
    if (lane == 0) Memory::largest()[all()] = make_float4(most[0], most[1], most[2], 0);
    meet(1 + turn, 128);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float4 x = Memory::largest()[4 * turn + w];
      most[0] = fmaxf(most[0], x.x), most[1] = fmaxf(most[1], x.y), most[2] = fmaxf(most[2], x.z);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) power[g] = max(power[g], exponent_of(most[g]) - kTop);
  }

  /// What the other warpgroup has done to anchors and powers in the tile before, of the same item or not.
  __device__ void follow(bool same) {
    const int other = buffer() ^ 1;
    barrier_wait(Memory::weights_full() + other, (tiles_done - 1) >> 1 & 1);
    const int4 powers = Memory::powers()[other];
    if (powers.w == 0 || !same) return;
    power[0] = powers.x, power[1] = powers.y, power[2] = powers.z;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const int head = i / 2 * 8 + lane % 4 * 2 + i % 2;
      const float up = Memory::moves()[other * N + head];
      anchor[i / 2][i % 2] += up;
      sum[i / 2][i % 2] *= Memory::factors()[other * N + head];
      scores[i / 2 * 4 + i % 2] -= up, scores[i / 2 * 4 + 2 + i % 2] -= up;
    }
  }

  __device__ void weigh(bool fresh) {
    barrier_wait(Memory::weights_empty() + buffer(), (tiles_done >> 1 & 1) ^ 1);
    if (kScorers == 2 && tiles_done > 0) follow(!fresh);
    float added[kEights][2];
    const bool far = meet_any<128>(write_weights(added) || fresh, 1 + turn);
    if (far) {
      move_anchors(fresh);
      write_weights(added);
    }
    if (warp == 0 && lane == 0) Memory::powers()[buffer()] = make_int4(power[0], power[1], power[2], far);
    warp_arrive(Memory::weights_full() + buffer());
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) sum[i / 2][i % 2] += added[i / 2][i % 2];
  }

  __device__ void store_sums(std::int64_t at, int heads) {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      float total = sum[i / 2][i % 2];
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
      if (lane < 4) Memory::maxima()[all() * N + i / 2 * 8 + lane * 2 + i % 2] = total;
    }
    meet(3, kScorers * 128);
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const int head = i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (i / 2 % 4 != warp || turn > 0 || lane >= 4 || head >= heads) continue;
      const float* const x = Memory::maxima() + head;
      float total = (x[0] + x[N]) + (x[2 * N] + x[3 * N]);
      if (kScorers == 2) total += (x[4 * N] + x[5 * N]) + (x[6 * N] + x[7 * N]);  // whose tiles are whose does not matter
      work.sums[at + head] = make_float2(anchor[i / 2][i % 2], total);
    }
    if (kScorers == 2) meet(3, kScorers * 128);
  }

  __device__ void item(const DecodeItem& item, int first_head) {
    barrier_wait(Memory::queries_full(), items_done & 1);
    ++items_done;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) anchor[i / 2][i % 2] = sum[i / 2][i % 2] = 0;
    power[0] = power[1] = power[2] = kLeastPower;
    for (int begin = item.begin; begin < item.end; begin += kTile, place.advance(1), ++tiles_done) {
      if (tiles_done % kScorers != turn) continue;
      find_scores(min(kTile, item.end - begin));
      weigh(begin == item.begin);
    }
    warp_arrive(Memory::queries_empty());
    if (kScorers == 2 && tiles_done % 2 == turn) follow(true);  // the last tile was the other's
    const int heads = static_cast<int>(a.q.sizes[1]);
    store_sums((static_cast<std::int64_t>(item.row) * work.splits + item.split) * heads + first_head, heads - first_head);
  }
};

/// One of the two warpgroups that add tiles to 256 channels of the latent each.
template <int N>
struct CodesMixer {
  using Memory = CodesMemory<N>;

  const LatentDecodeArgs& a;
  const DecodeWorkspace& work;
  int group, warp, lane;  ///< half of the latent
  int tiles_done = 0;
  RingPlace<Memory::kTiles> place{};
  float mix[4][N / 2];

  /// Which group of the latent a chunk of this warpgroup belongs to.
  __device__ int group_of(int j) const { return group == 0 ? j / 3 : (4 + j) / 3; }
  __device__ static int of_group(const int4& x, int g) { return g == 0 ? x.x : g == 1 ? x.y : x.z; }  // no index: registers have none

  /// Four words of codes, 32 tokens of this warp's 16 channels of a chunk, to fragments of two steps of 16 tokens. A word holds two tokens of two
  /// channels, of which the second is eight rows on in the product.
  __device__ static void load(std::uint32_t (&x)[4], std::uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at));
  }
  __device__ static void widen(std::uint32_t (&f)[2][4], const std::uint32_t (&x)[4]) {
    const auto exponent = static_cast<std::uint32_t>(forgotten(0x64806480));
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i / 4][i % 4] = even_codes(x[i / 2] >> i % 2 * 8, exponent);
  }

  /// Powers of the tile; sums so far are multiplied where anchors have moved.
  __device__ int4 take_weights(int buffer, const int4& before) {
    const int4 powers = Memory::powers()[buffer];
    if (powers.w == 0) return powers;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float times = power_of_two(max(of_group(before, group_of(j)) - of_group(powers, group_of(j)), -126));
#pragma unroll
      for (int i = 0; i < N / 4; ++i) {
        const float factor = Memory::factors()[buffer * N + i / 2 * 8 + lane % 4 * 2 + i % 2] * times;
        mix[j][i / 2 * 4 + i % 2] *= factor, mix[j][i / 2 * 4 + 2 + i % 2] *= factor;
      }
    }
    return powers;
  }

  /// Where this lane finds its row of the tile at `place`.
  __device__ std::uint32_t codes() const {
    return shared_address(Memory::codes()) + place.slot * kCodesBytes + group * 2 * kBoxBytes + lane * 128;
  }
  /// Of eight halves of its chunks of 64 columns.
  __device__ std::uint32_t piece(int i) const { return static_cast<std::uint32_t>(i / 4 * kBoxBytes + i % 2 * (kBoxBytes / 2) + ((i / 2 % 2 * 4 + warp) ^ (lane % 8)) * 16); }
  /// Adds a tile to this warpgroup's channels; hands it back.
  __device__ void add_tile(int4& powers) {
    const int buffer = tiles_done & 1;
    const std::uint32_t at = codes(), weights = operand(shared_address(Memory::weights())) + buffer * kGroups * (N * 128 >> 4);
    std::uint32_t fragments[2][2][4], words[4];
    barrier_wait(Memory::full() + place.slot, place.turn);
    load(words, at + piece(0));
    widen(fragments[0], words);
    load(words, at + piece(1));
    barrier_wait(Memory::weights_full() + buffer, tiles_done >> 1 & 1);
    powers = take_weights(buffer, powers);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int j = i / 2;
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 2; ++s) wgmma_along_f16<N>(mix[j], fragments[i % 2][s], weights + group_of(j) * (N * 128 >> 4) + (i % 2 * 2 + s) * kStepAlong, 1);
      wgmma_commit();
      wgmma_wait<1>();  // the product before; this one's fragments may not be touched yet
      if (i < 7) widen(fragments[(i + 1) % 2], words);
      if (i < 6) load(words, at + piece(i + 2));
      if (i == 6) warp_arrive(Memory::empty() + place.slot);
    }
    place.advance(1);
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 4; ++j) settled(mix[j]);
    warp_arrive(Memory::weights_empty() + buffer);
    ++tiles_done;
  }

  __device__ void item(const DecodeItem& item, int first_head) {
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) mix[i / (N / 2)][i % (N / 2)] = 0;
    int4 powers = make_int4(kLeastPower, kLeastPower, kLeastPower, 0);
    for (int begin = item.begin; begin < item.end; begin += kTile) add_tile(powers);
    const int heads = static_cast<int>(a.q.sizes[1]);
    const std::int64_t at = (static_cast<std::int64_t>(item.row) * work.splits + item.split) * heads;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const int h = first_head + i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (h >= heads) continue;
      float* const out = work.mixes + (at + h) * kLatent + 256 * group + 16 * warp + lane / 4 * 2;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float times = power_of_two(of_group(powers, group_of(j)));
        *reinterpret_cast<float2*>(out + 64 * j) = make_float2(mix[j][i / 2 * 4 + i % 2] * times, mix[j][i / 2 * 4 + 2 + i % 2] * times);
      }
    }
  }
};

template <int N>
__device__ void fetch_codes(const LatentDecodeArgs& a, const DecodeWorkspace& work, const CUtensorMap* map, int box_rows) {
  using Memory = CodesMemory<N>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t tokens = a.list.blocks.sizes[1];
  RingPlace<Memory::kTiles> place;
  if (a.kv_a.defined()) await_kernel_before();
  fetch_tiles<false>(a, work, box_rows, 0, Memory::queries(), Memory::queries_full(), Memory::queries_empty(), [&](int asked, int row, int block) {
    std::uint64_t* const full = Memory::full() + place.slot;
    barrier_wait(Memory::empty() + place.slot, place.turn ^ 1);
    if (lane == 0) barrier_expect(full, asked * box_rows * (5 * 128 + 8));
    __syncwarp();
    if (lane < asked) {
      unsigned char* const to = Memory::codes() + place.slot * kCodesBytes + lane * box_rows * 128;
      for (int c = 0; c < 5; ++c) ask<false>({map, c * 128, row, block}, to + c * kBoxBytes, full);
      const auto* scales = static_cast<const unsigned char*>(a.list.blocks.data) + block * a.list.blocks.strides[0] + tokens * kListRow + row * 8;
      copy_bulk(Memory::scales() + place.slot * kTile + lane * box_rows, scales, box_rows * 8, full);
    }
    place.advance(1);
  });
}

/// Blocks take items in turn, an item once for every N heads.
template <int N>
__global__ void __launch_bounds__(CodesMemory<N>::kThreads, 1)
    latent_decode_codes(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work, const __grid_constant__ CUtensorMap map, const int box_rows) {
  using Memory = CodesMemory<N>;
  constexpr int kScorers = Memory::kScorers, kFetchRegisters = 32, kMixRegisters = kScorers == 2 ? 120 : 144, kScoreRegisters = kScorers == 2 ? 104 : 192;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    if (shared_address(codes_memory) % 1024 != 0) __trap();  // swizzles count from there
    for (int i = 0; i < Memory::kTiles; ++i) {
      barrier_init(Memory::full() + i, 1);
      barrier_init(Memory::empty() + i, 12 * kWarpArrivals);
    }
    for (int i = 0; i < 2; ++i) {
      barrier_init(Memory::weights_full() + i, 4 * kWarpArrivals);
      barrier_init(Memory::weights_empty() + i, 8 * kWarpArrivals);
    }
    barrier_init(Memory::queries_full(), 1);
    barrier_init(Memory::queries_empty(), 4 * kScorers * kWarpArrivals);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  allow_kernel_after();
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warp >= 4 * kScorers + 8) {
    registers_down<kFetchRegisters>();
    if (warp == 4 * kScorers + 8) fetch_codes<N>(a, work, &map, box_rows);
  } else if (warp >= 4 * kScorers) {
    registers_up<kMixRegisters>();
    CodesMixer<N> worker{a, work, warp / 4 - kScorers, warp % 4, lane};
    each_item(a, work, [&](const DecodeItem& item, int rank) { worker.item(item, rank * N); });
  } else {
    registers_up<kScoreRegisters>();
    CodesScorer<N> worker{a, work, warp / 4, warp % 4, lane};
    each_item(a, work, [&](const DecodeItem& item, int rank) { worker.item(item, rank * N); });
  }
}

}  // namespace palimpsest::cuda::sm90
