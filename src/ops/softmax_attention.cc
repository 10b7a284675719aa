#include "kernels/cpu/cpu_kernels.h"
#include "ops/front_door.h"
#include "ops/latent_checks.h"
#include "ops/ops.h"
#include "ops/tensor_checks.h"

namespace palimpsest::ops {

void softmax_attention(ExecContext& ctx, const SoftmaxAttentionArgs& args) {
  PALIMPSEST_CHECK(is_f32(args.q, 3) && is_f32(args.o, 3) && args.q.size(0) == args.o.size(0) && args.q.size(1) == args.o.size(1),
                   "q is F32 [T, H, dk], o F32 [T, H, dv]");
  PALIMPSEST_CHECK(args.num_kv_heads >= 1 && args.q.size(1) % args.num_kv_heads == 0, "query heads are a multiple of key heads");
  PALIMPSEST_CHECK(is_paged_list(args.list) && args.list.width() == args.num_kv_heads * (args.q.size(2) + args.o.size(2)),
                   "a list row holds the keys, then the values of all heads");
  PALIMPSEST_CHECK(is_ragged(args.rows) && args.past.dtype == DType::kI64 && args.past.rank == 1, "one past length per sequence");
  if (enter(ctx, Op::kSoftmaxAttention)) cpu::softmax_attention(ctx, args);
}

}  // namespace palimpsest::ops
