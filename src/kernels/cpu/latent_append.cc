// list[past[n] + i] = (latent row | k_pe row), rounded to the list's type (BF16: to nearest even; 8 bits: kernels/q8_rows.h). One pass
// over the rows; each row of the batch belongs to one thread.

#include <algorithm>

#include "base/number_formats.h"
#include "kernels/cpu/cpu_kernels.h"

namespace palimpsest::cpu {
namespace {

void store_rounded(const float* from, std::int64_t n, DType dtype, void* to) {
  if (dtype == DType::kF32) {
    std::copy_n(from, n, static_cast<float*>(to));
  } else {
    std::transform(from, from + n, static_cast<std::uint16_t*>(to), float_to_bf16);
  }
}

/// `row` and `position` as in latent_append: of the batch, and of the sequence in `slot`.
void append_row(const LatentAppendArgs& args, std::int64_t row, std::int64_t slot, std::int64_t position) {
  const PagedList& list = args.list;
  const std::int64_t r = args.latent.size(1), p = list.width() - r, block_tokens = list.block_tokens();
  const std::int64_t offset = position % block_tokens, element = dtype_size(list.blocks.dtype);
  const std::int64_t block = *list.table.at<std::int32_t>(slot, position / block_tokens);
  char* out = list.blocks.as<char>() + block * block_tokens * list.blocks.size(2) * element;
  const float *left = args.latent.at<float>(row), *right = p > 0 ? args.k_pe.at<float>(row) : nullptr;
  if (list.q8.defined()) {
    auto* codes = reinterpret_cast<std::int8_t*>(out);
    auto* scales = reinterpret_cast<std::uint16_t*>(q8_scales(list.q8, codes, block_tokens, offset));
    q8_store_row(list.q8, [left](std::int64_t c) { return left[c]; }, [right](std::int64_t c) { return right[c]; },
                 q8_codes(list.q8, codes, offset), scales);
    return;
  }
  out += offset * (r + p) * element;
  store_rounded(left, r, list.blocks.dtype, out);
  if (p > 0) store_rounded(right, p, list.blocks.dtype, out + r * element);
}

}  // namespace

void latent_append(ExecContext& ctx, const LatentAppendArgs& args) {
  const std::int64_t sequences = args.rows.cu_seqlens.size(0) - 1;
  const std::int64_t* cu = args.rows.cu_seqlens.as<std::int64_t>();
  ctx.pool.parallel_for(args.latent.size(0), 1, [&](std::int64_t begin, std::int64_t end, int) {
    std::int64_t n = std::upper_bound(cu, cu + sequences + 1, begin) - cu - 1;
    for (std::int64_t row = begin; row < end; ++row) {
      while (row >= cu[n + 1]) ++n;
      append_row(args, row, args.rows.slots.as<std::int32_t>()[n], args.past.as<std::int64_t>()[n] + row - cu[n]);
    }
  });
}

}  // namespace palimpsest::cpu
