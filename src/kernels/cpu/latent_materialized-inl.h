// The materialised form: keys and values of one head, a block of positions at a time, attended by all query rows of a task.
//
// Products are tiles of kTileRows rows times a panel of kPanel columns, two vectors wide (AVX-512: 8 x 32). A panel holds its columns together
// for each k, [k][kPanel], so that one that is used again and again fits L1. What a thread holds (r = 512, heads of 128 + 64 and 128; KiB):
//   weights   [dn+dv, r]        512   kv_b of the head, decoded once a task
//   latents   [panels][r, P]    128   of the block
//   keys      [panels][dn+p, P]  48   B_k,h latents, then k_pe
//   values_t  [dv, B]            32   B_v,h latents; transposed: values [panels of dv][B, P]
//   queries   [tiles][dq, rows of a tile], outputs [rows, dv]: 0.75 and 0.5 a row
//   scores    [kRowGroup, B]     16
// Queries are gathered, and outputs kept here until they are whole, because in the batch a head's rows lie a power of two apart, or nearly:
// they would fight for a few sets of every cache. Rows go by groups, panel by panel, so that a panel is fetched once a group.

#if defined(PALIMPSEST_KERNELS_CPU_LATENT_MATERIALIZED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_LATENT_MATERIALIZED_INL_H_
#undef PALIMPSEST_KERNELS_CPU_LATENT_MATERIALIZED_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_LATENT_MATERIALIZED_INL_H_
#endif

#include "kernels/cpu/latent_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

constexpr int kPanelVecs = HWY_TARGET == HWY_SCALAR ? 4 : 2;
constexpr std::int64_t kPanel = kPanelVecs * static_cast<std::int64_t>(hn::MaxLanes(F32Tag()));
static_assert(kPanel % kTileRows == 0 && kLatentKeyBlock % kPanel == 0 && kPanel <= kLatentLargestPanel && kLatentRowGroup % kTileRows == 0);

/// Columns of kv_b that are multiplied at a time: a panel of latents then takes 16 KiB.
constexpr std::int64_t kDepth = 128;

struct MaterializedTiles {
  MaterializedTiles(const LatentShape& shape, std::int64_t rows, ScratchCursor& scratch)
      : key_panel((round_up(shape.dn, kTileRows) + shape.p) * kPanel),
        output_stride(round_up(shape.dv, kPanel)),
        list_tile(scratch.take<float>(kLatentKeyBlock * LatentShape::padded(shape.width()))),
        weights(scratch.take<float>((shape.dn + shape.dv + kTileRows) * shape.r)),
        latents(scratch.take<float>(shape.r * kLatentKeyBlock)),
        keys(scratch.take<float>(kLatentKeyBlock / kPanel * key_panel)),
        values_t(scratch.take<float>(round_up(shape.dv, kTileRows) * kLatentKeyBlock)),
        values(scratch.take<float>(output_stride * kLatentKeyBlock)),
        queries(scratch.take<float>(round_up(rows, kTileRows) * shape.dq())),
        outputs(scratch.take<float>(round_up(rows, kTileRows) * output_stride)),
        scores(scratch.take<float>(kLatentRowGroup * kLatentKeyBlock)),
        carry(scratch.take<float>(kLatentRowGroup)),
        max(scratch.take<float>(rows)),
        sum(scratch.take<float>(rows)) {}

  std::int64_t key_panel;      ///< floats of a panel of keys
  std::int64_t output_stride;  ///< floats of a row of outputs
  float *list_tile, *weights, *latents, *keys, *values_t, *values, *queries, *outputs, *scores, *carry, *max, *sum;
};

