#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ref/delta_step.h"

namespace palimpsest::cuda {
namespace {

constexpr std::int64_t kMaxWidth = 256;

/// Index i = (sequence, value head, v).
struct Recurrence {
  DeltaStepArgs args;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t value_heads = args.in.v.sizes[1], values = args.in.v.sizes[2];
    double scratch[3 * kMaxWidth];
    ref::delta_step_row<double>(args, args.o, i / values / value_heads, i / values % value_heads, i % values, scratch);
  }
};
/// Index i = (row, value head).
struct Norm {
  DeltaStepArgs args;
  __device__ void operator()(std::int64_t i) const { ref::delta_norm_row<double>(args, args.o, i / args.in.v.sizes[1], i % args.in.v.sizes[1]); }
};
/// Index i = (sequence, channel).
struct Tails {
  DeltaStepArgs args;
  __device__ void operator()(std::int64_t i) const {
    ref::delta_tail_channel<double>(args, i / args.conv.weight.sizes[0], i % args.conv.weight.sizes[0]);
  }
};

}  // namespace

void ref_delta_step(const DeltaStepArgs& args) {
  if (args.in.q.sizes[2] > kMaxWidth) throw Error(ErrorCode::kUnsupported, "ref_delta_step: key width over 256");
  const std::int64_t sequences = args.slots.sizes[0], value_heads = args.in.v.sizes[1];
  for_each_index(sequences * value_heads * args.in.v.sizes[2], Recurrence{args}, "ref_delta_step");
  for_each_index(args.o.sizes[0] * value_heads, Norm{args}, "ref_delta_step norm");
  if (args.conv.weight.defined()) for_each_index(sequences * args.conv.weight.sizes[0], Tails{args}, "ref_delta_step tails");
}

}  // namespace palimpsest::cuda
