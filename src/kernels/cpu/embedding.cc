// Rows of the embedding table as F32: a copy with conversion, bound by memory. Threads own whole
// rows.

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

template <class Format>
void decode_row(const Format& w, std::int64_t n, std::int64_t width, float* out) {
  const DF d;
  const auto store = [d](Pair<DF> pair, float* q) HWY_ATTR {
    if constexpr (Format::kSplit) {
      hn::StoreInterleaved2(pair.a, pair.b, d, q);
    } else {
      hn::StoreU(pair.a, d, q);
      hn::StoreU(pair.b, d, q + kLanes);
    }
  };
  for (std::int64_t k0 = 0; k0 < width; k0 += kBlockColumns) {
    const auto row = w.row(n, k0);
    const std::int64_t columns = width - k0 < kBlockColumns ? width - k0 : kBlockColumns;
    const std::int64_t steps = columns / kStep, rest = columns % kStep;
    for (std::int64_t i = 0; i < steps; ++i) store(row.pair(i), out + k0 + i * kStep);
    if (rest != 0) {
      float padded[kStep];
      store(row.tail(steps, rest), padded);
      std::memcpy(out + k0 + steps * kStep, padded, static_cast<std::size_t>(rest) * sizeof(float));
    }
  }
}

void EmbeddingRows(const EmbeddingArgs& args, std::int64_t begin, std::int64_t end) {
  with_format(args.table, [&](const auto& w) {
    for (std::int64_t t = begin; t < end; ++t) {
      decode_row(w, args.ids.as<std::int32_t>()[t], args.table.cols(), args.out.at<float>(t));
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(EmbeddingRows);

void embedding(ExecContext& ctx, const EmbeddingArgs& args) {
  constexpr std::int64_t kMinimumWork = 1 << 15;  // elements worth a thread
  const std::int64_t width = args.table.cols() > 0 ? args.table.cols() : 1;
  ctx.pool.parallel_for(args.ids.size(0), (kMinimumWork + width - 1) / width,
                        [&](std::int64_t begin, std::int64_t end, int) {
                          HWY_DYNAMIC_DISPATCH(EmbeddingRows)(args, begin, end);
                        });
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
