#pragma once

// Prefill in materialised form: online softmax over blocks of 128 keys for 128 queries of one head, nothing of size T x T.
//
// A warp fetches queries, keys and values by bulk tensor copies, two stages each; two warpgroups compute, 64 queries each:
//     S = Q K_j^T  [64, 128] over 192 channels        P = 2^(S - m)        O = O 2^(m_old - m) + P V_j  [64, 128]
// S of block j runs on the tensor cores beside P V of block j - 1, and the warpgroups take turns in asking for products, so that one's softmax
// lies under the other's products. P never leaves the registers.
//
// Key blocks begin at multiples of 128 of the sequence's own keys and are walked upwards; blocks a row does not see multiply by one and add
// zero. So a row's bits depend on its own keys alone: not on batch mates, on later rows, or on how the prompt was cut.

#include <cuda.h>

#include "kernels/cuda/sm90/latent_rows.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

namespace palimpsest::cuda::sm90 {

inline constexpr int kPrefillThreads = 3 * 128;
inline constexpr int kQueryTile = 128, kKeyTile = 128;
inline constexpr int kSlab = kKeyTile * 128;  ///< bytes of [128, 64]
inline constexpr int kPrefillStages = 2;

struct PrefillMaps {
  CUtensorMap q, k, k_pe, v;
};

struct PrefillMemory {
  unsigned char q[3 * kSlab];
  unsigned char k[kPrefillStages][3 * kSlab];
  unsigned char v[kPrefillStages][2 * kSlab];
  std::uint64_t q_full, k_full[kPrefillStages], k_empty[kPrefillStages], v_full[kPrefillStages], v_empty[kPrefillStages];
};
inline constexpr int kPrefillSharedBytes = static_cast<int>(sizeof(PrefillMemory)) + 1024;

/// A block's work: queries [row, row + kQueryTile) of the batch, as far as they belong to the sequence, and the keys they see.
struct PrefillTile {
  int row, rows;        ///< first row of the batch; how many are this sequence's
  int first_key, keys;  ///< of the sequence
  int seen;             ///< by the tile's first query; each further one sees one more
  bool first, last;     ///< of the windows of keys that it sees
  __device__ int blocks() const { return (min(seen + kQueryTile - 1, keys) + kKeyTile - 1) / kKeyTile; }
};

/// Ids of tiles: sequence n owns those from cu[n] / 128 + n on; some stay empty. False for these, and where no key is to be seen.
__device__ inline bool prefill_tile(const LatentPrefillArgs& a, int id, PrefillTile& tile) {
  const auto first_id = [&](std::int64_t n) { return static_cast<int>(load_index(a.cu_seqlens, n) / kQueryTile + n); };
  std::int64_t low = 0, high = a.cu_seqlens.sizes[0] - 1;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (first_id(middle) <= id) low = middle;
    else high = middle;
  }
  const Tensor& cu_keys = a.cu_keys.defined() ? a.cu_keys : a.cu_seqlens;
  const int begin = static_cast<int>(load_index(a.cu_seqlens, low)), rows = static_cast<int>(load_index(a.cu_seqlens, low + 1)) - begin;
  const int skipped = (id - first_id(low)) * kQueryTile;
  tile.first_key = static_cast<int>(load_index(cu_keys, low));
  tile.keys = static_cast<int>(load_index(cu_keys, low + 1)) - tile.first_key;
  tile.row = begin + skipped;
  tile.rows = min(kQueryTile, rows - skipped);
  tile.first = tile.last = true;
  if (!a.carry.defined()) {
    tile.seen = tile.keys - rows + skipped + 1;
  } else {
    const std::int64_t seen = load_index(a.past, low) + skipped + 1 - a.window;
    tile.seen = static_cast<int>(seen);
    tile.first = a.window == 0;
    tile.last = seen + tile.rows - 1 <= a.window_keys;
  }
  return tile.rows > 0 && tile.blocks() > 0;
}

