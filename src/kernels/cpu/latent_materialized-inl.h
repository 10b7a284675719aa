// The materialised form: keys and values of one head, a block of positions at a time, attended by all query rows.
//
// Tiles, with B = kLatentKeyBlock keys along the lanes (width 576, heads of 128 + 64: sizes in KiB):
//   latents_t [r, B]   128   the block's latents transposed; behind the last key, copies of it
//   keys_t    [dn+p, B] 48   B_k,h latents_t, then k_pe
//   values    [B, dv]   32   (B_v,h latents_t)^T
//   scores    [8, B]     2
// kv_b is decoded kTileRows rows at a time, once per head and block. Outputs are accumulated in o itself.

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

struct MaterializedTiles {
  MaterializedTiles(const LatentShape& shape, std::int64_t rows, ScratchCursor& scratch)
      : list_tile(scratch.take<float>(kLatentKeyBlock * LatentShape::padded(shape.width()))),
        latents_t(scratch.take<float>(shape.r * kLatentKeyBlock)),
        keys_t(scratch.take<float>(shape.dq() * kLatentKeyBlock)),
        values_t(scratch.take<float>((shape.dv + 3) / 4 * 4 * kLatentKeyBlock)),
        values(scratch.take<float>(kLatentKeyBlock * LatentShape::padded(shape.dv))),
        weight_rows(scratch.take<float>(kTileRows * shape.r)),
        scores(scratch.take<float>(kTileRows * kLatentKeyBlock)),
        max(scratch.take<float>(rows)),
        sum(scratch.take<float>(rows)),
        latents_t_rows(scratch.take<const float*>(shape.r)),
        keys_t_rows(scratch.take<const float*>(shape.dq())),
        value_rows(scratch.take<const float*>(kLatentKeyBlock)) {}

  void set_pointers(const LatentShape& shape) {
    for (std::int64_t c = 0; c < shape.r; ++c) latents_t_rows[c] = latents_t + c * kLatentKeyBlock;
    for (std::int64_t c = 0; c < shape.dq(); ++c) keys_t_rows[c] = keys_t + c * kLatentKeyBlock;
    for (std::int64_t t = 0; t < kLatentKeyBlock; ++t) value_rows[t] = values + t * LatentShape::padded(shape.dv);
  }

  float *list_tile, *latents_t, *keys_t, *values_t, *values, *weight_rows, *scores, *max, *sum;
  const float **latents_t_rows, **keys_t_rows, **value_rows;
};

// latents_t and the k_pe rows of keys_t from `count` list rows.
HWY_INLINE void transpose_latents(const LatentShape& shape, const float* const* rows, std::int64_t count,
                                  const MaterializedTiles& tiles) {
  for (std::int64_t t = 0; t < kLatentKeyBlock; t += 4) {
    const float *four[4], *four_pe[4];
    for (int i = 0; i < 4; ++i) {
      four[i] = rows[std::min(t + i, count - 1)];
      four_pe[i] = four[i] + shape.r;
    }
    transpose4(four, shape.r, tiles.latents_t + t, kLatentKeyBlock);
    transpose4(four_pe, shape.p, tiles.keys_t + shape.dn * kLatentKeyBlock + t, kLatentKeyBlock);
  }
}

// keys_t and values of head `head`, for the first `columns` keys of the block.
HWY_INLINE void materialize(const LatentAttentionArgs& args, const LatentShape& shape, std::int64_t head, std::int64_t columns,
                            const MaterializedTiles& tiles) {
  const std::int64_t rows = shape.dn + shape.dv;
  for (std::int64_t j = 0; j < rows; j += kTileRows) {
    const std::int64_t count = std::min<std::int64_t>(kTileRows, rows - j);
    const float* weights[kTileRows];
    float* out[kTileRows];
    for (std::int64_t i = 0; i < count; ++i) {
      weights[i] = decoded_row(args.kv_b, head * rows + j + i, tiles.weight_rows + i * shape.r);
      const std::int64_t row = j + i;
      out[i] = row < shape.dn ? tiles.keys_t + row * kLatentKeyBlock : tiles.values_t + (row - shape.dn) * kLatentKeyBlock;
    }
    outer_product({weights, 0, tiles.latents_t_rows, shape.r, out, nullptr}, count, columns);
  }
  for (std::int64_t j = 0; j < shape.dv; j += 4) {
    const float* four[4];
    for (int i = 0; i < 4; ++i) four[i] = tiles.values_t + (j + i) * kLatentKeyBlock;
    transpose4(four, columns, tiles.values + j, LatentShape::padded(shape.dv));
  }
}

