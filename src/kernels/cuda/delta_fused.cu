// delta_prefill for a gate a channel that is bounded. Many heads: a block a sequence and head. Few heads: plan, summaries of segments, their
// links, prefill.

#include <algorithm>

#include "kernels/cuda/delta_fused_launch.h"
#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/delta_prefill_forms.h"
#include "kernels/cuda/sm90/delta_trades.cuh"
#include "kernels/cuda/sm90/delta_whole.cuh"

namespace palimpsest::cuda {
namespace {

using sm90::fused::FusedArgs;
using sm90::fused::Segments;

constexpr std::int64_t kTakenBytes = 256;
constexpr const char* kName = "delta_prefill";

/// Two sequences of as many heads fill the device, and segments would not pay. By the number of heads alone: the batch must not matter.
bool in_segments(std::int64_t heads) { return heads <= 48; }

Segments segments_of(std::int64_t rows, std::int64_t sequences, std::int64_t heads) {
  return heads <= 16 ? cuda::segments_of(rows, sequences, 9, true) : cuda::segments_of(rows, sequences, 10, false);
}

std::int64_t warm_bytes(const Segments& s, std::int64_t heads) { return (s.ids * heads * 4 + 255) / 256 * 256; }

/// A token's transition is no longer than 1.
bool contracts(const DeltaInputs& in) {
  if (in.write != PageWrite::kDelta) return true;
  return in.l2_norm && (!in.b.defined() || (in.beta_sigmoid && in.beta_scale >= 0 && in.beta_scale <= 2));
}

template <class State, class Out, bool kSummary>
void launch(const FusedArgs& args, std::int64_t tasks, cudaStream_t stream) {
  const std::int64_t blocks = std::min<std::int64_t>(tasks, multiprocessors(kName));
  launch_overlapping(sm90::fused::delta_fused<State, Out, kSummary>, blocks, sm90::fused::kThreads, sm90::fused::kSharedBytes, stream, kName, args, static_cast<unsigned>(tasks));
}

template <class State, class Out>
void launch_whole(const FusedArgs& args, cudaStream_t stream) {
  const std::int64_t blocks = args.a.slots.sizes[0] * args.a.in.v.sizes[1];
  launch_overlapping(sm90::fused::delta_whole<State, Out>, blocks, sm90::fused::kThreads, sm90::fused::kWholeSharedBytes, stream, kName, args);
}

template <class State>
void launch_all(const FusedArgs& args, cudaStream_t stream) {
  const std::int64_t heads = args.a.in.v.sizes[1];
  if (args.a.in_turn || !in_segments(heads)) {
    if (args.a.o.dtype == DType::kBF16) return launch_whole<State, __nv_bfloat16>(args, stream);
    return launch_whole<State, float>(args, stream);
  }
  plan_segments(args, stream);
  const bool cut = args.a.in.q.sizes[0] > std::int64_t{1} << args.s.shift;
  if (cut) {
    launch<State, __nv_bfloat16, true>(args, 2 * args.s.ids * heads, stream);
    link_segments(args, stream);
  }
  const std::int64_t tasks = (args.a.slots.sizes[0] + (cut ? args.s.ids : 0)) * heads;
  if (args.a.o.dtype == DType::kBF16) launch<State, __nv_bfloat16, false>(args, tasks, stream);
  else launch<State, float, false>(args, tasks, stream);
}

}  // namespace

DeltaWorkspace fused_workspace(std::int64_t rows, std::int64_t sequences, std::int64_t heads) {
  if (!in_segments(heads)) return {};
  const Segments s = segments_of(rows, sequences, heads);
  const std::int64_t bytes = kTakenBytes + warm_bytes(s, heads) + 2 * s.ids * heads * sm90::fused::kMatrixBytes;
  return {bytes, bytes};
}

void prefill_fused(const DeltaPrefillArgs& args, cudaStream_t stream) {
  const std::int64_t heads = args.in.v.sizes[1];
  FusedArgs fused{args, segments_of(args.in.q.sizes[0], args.slots.sizes[0], heads)};
  Segments& s = fused.s;
  auto* space = static_cast<unsigned char*>(args.workspace.data);
  s.may_forget = contracts(args.in);
  s.taken = reinterpret_cast<unsigned*>(space);
  s.warm = reinterpret_cast<int*>(space + kTakenBytes);
  s.states = reinterpret_cast<float*>(space + kTakenBytes + warm_bytes(s, heads));
  s.transitions = reinterpret_cast<unsigned char*>(s.states) + s.ids * heads * sm90::fused::kMatrixBytes;
  fused.wide = in_wide_rows(args.in.q) && in_wide_rows(args.in.k) && in_wide_rows(args.in.v) && in_wide_rows(args.in.f);
  if (args.pages.dtype == DType::kBF16) launch_all<__nv_bfloat16>(fused, stream);
  else launch_all<float>(fused, stream);
}

}  // namespace palimpsest::cuda
