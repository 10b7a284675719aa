#pragma once

// What the kernels of latent decode share: the sizes of MLA, which rows of the list a row of the batch sees, and how its list is cut into splits.

#include "kernels/cuda/sm90/delta_step.cuh"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/latent_args.h"
#include "kernels/latent_splits.h"

namespace palimpsest::cuda::sm90 {

inline constexpr int kLatent = 512, kSharedKeys = 64, kListRow = kLatent + kSharedKeys;
inline constexpr int kKeyChannels = 128, kValueChannels = 128;

/// Where the kernels of one call leave what the next ones need.
struct DecodeWorkspace {
  /// [R, padded heads / block_heads] images of q': nine BF16 tiles [block_heads, 64], shared key channels first, swizzled. For codes I8 tiles
  /// [2 block_heads, 64], whose rows are those of code_heads() heads, high parts before low ones, then of as many others, and F32 [2, block_heads] by which
  /// integers are multiplied.
  unsigned char* queries;
  int block_heads;         ///< heads of a block
  int image_bytes;
  int padded_heads;        ///< those beyond H are zeros
  float* mixes;            ///< [R, splits, H, 512]: sum_t 2^(s_t - anchor) latent_t of a split
  float2* sums;            ///< [R, splits, H]: anchor, sum_t 2^(s_t - anchor)
  int splits;              ///< room in the arrays
  int most_splits;         ///< of any row, a matter of the number of heads
};

/// Heads whose scores one product finds.
__host__ __device__ constexpr int code_heads(int block_heads) { return block_heads == 48 ? 24 : block_heads; }
/// Byte offset in a tile of rows of 64 bytes with a 64-byte swizzle, which begins at a multiple of 512 bytes.
__device__ inline int swizzled_codes(int row, int column) { return row * 64 + (((column >> 4) ^ (row >> 1 & 3)) << 4) + (column & 15); }
inline constexpr float kLog2E = 1.44269504f;

/// The kernels of one call follow each other without a gap: each is launched while the one before still runs, and waits before it touches what
/// that one writes.
__device__ inline void await_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void allow_kernel_after() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

struct DecodeRow {
  int slot = -1, length = 0;  ///< length 0: nothing to see
};
__device__ inline DecodeRow decode_row(const LatentDecodeArgs& a, int row) {
  std::int64_t n = row, i = 0;
  if (a.cu_seqlens.defined()) {
    std::int64_t low = 0, high = a.slots.sizes[0];
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      if (load_index(a.cu_seqlens, middle) <= row) low = middle;
      else high = middle;
    }
    n = low;
    i = row - load_index(a.cu_seqlens, n);
  }
  DecodeRow r{static_cast<int>(load_index(a.slots, n)), 0};
  if (r.slot >= 0) r.length = static_cast<int>(load_index(a.past, n) + i + 1);
  return r;
}

/// One piece of work: tokens [begin, end) of the list of one row.
struct DecodeItem {
  int row, slot, begin, end, split;
};

/// Work numbered over all rows, without a table: a warp looks at 32 rows at a time.
struct DecodeItems {
  const LatentDecodeArgs& a;
  int most, lane;
  int base = -32, before = 0, total = 0;  ///< rows [base, base + 32) hold items [before, before + total)
  DecodeRow mine{};
  int through = 0;  ///< items up to and including this lane's row

  /// The whole warp, k ascending from call to call. False: there is no such item.
  __device__ bool find(int k, DecodeItem& item) {
    const int rows = static_cast<int>(a.q.sizes[0]);
    while (k >= before + total) {
      before += total;
      base += 32;
      if (base >= rows) return false;
      mine = base + lane < rows ? decode_row(a, base + lane) : DecodeRow{};
      through = latent_split_count(mine.length, most);
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int left = __shfl_up_sync(~0u, through, offset);
        if (lane >= offset) through += left;
      }
      total = __shfl_sync(~0u, through, 31);
    }
    const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, before + through > k))) - 1;
    const int length = __shfl_sync(~0u, mine.length, owner), tokens = static_cast<int>(latent_split_tokens(length, most));
    item.row = base + owner;
    item.slot = __shfl_sync(~0u, mine.slot, owner);
    item.split = k - before - (__shfl_sync(~0u, through, owner) - latent_split_count(length, most));
    item.begin = item.split * tokens;
    item.end = min(item.begin + tokens, length);
    return true;
  }
};

/// f(item, which of its heads' blocks) of all that this block does, in turn: an item once for every block of heads, side by side in the grid.
template <class F>
__device__ void each_item(const LatentDecodeArgs& a, const DecodeWorkspace& work, F f) {
  const int blocks = work.padded_heads / work.block_heads;
  DecodeItems items{a, work.most_splits, static_cast<int>(threadIdx.x) % 32};
  DecodeItem item;
  for (int k = static_cast<int>(blockIdx.x); items.find(k / blocks, item); k += static_cast<int>(gridDim.x)) f(item, k % blocks);
}

}  // namespace palimpsest::cuda::sm90