// C[m][j] = carry[m] C[m][j] + sum_k a[m row_stride + k step] panel[k][j], k ascending, for a tile of rows and the columns of a panel; rows of C lie
// `stride` apart. Without carry C is only written.
HWY_INLINE void panel_product(const float* a, std::int64_t row_stride, std::int64_t step, const float* panel, std::int64_t k_count, const float* carry,
                              float* c, std::int64_t stride) {
  const F32Tag d;
  constexpr std::int64_t kVec = kPanel / kPanelVecs;
  F32Vec acc[kTileRows][kPanelVecs];
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 8
    for (int j = 0; j < kPanelVecs; ++j)
      acc[m][j] = carry == nullptr ? hn::Zero(d) : hn::Mul(hn::Set(d, carry[m]), hn::LoadU(d, c + m * stride + j * kVec));
  }
  for (std::int64_t k = 0; k < k_count; ++k) {
    F32Vec b[kPanelVecs];
#pragma GCC unroll 8
    for (int j = 0; j < kPanelVecs; ++j) b[j] = hn::LoadU(d, panel + k * kPanel + j * kVec);
    const float* at = a + k * step;
#pragma GCC unroll 8
    for (int m = 0; m < kTileRows; ++m) {
      const F32Vec am = hn::Set(d, at[m * row_stride]);
#pragma GCC unroll 8
      for (int j = 0; j < kPanelVecs; ++j) acc[m][j] = hn::MulAdd(am, b[j], acc[m][j]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 8
    for (int j = 0; j < kPanelVecs; ++j) hn::StoreU(acc[m][j], d, c + m * stride + j * kVec);
  }
}

// kv_b of the head, and the queries of the task in tiles.
HWY_NOINLINE void gather(const LatentAttentionArgs& args, const LatentShape& shape, const MaterializedTask& task, const MaterializedTiles& tiles) {
  const std::int64_t outputs = shape.dn + shape.dv, rows = task.end - task.begin;
  for (std::int64_t j = 0; j < outputs; ++j) {
    float* to = tiles.weights + j * shape.r;
    if (const float* row = decoded_row(args.kv_b, task.head * outputs + j, to); row != to) std::copy_n(row, shape.r, to);
  }
  std::fill_n(tiles.weights + outputs * shape.r, kTileRows * shape.r, 0.0f);
  const std::int64_t first = args.rows.cu_seqlens.as<std::int64_t>()[task.sequence] + task.begin;
  for (std::int64_t i = 0; i < rows; i += 4) {
    const float* four[4];
    for (std::int64_t m = 0; m < 4; ++m) four[m] = args.q.at<float>(first + std::min(i + m, rows - 1), task.head);
    transpose4(four, shape.dq(), tiles.queries + i / kTileRows * kTileRows * shape.dq() + i % kTileRows, kTileRows);
  }
  if (const std::int64_t done = round_up(rows, 4), all = round_up(rows, kTileRows); done < all) {
    for (std::int64_t c = 0; c < shape.dq(); ++c)
      std::fill_n(tiles.queries + (all - kTileRows) * shape.dq() + c * kTileRows + done % kTileRows, all - done, 0.0f);
  }
}

// Keys and values of the `count` list rows of a block; behind the last, copies of it.
HWY_NOINLINE void materialize(const LatentShape& shape, const float* const* rows, std::int64_t count, const MaterializedTiles& tiles) {
  const std::int64_t columns = round_up(count, kPanel);
  const auto four_at = [&](std::int64_t t, std::int64_t first, const float* (&four)[4]) {
    for (int i = 0; i < 4; ++i) four[i] = rows[std::min(t + i, count - 1)] + first;
  };
  const float* four[4];
  for (std::int64_t t = 0; t < columns; t += 4) {
    four_at(t, 0, four);
    transpose4(four, shape.r, tiles.latents + t / kPanel * kPanel * shape.r + t % kPanel, kPanel);
  }
  float ones[kTileRows];
  std::fill_n(ones, kTileRows, 1.0f);
  for (std::int64_t t = 0; t < columns; t += kPanel) {
    float* keys = tiles.keys + t / kPanel * tiles.key_panel;
    for (std::int64_t c = 0; c < shape.r; c += kDepth) {
      const std::int64_t depth = std::min(kDepth, shape.r - c);
      const float* panel = tiles.latents + t * shape.r + c * kPanel;
      const float* carry = c == 0 ? nullptr : ones;
      for (std::int64_t j = 0; j < shape.dn; j += kTileRows)
        panel_product(tiles.weights + j * shape.r + c, shape.r, 1, panel, depth, carry, keys + j * kPanel, kPanel);
      for (std::int64_t j = 0; j < shape.dv; j += kTileRows) {
        panel_product(tiles.weights + (shape.dn + j) * shape.r + c, shape.r, 1, panel, depth, carry, tiles.values_t + j * kLatentKeyBlock + t,
                         kLatentKeyBlock);
      }
    }
    // After the products, whose last tile may have written some of these rows.
    for (std::int64_t i = 0; i < kPanel; i += 4) {
      four_at(t + i, shape.r, four);
      transpose4(four, shape.p, keys + shape.dn * kPanel + i, kPanel);
    }
  }
  for (std::int64_t j = 0; j < shape.dv; j += 4) {
    for (std::int64_t i = 0; i < 4; ++i) four[i] = tiles.values_t + std::min(j + i, shape.dv - 1) * kLatentKeyBlock;
    transpose4(four, columns, tiles.values + j / kPanel * kPanel * kLatentKeyBlock + j % kPanel, kPanel);
  }
}

// Rows [begin, begin + count) of the task, at most kLatentRowGroup from the start of a tile, against a block of which the first of them sees
// `visible` keys (perhaps none), the next one more.
HWY_NOINLINE void attend_group(const LatentShape& shape, std::int64_t begin, std::int64_t count, std::int64_t visible, float scale, bool first_block,
                               const MaterializedTiles& tiles) {
  // Of a tile, the keys that its last row sees.
  const auto keys_of = [&](std::int64_t i) { return std::min(kLatentKeyBlock, visible + std::min(i + kTileRows, count) - 1); };
  for (std::int64_t t = 0; t < kLatentKeyBlock; t += kPanel) {
    for (std::int64_t i = 0; i < count; i += kTileRows) {
      if (t >= keys_of(i)) continue;
      panel_product(tiles.queries + (begin + i) * shape.dq(), 1, kTileRows, tiles.keys + t / kPanel * tiles.key_panel, shape.dq(), nullptr,
                               tiles.scores + i * kLatentKeyBlock + t, kLatentKeyBlock);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    tiles.carry[i] = softmax_step(tiles.scores + i * kLatentKeyBlock, std::min(kLatentKeyBlock, visible + i), scale, tiles.max[begin + i],
                                  tiles.sum[begin + i]);
  }
  std::fill_n(tiles.carry + count, round_up(count, kTileRows) - count, 0.0f);
  for (std::int64_t j = 0; j < tiles.output_stride; j += kPanel) {
    for (std::int64_t i = 0; i < count; i += kTileRows) {
      panel_product(tiles.scores + i * kLatentKeyBlock, kLatentKeyBlock, 1, tiles.values + j * kLatentKeyBlock, keys_of(i),
                       first_block ? nullptr : tiles.carry + i, tiles.outputs + (begin + i) * tiles.output_stride + j, tiles.output_stride);
    }
  }
}

void AttendMaterialized(const LatentAttentionArgs& args, const LatentShape& shape, const MaterializedTask& task,
                        std::byte* memory) {
  const std::int64_t count = task.end - task.begin;
  ScratchCursor scratch(memory);
  const MaterializedTiles tiles(shape, count, scratch);
  gather(args, shape, task, tiles);
  std::fill_n(tiles.max, count, kMinusInfinity);
  std::fill_n(tiles.sum, count, 0.0f);
  const std::int64_t first = args.past.as<std::int64_t>()[task.sequence] + task.begin;  // position of the task's first row
  const std::int64_t slot = args.rows.slots.as<std::int32_t>()[task.sequence];
  for (std::int64_t block = 0; block < first + count; block += kLatentKeyBlock) {
    const std::int64_t keys = std::min(kLatentKeyBlock, first + count - block);
    const float* rows[kLatentKeyBlock];
    list_rows(args.list, slot, block, keys, tiles.list_tile, rows);
    materialize(shape, rows, keys, tiles);
    for (std::int64_t i = std::max<std::int64_t>(0, block - first) / kTileRows * kTileRows; i < count; i += kLatentRowGroup) {
      attend_group(shape, i, std::min(kLatentRowGroup, count - i), first + i + 1 - block, args.scale, block == 0, tiles);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    float* o = args.o.at<float>(args.rows.cu_seqlens.as<std::int64_t>()[task.sequence] + task.begin + i, task.head);
    const float inverse = 1 / tiles.sum[i];
    for (std::int64_t j = 0; j < shape.dv; ++j) o[j] = tiles.outputs[i * tiles.output_stride + j] * inverse;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