__device__ inline void copy_box(void* to, const CUtensorMap* map, int column, int head, int row, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
               "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_address(barrier))
               : "memory");
}
__device__ inline void copy_box(void* to, const CUtensorMap* map, int column, int row, std::uint64_t* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
               "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
               : "memory");
}

/// One thread: keys one block ahead of values, in the order they are wanted.
__device__ inline void fetch_prefill(PrefillMemory& m, const PrefillMaps& maps, const PrefillTile& tile, int head) {
  barrier_expect(&m.q_full, 3 * kSlab);
  for (int c = 0; c < 3; ++c) copy_box(m.q + c * kSlab, &maps.q, 64 * c, head, tile.row, &m.q_full);
  const int blocks = tile.blocks();
  for (int j = 0; j <= blocks; ++j) {
    if (j < blocks) {
      const int stage = j % kPrefillStages, row = tile.first_key + j * kKeyTile;
      barrier_wait(m.k_empty + stage, (j / kPrefillStages & 1) ^ 1);
      barrier_expect(m.k_full + stage, 3 * kSlab);
      for (int c = 0; c < 2; ++c) copy_box(m.k[stage] + c * kSlab, &maps.k, 64 * c, head, row, m.k_full + stage);
      copy_box(m.k[stage] + 2 * kSlab, &maps.k_pe, 0, row, m.k_full + stage);
    }
    if (j > 0) {
      const int stage = (j - 1) % kPrefillStages, row = tile.first_key + (j - 1) * kKeyTile;
      barrier_wait(m.v_empty + stage, ((j - 1) / kPrefillStages & 1) ^ 1);
      barrier_expect(m.v_full + stage, 2 * kSlab);
      for (int c = 0; c < 2; ++c) copy_box(m.v[stage] + c * kSlab, &maps.v, 64 * c, head, row, m.v_full + stage);
    }
  }
}

/// A warpgroup's 64 queries.
struct PrefillWorker {
  PrefillMemory& m;
  const PrefillTile& tile;
  int group, warp, lane;
  float scale;       ///< to powers of two
  float o[64];       ///< [64, 128]
  float s[64];       ///< [64, 128 keys]
  std::uint32_t p[32];  ///< the same rounded to BF16, as the operand of the next product
  float most[2], sum[2];

  __device__ void start_scores(int j) {
    const int stage = j % kPrefillStages;
    barrier_wait(m.k_full + stage, j / kPrefillStages & 1);
    wgmma_fence();
    const std::uint32_t q = operand(shared_address(m.q) + group * 8192), k = operand(shared_address(m.k[stage]));
#pragma unroll
    for (int i = 0; i < 12; ++i) {
      const int step = i / 4 * (kSlab >> 4) + i % 4 * kStepAlong;
      wgmma_shared<128, false>(s, q + step, k + step, i > 0);
    }
    wgmma_commit();
  }
  /// Waits for the values of block j. Rows beyond the sequence are whatever lies there; times zero they must be zero. Both warpgroups do so.
  __device__ void await_values(int j) {
    const int stage = j % kPrefillStages, valid = tile.keys - j * kKeyTile;
    barrier_wait(m.v_full + stage, j / kPrefillStages & 1);
    if (valid >= kKeyTile) return;
    for (int i = valid * 8 + warp * 32 + lane; i < kKeyTile * 8; i += 128) {
      reinterpret_cast<uint4*>(m.v[stage])[i] = uint4{};
      reinterpret_cast<uint4*>(m.v[stage] + kSlab)[i] = uint4{};
    }
    copies_follow();
    asm volatile("bar.sync %0, 128;" ::"r"(4 + group) : "memory");
  }
  __device__ void start_values(int j) {
    const std::uint32_t v = operand(shared_address(m.v[j % kPrefillStages]), kSlab);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) wgmma_values(o, p + 4 * i, v + i * kStepAcross, 1);
    wgmma_commit();
  }
  __device__ void release(std::uint64_t* barrier) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }

  /// S of block j to P in place, in F32. Returns in `factor` what the sums so far are to be multiplied by.
  __device__ void softmax(int j, float (&factor)[2]) {
    const int row = 64 * group + 16 * warp + lane / 4, begin = j * kKeyTile;
    if (begin + kKeyTile > tile.seen + 64 * group) {  // some query of this warpgroup does not see all of the block
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int key = begin + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (key >= tile.seen + row + i % 4 / 2 * 8) s[i] = -INFINITY;
      }
    }
    float highest[2] = {s[0], s[2]};
