// The absorbed form, for sequences with few rows: B_k,h is folded into q, latents are scored directly, B_v,h is applied to the sum of
// latents. Three phases, each one parallel loop:
//   fold     one head: queries = [B_k,h^T q_nope | q_pe] of all rows of the wave; kv_b is read once
//   attend   one group, split and range of heads: each block of latents is read once for all its heads
//   project  one head: merge the splits in ascending order, o = B_v,h (merged sum); kv_b is read once
// In `attend`, scores have lanes along the latent (no transposed copy of the list), sums of latents have lanes along it too.

#if defined(PALIMPSEST_KERNELS_CPU_LATENT_ABSORBED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_KERNELS_CPU_LATENT_ABSORBED_INL_H_
#undef PALIMPSEST_KERNELS_CPU_LATENT_ABSORBED_INL_H_
#else
#define PALIMPSEST_KERNELS_CPU_LATENT_ABSORBED_INL_H_
#endif

#include "kernels/cpu/latent_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

inline constexpr std::int64_t kFoldRows = 16;  // rows of kv_b decoded at a time

void FoldQueries(const AbsorbedWave& wave, std::int64_t head, std::byte* memory) {
  const LatentShape& shape = wave.shape;
  const std::int64_t stride = LatentShape::padded(shape.width());
  ScratchCursor scratch(memory);
  const float** q = scratch.take<const float*>(wave.num_rows);
  float** out = scratch.take<float*>(wave.num_rows);
  float* ones = scratch.take<float>(wave.num_rows);
  float* tile = scratch.take<float>(kFoldRows * shape.r);
  std::fill_n(ones, wave.num_rows, 1.0f);
  std::int64_t m = 0;
  for (std::int64_t g = 0; g < wave.num_groups; ++g) {
    const AbsorbedGroup& group = wave.groups[g];
    for (std::int64_t i = 0; i < group.rows; ++i, ++m) {
      q[m] = wave.args->q.at<float>(group.batch_row + i, head);
      out[m] = wave.queries + (group.query_row + head * group.rows + i) * stride;
      std::copy_n(q[m] + shape.dn, shape.p, out[m] + shape.r);
      std::fill_n(out[m] + shape.width(), stride - shape.width(), 0.0f);
      if (shape.dn == 0) std::fill_n(out[m], shape.r, 0.0f);
    }
  }
  for (std::int64_t d = 0; d < shape.dn; d += kFoldRows) {
    const std::int64_t count = std::min(kFoldRows, shape.dn - d);
    const float* weights[kFoldRows];
    for (std::int64_t i = 0; i < count; ++i) {
      weights[i] = decoded_row(wave.args->kv_b, head * (shape.dn + shape.dv) + d + i, tile + i * shape.r);
    }
    outer_product({q, d, weights, count, out, d == 0 ? nullptr : ones}, wave.num_rows, shape.r);
  }
}

// Where AttendAbsorbed computes, and the (head, row) pairs [first, last) that it computes.
struct AbsorbedPart {
  const float* queries;
  float *partials, *max_sum, *scores;
  std::int64_t first, last;
};

