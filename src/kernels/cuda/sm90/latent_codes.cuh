#pragma once

// Absorbed decode over a list in 8-bit codes (q8_rows.h). With C_g the codes of group g (the thirds of the latent, the shared key channels) of 64
// tokens, s_g their scales, and weights of a tile as in latent_decode.cuh:
//
//     S^T [64 tokens, N heads] = sum_g s_g (C_g Q'_g^T)          O_g^T [channels of g, N] += C_g^T (s_g P)^T
//
// A code is an integer, which F16 holds, so nothing is rounded but q' and s_g P, to F16. Codes go from shared memory straight to the registers
// from which the tensor cores take them, once for each product: five instructions for four codes. Written back to shared memory for both, as
// before, a tile moves 2,900 cycles of it; so 1,600 (32 heads), and memory brings one in 2,050.
//
// Tiles are taken in pairs. Each of two warpgroups finds the scores of one tile, for all of the block's heads, and adds both tiles to its half of
// the latent. More heads than a block takes are other blocks, side by side in the grid, which find the list in L2. A third warpgroup asks for it.
//
// F16 has exponents for 2^-24 to 2^16. Queries have a power of two for each row and head (absorb_queries). s_g P is held in range by anchors of
// heads, as in latent_decode.cuh, and by a power of two for each group of channels. Both begin so that the largest number of the first pair is near
// 2^kTop, and move when one would pass 2^15. Then what is lost below 2^-24 is 2^31 times smaller than what it is added to.

#include "kernels/cuda/sm90/latent_decode.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kGroups = 3;  ///< of the latent, 192 columns each but the last
inline constexpr int kTop = 7;     ///< of weights, in powers of two, where anchors have moved
inline constexpr int kLeastPower = -64;  ///< of groups: weights times scales that are smaller are zeros
inline constexpr int kCodesBytes = kTile * kListRow, kScalesBytes = kTile * 8, kChunkBytes = kTile * 64;

extern __shared__ __align__(1024) unsigned char codes_memory[];

/// Shared memory of a block for N heads: constant addresses, which take no registers.
template <int N>
struct CodesMemory {
  static constexpr int kQueries = N * (kListRow * 2 + 4), kWeights = 2 * kGroups * N * 128, kMaxima = 8 * (N + 4) * 4;
  static constexpr int kLimit = 227 * 1024 - 256;  ///< less barriers
  static constexpr int kTiles = (kLimit - kQueries - kWeights - kMaxima) / (kCodesBytes + kScalesBytes);
  static constexpr int kBytes = 256 + kQueries + kWeights + kMaxima + kTiles * (kCodesBytes + kScalesBytes);
  static_assert(kTiles >= 3);

