// list[past[n] + i] = (latent row | k_pe row), rounded to the list's type (BF16: to nearest even). One pass over the rows; each
// row of the batch belongs to one thread.

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

}  // namespace

void latent_append(ExecContext& ctx, const LatentAppendArgs& args) {
  const std::int64_t sequences = args.rows.cu_seqlens.size(0) - 1;
  const std::int64_t r = args.latent.size(1), p = args.list.width() - r, block_tokens = args.list.block_tokens();
  const std::int64_t* cu = args.rows.cu_seqlens.as<std::int64_t>();
  const DType dtype = args.list.blocks.dtype;
  const std::int64_t element = dtype_size(dtype);
  ctx.pool.parallel_for(args.latent.size(0), 1, [&](std::int64_t begin, std::int64_t end, int) {
    std::int64_t n = std::upper_bound(cu, cu + sequences + 1, begin) - cu - 1;
    for (std::int64_t row = begin; row < end; ++row) {
      while (row >= cu[n + 1]) ++n;
      const std::int64_t position = args.past.as<std::int64_t>()[n] + row - cu[n];
      const std::int64_t block = *args.list.table.at<std::int32_t>(args.rows.slots.as<std::int32_t>()[n],
                                                                   position / block_tokens);
      char* out = args.list.blocks.as<char>() + (block * block_tokens + position % block_tokens) * (r + p) * element;
      store_rounded(args.latent.at<float>(row), r, dtype, out);
      if (p > 0) store_rounded(args.k_pe.at<float>(row), p, dtype, out + r * element);
    }
  });
}

}  // namespace palimpsest::cpu