#pragma unroll
    for (int i = 0; i < 64; ++i) highest[i % 4 / 2] = fmaxf(highest[i % 4 / 2], s[i]);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      highest[e] = fmaxf(highest[e], __shfl_xor_sync(~0u, highest[e], 1));
      highest[e] = fmaxf(highest[e], __shfl_xor_sync(~0u, highest[e], 2));
      const float now = fmaxf(most[e], highest[e] * scale);
      factor[e] = exp2_fast(most[e] - now);
      most[e] = now;
      sum[e] *= factor[e];
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      s[i] = exp2_fast(__fmaf_rn(s[i], scale, -most[i % 4 / 2]));
      sum[i % 4 / 2] += s[i];
    }
  }
  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
  }

  /// The other warpgroup's turn has passed; ours has.
  __device__ void await_turn() const { asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory"); }
  __device__ void pass_turn() const { asm volatile("bar.arrive %0, 256;" ::"r"(3 - group) : "memory"); }

  /// The row of the batch of a lane's rows e = 0, 1; false: it is not of this tile.
  __device__ bool row_of(int e, std::int64_t& row) const {
    const int i = 64 * group + 16 * warp + lane / 4 + 8 * e;
    row = tile.row + i;
    return i < tile.rows;
  }
  /// What the windows before have come to: sums as they are, in each lane its own part of the probabilities'.
  __device__ void begin(const LatentPrefillArgs& a, int head) {
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0;
    most[0] = most[1] = -INFINITY;
    sum[0] = sum[1] = 0;
    if (tile.first) return;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      std::int64_t row;
      if (!row_of(e, row)) continue;
      const std::int64_t at = row * a.q.sizes[1] + head;
      const float *carry = static_cast<const float*>(a.carry.data) + at * 8, *from = static_cast<const float*>(a.o.data) + at * kValueChannels + lane % 4 * 2;
      most[e] = carry[4];
      sum[e] = carry[lane % 4];
#pragma unroll
      for (int b = 0; b < 16; ++b) {
        const float2 x = *reinterpret_cast<const float2*>(from + 8 * b);
        o[4 * b + 2 * e] = x.x;
        o[4 * b + 2 * e + 1] = x.y;
      }
    }
  }
  __device__ void leave(const LatentPrefillArgs& a, int head) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      std::int64_t row;
      if (!row_of(e, row)) continue;
      const std::int64_t at = row * a.q.sizes[1] + head;
      float *carry = static_cast<float*>(a.carry.data) + at * 8, *to = static_cast<float*>(a.o.data) + at * kValueChannels + lane % 4 * 2;
      if (lane % 4 == 0) carry[4] = most[e];
      carry[lane % 4] = sum[e];