// Those pairs against the `keys` list rows at `block`, behind which up to a multiple of kDotCols there are copies of the last.
template <class B>
HWY_INLINE void absorb_block(const AbsorbedWave& wave, const AbsorbedGroup& group, const AbsorbedPart& part, std::int64_t block, std::int64_t keys,
                             bool first_block, const B* const* rows) {
  const LatentShape& shape = wave.shape;
  const std::int64_t q_stride = LatentShape::padded(shape.width()), o_stride = LatentShape::padded(shape.r);
  for (std::int64_t m0 = part.first; m0 < part.last; m0 += kTileRows) {
    const std::int64_t count = std::min<std::int64_t>(kTileRows, part.last - m0);
    const float *q[kTileRows], *weights[kTileRows];
    float *out[kTileRows], *s[kTileRows], carry[kTileRows];
    for (std::int64_t m = 0; m < count; ++m) {
      q[m] = part.queries + (m0 + m) * q_stride;
      out[m] = part.partials + (m0 + m) * o_stride;
      weights[m] = part.scores + m * kLatentKeyBlock;
    }
    for (std::int64_t t = 0; t < keys; t += kDotCols) {
      if constexpr (!std::is_same_v<B, float>) {
        // Rows lie one behind the other within a block of the list, and often beyond it.
        const auto* next = reinterpret_cast<const char*>(rows[t] + 2 * kDotCols * shape.width());
        for (std::int64_t i = 0; i < 2 * kDotCols * shape.width(); i += 64) __builtin_prefetch(next + i);
      }
      for (std::int64_t m = 0; m < count; ++m) s[m] = part.scores + m * kLatentKeyBlock + t;
      dot_rows(q, count, rows + t, shape.width(), s);
    }
    for (std::int64_t m = 0; m < count; ++m) {
      const std::int64_t visible = group.position + (m0 + m) % group.rows + 1 - block;
      carry[m] = softmax_step(part.scores + m * kLatentKeyBlock, std::min(visible, kLatentKeyBlock), wave.args->scale,
                              part.max_sum[2 * (m0 + m)], part.max_sum[2 * (m0 + m) + 1]);
    }
    outer_product_of(OuterOperands<B>{weights, 0, rows, keys, out, first_block ? nullptr : carry}, count, shape.r);
  }
}

// The rows of heads [head_begin, head_end) of a group against the keys of one split. A block is converted to F32 once for all of them, unless they
// are so few that its 147 KiB in F32 would cost more than converting its numbers in registers, twice; the bits are the same.
void AttendAbsorbed(const AbsorbedWave& wave, const AbsorbedGroup& group, std::int64_t split, std::int64_t head_begin,
                    std::int64_t head_end, std::byte* memory) {
  const LatentShape& shape = wave.shape;
  const PagedList& list = wave.args->list;
  const std::int64_t q_stride = LatentShape::padded(shape.width()), o_stride = LatentShape::padded(shape.r);
  const std::int64_t partial_row = group.partial_row + split * shape.heads * group.rows;
  ScratchCursor scratch(memory);
  float* tile = scratch.take<float>(kLatentKeyBlock * q_stride);
  const AbsorbedPart part{wave.queries + group.query_row * q_stride, wave.partials + partial_row * o_stride, wave.max_sum + partial_row * 2,
                          scratch.take<float>(kTileRows * kLatentKeyBlock), head_begin * group.rows, head_end * group.rows};
  for (std::int64_t m = part.first; m < part.last; ++m) {
    part.max_sum[2 * m] = kMinusInfinity;
    part.max_sum[2 * m + 1] = 0;
  }
  const std::int64_t slot = wave.args->rows.slots.as<std::int32_t>()[group.sequence];
  const bool in_place = list.blocks.dtype == DType::kBF16 && part.last - part.first <= kTileRows && shape.width() % lanes() == 0 && shape.r % lanes() == 0;
  const std::int64_t begin = latent_split_begin(split), end = group.split_end(split);
  for (std::int64_t block = begin; block < end; block += kLatentKeyBlock) {
    const std::int64_t keys = std::min(kLatentKeyBlock, end - block);
    if (in_place) {
      const std::int32_t* table = list.table.at<std::int32_t>(slot);
      const std::uint16_t* rows[kLatentKeyBlock];
      for (std::int64_t t = 0; t < round_up(keys, kDotCols); ++t)
        rows[t] = list.blocks.as<std::uint16_t>() + list_offset(list, table, block + std::min(t, keys - 1), 0);
      absorb_block(wave, group, part, block, keys, block == begin, rows);
    } else {
      const float* rows[kLatentKeyBlock];
      list_rows(list, slot, block, keys, tile, rows);
      for (std::int64_t t = keys; t < round_up(keys, kDotCols); ++t) rows[t] = rows[keys - 1];
      absorb_block(wave, group, part, block, keys, block == begin, rows);
    }
  }
}