// Up to kTileRows query rows against the block that starts at position `block`.
HWY_INLINE void attend_rows(const LatentAttentionArgs& args, const LatentShape& shape, const MaterializedTask& task, std::int64_t i,
                            std::int64_t count, std::int64_t block, const MaterializedTiles& tiles) {
  const std::int64_t batch_row = args.rows.cu_seqlens.as<std::int64_t>()[task.sequence] + i;
  const std::int64_t visible = args.past.as<std::int64_t>()[task.sequence] + i + 1 - block;  // of the first of these rows
  const std::int64_t keys = std::min(kLatentKeyBlock, visible + count - 1);
  const float* q[kTileRows];
  float *scores[kTileRows], *o[kTileRows];
  const float* weights[kTileRows];
  float carry[kTileRows];
  for (std::int64_t m = 0; m < count; ++m) {
    q[m] = args.q.at<float>(batch_row + m, task.head);
    o[m] = args.o.at<float>(batch_row + m, task.head);
    weights[m] = scores[m] = tiles.scores + m * kLatentKeyBlock;
  }
  outer_product({q, 0, tiles.keys_t_rows, shape.dq(), scores, nullptr}, count, round_up(keys, 2 * lanes()));
  for (std::int64_t m = 0; m < count; ++m) {
    float& max = tiles.max[i + m - task.begin];
    float& sum = tiles.sum[i + m - task.begin];
    carry[m] = softmax_step(scores[m], std::min(kLatentKeyBlock, visible + m), args.scale, max, sum);
  }
  outer_product({weights, 0, tiles.value_rows, keys, o, block == 0 ? nullptr : carry}, count, shape.dv);
}

void AttendMaterialized(const LatentAttentionArgs& args, const LatentShape& shape, const MaterializedTask& task,
                        std::byte* memory) {
  ScratchCursor scratch(memory);
  MaterializedTiles tiles(shape, task.end - task.begin, scratch);
  tiles.set_pointers(shape);
  std::fill_n(tiles.max, task.end - task.begin, kMinusInfinity);
  std::fill_n(tiles.sum, task.end - task.begin, 0.0f);
  std::fill_n(tiles.values_t, (shape.dv + 3) / 4 * 4 * kLatentKeyBlock, 0.0f);
  const std::int64_t past = args.past.as<std::int64_t>()[task.sequence];
  const std::int64_t slot = args.rows.slots.as<std::int32_t>()[task.sequence];
  for (std::int64_t block = 0; block < past + task.end; block += kLatentKeyBlock) {
    const std::int64_t keys = std::min(kLatentKeyBlock, past + task.end - block);
    const float* rows[kLatentKeyBlock];
    list_rows(args.list, slot, block, keys, tiles.list_tile, rows);
    transpose_latents(shape, rows, keys, tiles);
    materialize(args, shape, task.head, round_up(keys, 2 * lanes()), tiles);
    for (std::int64_t i = std::max(task.begin, block - past); i < task.end; i += kTileRows) {
      attend_rows(args, shape, task, i, std::min<std::int64_t>(kTileRows, task.end - i), block, tiles);
    }
  }
  for (std::int64_t i = task.begin; i < task.end; ++i) {
    float* o = args.o.at<float>(args.rows.cu_seqlens.as<std::int64_t>()[task.sequence] + i, task.head);
    const float inverse = 1 / tiles.sum[i - task.begin];
    for (std::int64_t j = 0; j < shape.dv; ++j) o[j] *= inverse;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