  /// Of a tile: nine chunks [64 tokens, 64 columns], 64-byte swizzle.
  __device__ static unsigned char* codes() { return codes_memory; }
  /// s_g P: [2 tiles, 3 groups], each [N, 64 tokens].
  __device__ static unsigned char* weights() { return codes_memory + kTiles * kCodesBytes; }
  /// The image of DecodeWorkspace.
  __device__ static unsigned char* queries() { return weights() + kWeights; }
  __device__ static const float* powers() { return reinterpret_cast<const float*>(queries() + N * kListRow * 2); }
  /// Of a tile: BF16 [64, 4].
  __device__ static uint2* scales() { return reinterpret_cast<uint2*>(queries() + kQueries); }
  __device__ static float* maxima() { return reinterpret_cast<float*>(scales() + kTiles * kTile); }    ///< [8 warps, N]
  __device__ static float4* largest() { return reinterpret_cast<float4*>(maxima() + 8 * N); }           ///< [8 warps], of a group each
  __device__ static std::uint64_t* full() { return reinterpret_cast<std::uint64_t*>(largest() + 8); }  ///< of the tiles
  __device__ static std::uint64_t* empty() { return full() + kTiles; }
  __device__ static std::uint64_t* queries_full() { return empty() + kTiles; }
  __device__ static std::uint64_t* queries_empty() { return queries_full() + 1; }
  __device__ static std::uint64_t* mixed() { return queries_full() + 2; }
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

/// Sums are there; the compiler, which does not know of the wait, reads them no sooner.
template <int kCount>
__device__ void arrived(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// A warpgroup's share of one block's work.
template <int N>
struct CodesWorker {
  static constexpr int kEights = N / 8;
  static constexpr int kBuffers = N < 48 ? 2 : 1;  ///< of fragments, and of sums of a group: with one, codes are converted after the product before them
  using Memory = CodesMemory<N>;
  using Place = RingPlace<Memory::kTiles>;

  const LatentDecodeArgs& a;
  const DecodeWorkspace& work;
  int group, warp, lane;  ///< warpgroup; warp in it; lane
  float scale;            ///< to powers of two
  int items_done = 0, pairs_done = 0;
  Place place{};  ///< of the pair's first tile
  float mix[4][N / 2];
  float scores[N / 2];  ///< of tokens r, r + 8 and heads h, h + 1
  float step[2][4];     ///< scales of tokens r and r + 8
  float anchor[kEights][2], sum[kEights][2];
  int power[kGroups];  ///< weights and sums of a group are so many powers of two too small

  __device__ int row() const { return 16 * warp + lane / 4; }

  /// Eight words of codes: this warp's 16 rows (or columns) of a chunk of 64 of K.
  struct Words {
    std::uint32_t x[2][4];
  };
  __device__ static void load_rows(Words& w, std::uint32_t at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(w.x[i][0]), "=r"(w.x[i][1]), "=r"(w.x[i][2]), "=r"(w.x[i][3]) : "r"(at ^ (32 * i)));
    }
  }
  __device__ static void load_columns(Words& w, std::uint32_t at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w.x[i][0]), "=r"(w.x[i][1]), "=r"(w.x[i][2]), "=r"(w.x[i][3])
                   : "r"(at + kChunkBytes / 2 * i));
    }
  }
  /// To fragments of four steps of 16 of K. Of rows, K runs along words, its even codes first (codes_column()); of columns, an odd one is row 8 on.
  template <bool kColumns>
  __device__ static void widen(std::uint32_t (&f)[4][4], const Words& w) {
    const auto exponent = static_cast<std::uint32_t>(forgotten(0x64806480));
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const std::uint32_t x = w.x[s / 2][s % 2 * 2], y = w.x[s / 2][s % 2 * 2 + 1];
      f[s][0] = even_codes(x, exponent);
      f[s][kColumns ? 1 : 2] = even_codes(x >> 8, exponent);
      f[s][kColumns ? 2 : 1] = even_codes(y, exponent);
      f[s][3] = even_codes(y >> 8, exponent);
    }
  }
  __device__ static void multiply(float* d, const std::uint32_t (&f)[4][4], std::uint32_t b, bool fresh) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) wgmma_along_f16<N>(d, f[s], b + s * kStepAlong, s > 0 || !fresh);
    wgmma_commit();
  }

  /// Scores of the tile, before the powers of heads.
  __device__ void find_scores(const Place& tile, int valid) {
    barrier_wait(Memory::full() + tile.slot, tile.turn);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool seen = row() + 8 * i < valid;
      const uint2 x = seen ? Memory::scales()[tile.slot * kTile + row() + 8 * i] : uint2{};
      const float2 low = unpack_bf16(x.x), high = unpack_bf16(x.y);
      step[i][0] = low.x, step[i][1] = low.y, step[i][2] = high.x, step[i][3] = high.y;
    }
    const int token = 16 * warp + lane % 16;
    const std::uint32_t at = shared_address(Memory::codes()) + tile.slot * kCodesBytes + token * 64 + ((lane / 16 ^ (token / 2 % 4)) << 4);
    const std::uint32_t queries = operand(shared_address(Memory::queries()));
    float part[kBuffers][N / 2];
    std::uint32_t fragments[kBuffers][4][4];
    Words words;
    const auto add_group = [&](int g) {
      float (&x)[N / 2] = part[g % kBuffers];
      arrived(x);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) scores[i] = g == 0 ? x[i] * step[i / 2 % 2][0] : __fmaf_rn(x[i], step[i / 2 % 2][g], scores[i]);
    };
    load_rows(words, at);
    widen<false>(fragments[0], words);