// Merges the splits that row `i` of a group sees into the first one's partial sum, zeros behind it, and returns 1 / (sum of weights).
HWY_INLINE float merge_splits(const AbsorbedWave& wave, const AbsorbedGroup& group, std::int64_t head, std::int64_t i) {
  const LatentShape& shape = wave.shape;
  const std::int64_t stride = LatentShape::padded(shape.r), rows = shape.heads * group.rows;
  const std::int64_t row = group.partial_row + head * group.rows + i;
  const std::int64_t splits = latent_splits(group.position + i + 1);
  float max = wave.max_sum[2 * row];
  for (std::int64_t s = 1; s < splits; ++s) max = std::max(max, wave.max_sum[2 * (row + s * rows)]);
  const F32Tag d;
  float* out = wave.partials + row * stride;
  std::fill_n(out + shape.r, stride - shape.r, 0.0f);
  float sum = 0;
  for (std::int64_t s = 0; s < splits; ++s) {
    const float* part = out + s * rows * stride;
    const float weight = exp_one(wave.max_sum[2 * (row + s * rows)] - max);
    sum += weight * wave.max_sum[2 * (row + s * rows) + 1];
    const F32Vec weights = hn::Set(d, weight);
    for (std::int64_t c = 0; c < shape.r; c += lanes()) {  // the padding of both rows may be read and written
      const F32Vec scaled = hn::Mul(weights, hn::LoadU(d, part + c));
      hn::StoreU(s == 0 ? scaled : hn::Add(hn::LoadU(d, out + c), scaled), d, out + c);
    }
  }
  std::fill_n(out + shape.r, stride - shape.r, 0.0f);
  return 1 / sum;
}

void MergeAndProject(const AbsorbedWave& wave, std::int64_t head, std::byte* memory) {
  const LatentShape& shape = wave.shape;
  const std::int64_t stride = LatentShape::padded(shape.r);
  ScratchCursor scratch(memory);
  const float** sums = scratch.take<const float*>(wave.num_rows);
  float** out = scratch.take<float*>(wave.num_rows);
  float* inverse = scratch.take<float>(wave.num_rows);
  float* tile = scratch.take<float>(kDotCols * shape.r);
  std::int64_t m = 0;
  for (std::int64_t g = 0; g < wave.num_groups; ++g) {
    const AbsorbedGroup& group = wave.groups[g];
    for (std::int64_t i = 0; i < group.rows; ++i, ++m) {
      inverse[m] = merge_splits(wave, group, head, i);
      sums[m] = wave.partials + (group.partial_row + head * group.rows + i) * stride;
      out[m] = wave.args->o.at<float>(group.batch_row + i, head);
    }
  }
  const std::int64_t first = head * (shape.dn + shape.dv) + shape.dn;
  for (std::int64_t j = 0; j < shape.dv; j += kDotCols) {
    const std::int64_t count = std::min<std::int64_t>(kDotCols, shape.dv - j);
    const float* weights[kDotCols];
    for (std::int64_t i = 0; i < kDotCols; ++i) {
      weights[i] = i < count ? decoded_row(wave.args->kv_b, first + j + i, tile + i * shape.r) : weights[0];
    }
    for (std::int64_t m0 = 0; m0 < wave.num_rows; m0 += kDotRows) {
      const std::int64_t rows = std::min<std::int64_t>(kDotRows, wave.num_rows - m0);
      float products[kDotRows][kDotCols], *s[kDotRows];
      for (int i = 0; i < kDotRows; ++i) s[i] = products[i];
      dot_rows(sums + m0, rows, weights, shape.r, s);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t c = 0; c < count; ++c) out[m0 + i][j + c] = products[i][c] * inverse[m0 + i];
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