#pragma unroll
      for (int b = 0; b < 16; ++b) *reinterpret_cast<float2*>(to + 8 * b) = make_float2(o[4 * b + 2 * e], o[4 * b + 2 * e + 1]);
    }
  }

  __device__ void attend() {
    const int blocks = tile.blocks();
    float factor[2];
    if (group == 1) pass_turn();
    barrier_wait(&m.q_full, 0);
    await_turn();
    start_scores(0);
    if (group == 0 || blocks > 1) pass_turn();
    wgmma_wait<0>();
    release(m.k_empty);
    softmax(0, factor);
    if (!tile.first) {
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] *= factor[i % 4 / 2];
    }
    pack();
    for (int j = 1; j < blocks; ++j) {
      await_values(j - 1);
      await_turn();
      start_scores(j);
      start_values(j - 1);
      if (group == 0 || j + 1 < blocks) pass_turn();
      wgmma_wait<1>();
      release(m.k_empty + j % kPrefillStages);
      softmax(j, factor);
      wgmma_wait<0>();
      release(m.v_empty + (j - 1) % kPrefillStages);
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] *= factor[i % 4 / 2];
      pack();
    }
    await_values(blocks - 1);
    start_values(blocks - 1);
    wgmma_wait<0>();
  }

  __device__ void store(const LatentPrefillArgs& a, int head) {
    const std::int64_t heads = a.q.sizes[1];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      sum[e] += __shfl_xor_sync(~0u, sum[e], 1);
      sum[e] += __shfl_xor_sync(~0u, sum[e], 2);
      std::int64_t row;
      if (!row_of(e, row)) continue;
      const float inverse = 1 / sum[e];
#pragma unroll
      for (int b = 0; b < 16; ++b) {
        const int d = 8 * b + lane % 4 * 2;
        float x = o[4 * b + 2 * e] * inverse, y = o[4 * b + 2 * e + 1] * inverse;
        if (a.gate.defined()) {
          const auto* gate = static_cast<const __nv_bfloat16*>(a.gate.data) + row * a.gate.strides[0] + head * a.gate.strides[1] + d;
          const float2 g = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(gate));
          x *= sigmoid(g.x);
          y *= sigmoid(g.y);
        }
        const std::int64_t at = (row * heads + head) * kValueChannels + d;
        if (a.o.dtype == DType::kBF16) *reinterpret_cast<std::uint32_t*>(static_cast<__nv_bfloat16*>(a.o.data) + at) = pack_bf16(x, y);
        else *reinterpret_cast<float2*>(static_cast<float*>(a.o.data) + at) = make_float2(x, y);
      }
    }
  }
};

/// Blocks: sections of `section` heads, in them tiles of the latest queries first, in them heads.
__global__ void __launch_bounds__(kPrefillThreads, 1)
    latent_prefill(const __grid_constant__ LatentPrefillArgs a, const __grid_constant__ PrefillMaps maps, const int tiles, const int section) {
  extern __shared__ __align__(16) unsigned char prefill_memory[];
  auto& m = *reinterpret_cast<PrefillMemory*>(prefill_memory + (-shared_address(prefill_memory) & 1023));
  const int heads = static_cast<int>(a.q.sizes[1]), number = static_cast<int>(blockIdx.x);
  const int first = number / (section * tiles) * section, wide = min(section, heads - first), in_section = number - first * tiles;
  const int head = first + in_section % wide, warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  PrefillTile tile;
  if (!prefill_tile(a, tiles - 1 - in_section / wide, tile)) return;
  if (threadIdx.x == 0) {
    barrier_init(&m.q_full, 1);
    for (int i = 0; i < kPrefillStages; ++i) {
      barrier_init(m.k_full + i, 1);
      barrier_init(m.v_full + i, 1);
      barrier_init(m.k_empty + i, 8);  // the warps that compute
      barrier_init(m.v_empty + i, 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp >= 8) {
    registers_down<24>();
    if (threadIdx.x == 256) fetch_prefill(m, maps, tile, head);
  } else {
    registers_up<240>();
    PrefillWorker worker{m, tile, warp / 4, warp % 4, static_cast<int>(threadIdx.x) % 32, a.scale * 1.44269504f};
    worker.begin(a, head);
    worker.attend();
    if (tile.last) worker.store(a, head);
    else worker.leave(a, head);
  }
}

}  // namespace palimpsest::cuda::sm90