#pragma unroll
    for (int c = 0; c < 9; ++c) {
      const int g = c == 8 ? 3 : c / 3;
      const bool first = c % 3 == 0 || c == 8, last = c == 2 || c == 5 || c >= 7;
      if (c < 8) load_rows(words, at + (c + 1) * kChunkBytes);
      multiply(part[g % kBuffers], fragments[c % kBuffers], queries + (c == 8 ? 0 : c + 1) * (N * 128 >> 4), first);
      wgmma_wait<kBuffers - 1>();  // the product before; this one's fragments may not be touched yet
      if (kBuffers == 2 && first && c > 0) add_group(g - 1);
      if (kBuffers == 1 && last) add_group(g);
      if (c < 8) widen<false>(fragments[(c + 1) % kBuffers], words);
    }
    if (kBuffers == 1) return;
    wgmma_wait<0>();
    add_group(3);
  }

  /// Adds a tile to this warpgroup's 256 channels; hands it back.
  __device__ void add_tile(const Place& tile, int of_pair) {
    const std::uint32_t at = shared_address(Memory::codes()) + tile.slot * kCodesBytes + group * 4 * kChunkBytes + lane * 64 + ((warp ^ (lane / 2 % 4)) << 4);
    const std::uint32_t weights = operand(shared_address(Memory::weights())) + of_pair * kGroups * (N * 128 >> 4);
    std::uint32_t fragments[kBuffers][4][4];
    Words words;
    load_columns(words, at);
    widen<true>(fragments[0], words);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j < 3) load_columns(words, at + (j + 1) * kChunkBytes);
      multiply(mix[j], fragments[j % kBuffers], weights + group_of(j) * (N * 128 >> 4), false);
      if (j == 3) warp_arrive(Memory::empty() + tile.slot);
      wgmma_wait<kBuffers - 1>();
      if (j < 3) widen<true>(fragments[(j + 1) % kBuffers], words);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 4; ++j) arrived(mix[j]);
  }
  /// Which group of the latent a chunk of this warpgroup belongs to.
  __device__ int group_of(int j) const { return group == 0 ? j / 3 : (4 + j) / 3; }

  /// To powers of two; tokens out of sight have none.
  __device__ void finish_scores(int valid) {
#pragma unroll
    for (int b = 0; b < kEights; ++b) {
      const float2 times = *reinterpret_cast<const float2*>(Memory::powers() + 8 * b + lane % 4 * 2);
      scores[4 * b] *= times.x * scale, scores[4 * b + 1] *= times.y * scale, scores[4 * b + 2] *= times.x * scale, scores[4 * b + 3] *= times.y * scale;
    }
    if (valid >= kTile) return;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) scores[i] = row() + i / 2 % 2 * 8 < valid ? scores[i] : -INFINITY;
  }

  /// s_g P to shared memory. Returns whether one is too large for F16, or P for sums of it, which are `added`.
  __device__ bool write_weights(float (&added)[kEights][2]) {
    float times[kGroups][2], most[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) times[g][i] = step[i][g] * power_of_two(-power[g]);
    }
    unsigned char* const to = Memory::weights() + group * kGroups * N * 128 + swizzled(lane / 16 * 8 + lane % 8, 16 * warp + (lane & 8));
