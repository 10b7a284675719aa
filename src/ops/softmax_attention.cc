#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/plain_kernels.h"
#include "ops/front_door.h"
#include "ops/latent_checks.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {
namespace {

/// Scores and sums of the pairs that a causal row sees, and each list read once.
OpWork work_of(const SoftmaxAttentionArgs& a) {
  const auto* cu = a.rows.cu_seqlens.on_host<std::int64_t>();
  const auto* past = a.past.on_host<std::int64_t>();
  std::int64_t pairs = 0, listed = 0;
  for (std::int64_t n = 0; n < a.past.size(0); ++n) {
    const std::int64_t rows = cu[n + 1] - cu[n];
    pairs += rows * past[n] + rows * (rows + 1) / 2;
    listed += past[n] + rows;
  }
  const std::int64_t bytes = listed * a.list.width() * dtype_size(a.list.blocks.dtype);
  return {.flops = 2.0 * static_cast<double>(pairs * a.q.size(1) * (a.q.size(2) + a.o.size(2))),
          .bytes = static_cast<double>(bytes) + moves(a.q, a.o).bytes,
          .form = {}};
}

}  // namespace

void softmax_attention(ExecContext& ctx, const SoftmaxAttentionArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.q, 3) && is_f32(args.o, 3) && args.q.size(0) == args.o.size(0) && args.q.size(1) == args.o.size(1),
                   "q is F32 [T, H, dk], o F32 [T, H, dv]");
  PALIMPSEST_CHECK(args.num_kv_heads >= 1 && args.q.size(1) % args.num_kv_heads == 0, "query heads are a multiple of key heads");
  PALIMPSEST_CHECK(is_paged_list(args.list) && args.list.width() == args.num_kv_heads * (args.q.size(2) + args.o.size(2)),
                   "a list row holds the keys, then the values of all heads");
  PALIMPSEST_CHECK(is_ragged(args.rows) && args.past.dtype == DType::kI64 && args.past.rank == 1, "one past length per sequence");
  if (const Entered op = enter(ctx, Op::kSoftmaxAttention, [&] { return work_of(args); })) compute(ctx, args, cpu::softmax_attention, cuda::plain::softmax_attention);
}

}  // namespace palimpsest::ops