#pragma unroll
    for (int b = 0; b < kEights; b += 2) {
      float p[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        p[i] = exp2_fast(scores[4 * b + i] - anchor[b + i / 4][i % 2]);
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], p[i]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) added[b + e / 2][e % 2] = p[e / 2 * 4 + e % 2] + p[e / 2 * 4 + 2 + e % 2];
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        std::uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = pack_f16(p[2 * i] * times[g][i % 2], p[2 * i + 1] * times[g][i % 2]);
        store_matrices_transposed(x, to + (g * N + 8 * b) * 128);
      }
    }
    copies_follow();
    bool far = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) far = far || most[i] * fmaxf(fmaxf(times[0][i], times[1][i]), fmaxf(times[2][i], 0x1p-60f)) > 32768;
    return far;
  }

  /// New anchors and powers for this pair and all before it.
  __device__ void move_anchors() {
    const int all = 4 * group + warp;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      float most = fmaxf(scores[i / 2 * 4 + i % 2], scores[i / 2 * 4 + 2 + i % 2]);
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, offset));
      if (lane < 4) Memory::maxima()[all * N + i / 2 * 8 + lane * 2 + i % 2] = most;
    }
    meet(1, 256);
    float above[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      float most = -INFINITY;
#pragma unroll
      for (int w = 0; w < 8; ++w) most = fmaxf(most, Memory::maxima()[w * N + i / 2 * 8 + lane % 4 * 2 + i % 2]);
      float& now = anchor[i / 2][i % 2];
      const float next = fmaxf(now, most - kTop), factor = exp2_fast(now - next);
      now = next;
      sum[i / 2][i % 2] *= factor;
#pragma unroll
      for (int j = 0; j < 4; ++j) mix[j][i / 2 * 4 + i % 2] *= factor, mix[j][i / 2 * 4 + 2 + i % 2] *= factor;
#pragma unroll
      for (int r = 0; r < 2; ++r) above[r] = fmaxf(above[r], scores[i / 2 * 4 + 2 * r + i % 2] - next);
    }
    float most[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      most[g] = fmaxf(exp2_fast(above[0]) * step[0][g], exp2_fast(above[1]) * step[1][g]);
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) most[g] = fmaxf(most[g], __shfl_xor_sync(~0u, most[g], offset));
    }
    if (lane == 0) Memory::largest()[all] = make_float4(most[0], most[1], most[2], 0);
    meet(1, 256);
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      const float4 x = Memory::largest()[w];
      most[0] = fmaxf(most[0], x.x), most[1] = fmaxf(most[1], x.y), most[2] = fmaxf(most[2], x.z);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int next = max(power[g], exponent_of(most[g]) - kTop);
      const float factor = power_of_two(max(power[g] - next, -126));
      power[g] = next;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (group_of(j) != g) continue;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) mix[j][i] *= factor;
      }
    }
  }

  __device__ void weigh(int valid) {
    if (valid > 0) finish_scores(valid);
    if (pairs_done > 0) barrier_wait(Memory::mixed(), (pairs_done - 1) & 1);
    ++pairs_done;
    float added[kEights][2];
    if (meet_any(write_weights(added))) {
      move_anchors();
      write_weights(added);
      meet(1, 256);
    }
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) sum[i / 2][i % 2] += added[i / 2][i % 2];
  }

  __device__ void store(const DecodeItem& item, int first_head) {
    const int heads = static_cast<int>(a.q.sizes[1]), all = 4 * group + warp;
    const std::int64_t at = (static_cast<std::int64_t>(item.row) * work.splits + item.split) * heads;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      float total = sum[i / 2][i % 2];
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) total += __shfl_xor_sync(~0u, total, offset);
      if (lane < 4) Memory::maxima()[all * N + i / 2 * 8 + lane * 2 + i % 2] = total;
    }
    meet(1, 256);
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      const int head = i / 2 * 8 + lane % 4 * 2 + i % 2, h = first_head + head;
      if (h >= heads) continue;
      if (i / 2 == all && lane < 4) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < 8; ++w) total += Memory::maxima()[w * N + head];
        work.sums[at + h] = make_float2(anchor[i / 2][i % 2], total);
      }
      float* const out = work.mixes + (at + h) * kLatent + 256 * group + 16 * warp + lane / 4 * 2;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float times = power_of_two(group_of(j) == 0 ? power[0] : group_of(j) == 1 ? power[1] : power[2]);  // no index: registers have none
        *reinterpret_cast<float2*>(out + 64 * j) = make_float2(mix[j][i / 2 * 4 + i % 2] * times, mix[j][i / 2 * 4 + 2 + i % 2] * times);
      }
    }
  }

  __device__ void item(const DecodeItem& item, int first_head) {
    barrier_wait(Memory::queries_full(), items_done & 1);
    ++items_done;
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) anchor[i / 2][i % 2] = -INFINITY, sum[i / 2][i % 2] = 0;
#pragma unroll
    for (int i = 0; i < 2 * N; ++i) mix[i / (N / 2)][i % (N / 2)] = 0;
    power[0] = power[1] = power[2] = kLeastPower;
    for (int begin = item.begin; begin < item.end; begin += 2 * kTile) {
      const int valid = min(kTile, item.end - begin - group * kTile);  // of this warpgroup's tile; a last pair may be one tile
      if (valid > 0) {
        find_scores(place.ahead(group), valid);
      } else {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) scores[i] = -INFINITY;
#pragma unroll
        for (int i = 0; i < 8; ++i) step[i / 4][i % 4] = 0;
      }
      weigh(valid);
      if (begin + 2 * kTile >= item.end) warp_arrive(Memory::queries_empty());
      const int tiles = item.end - begin > kTile ? 2 : 1;
      for (int tile = 0; tile < tiles; ++tile, place.advance(1)) add_tile(place, tile);
      warp_arrive(Memory::mixed());
    }
    store(item, first_head);
  }
};

/// Asks for the tiles of all items of this block: one warp, lanes ask for the boxes of a chunk side by side.
template <int N>
__device__ void fetch_codes(const LatentDecodeArgs& a, const DecodeWorkspace& work, const CUtensorMap* map, int box_rows) {
  using Memory = CodesMemory<N>;
  const int lane = static_cast<int>(threadIdx.x) % 32, boxes = kTile / box_rows, blocks = work.padded_heads / N;
  const auto block_tokens = static_cast<unsigned>(a.list.blocks.sizes[1]);
  RingPlace<Memory::kTiles> place;
  DecodeItems items{a, work.most_splits, lane};
  DecodeItem item;
  int item_turn = 0;
  for (int k = static_cast<int>(blockIdx.x); items.find(k / blocks, item); k += static_cast<int>(gridDim.x), item_turn ^= 1) {
    const auto* table = static_cast<const std::int32_t*>(a.list.table.data) + item.slot * a.list.table.strides[0];
    const auto block_of = [&](int tile_begin) {  // of this lane's box
      const int token = tile_begin + lane * box_rows;
      return lane < boxes && token < item.end ? table[static_cast<unsigned>(token) / block_tokens] : 0;
    };
    int later = block_of(item.begin);
    for (int begin = item.begin; begin < item.end; begin += kTile, place.advance(1)) {
      const int block = later, asked = min(boxes, (item.end - begin + box_rows - 1) / box_rows);
      later = block_of(begin + kTile);
      const auto row = static_cast<int>(static_cast<unsigned>(begin + lane * box_rows) % block_tokens);
      std::uint64_t* const full = Memory::full() + place.slot;
      barrier_wait(Memory::empty() + place.slot, place.turn ^ 1);
      if (lane == 0) barrier_expect(full, asked * box_rows * (kListRow + 8));
      __syncwarp();
      if (lane < asked) {
        unsigned char* const to = Memory::codes() + place.slot * kCodesBytes + lane * box_rows * 64;
        for (int c = 0; c < 9; ++c) ask<false>({map, c * 64, row, block}, to + c * kChunkBytes, full);
        const auto* scales = static_cast<const unsigned char*>(a.list.blocks.data) + block * a.list.blocks.strides[0] + block_tokens * kListRow + row * 8;
        copy_bulk(Memory::scales() + place.slot * kTile + lane * box_rows, scales, box_rows * 8, full);
      }
      if (begin == item.begin && lane == 0) {  // the first tile is on its way while the item before still needs its queries
        if (k == static_cast<int>(blockIdx.x)) await_kernel_before();
        barrier_wait(Memory::queries_empty(), item_turn ^ 1);
        barrier_expect(Memory::queries_full(), Memory::kQueries);
        copy_bulk(Memory::queries(), work.queries + (static_cast<std::int64_t>(item.row) * blocks + k % blocks) * Memory::kQueries, Memory::kQueries,
                  Memory::queries_full());
      }
      __syncwarp();
    }
  }
}

/// Blocks take items in turn, an item once for every N heads.
template <int N>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    latent_decode_codes(const __grid_constant__ LatentDecodeArgs a, const __grid_constant__ DecodeWorkspace work, const __grid_constant__ CUtensorMap map, const int box_rows) {
  using Memory = CodesMemory<N>;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    if (shared_address(codes_memory) % 1024 != 0) __trap();  // swizzles count from there
    for (int i = 0; i < Memory::kTiles; ++i) {
      barrier_init(Memory::full() + i, 1);
      barrier_init(Memory::empty() + i, 8 * kWarpArrivals);
    }
    barrier_init(Memory::queries_full(), 1);
    barrier_init(Memory::queries_empty(), 8 * kWarpArrivals);
    barrier_init(Memory::mixed(), 8 * kWarpArrivals);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  allow_kernel_after();
  __syncthreads();
  if (warp >= 8) {
    registers_down<40>();
    if (warp == 8) fetch_codes<N>(a, work, &map, box_rows);
  } else {
    registers_up<232>();
    const int lane = static_cast<int>(threadIdx.x) % 32, blocks = work.padded_heads / N;
    CodesWorker<N> worker{a, work, warp / 4, warp % 4, lane, a.scale * 1.44269504f};
    DecodeItems items{a, work.most_splits, lane};
    DecodeItem item;
    for (int k = static_cast<int>(blockIdx.x); items.find(k / blocks, item); k += static_cast<int>(gridDim.x)) worker.item(item, k % blocks * N);
  }
}

}  // namespace palimpsest::cuda::sm90
