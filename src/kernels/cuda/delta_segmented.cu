// delta_prefill for a gate a channel that is bounded, in segments: plan, summaries, their links, prefill.

#include <algorithm>

#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/delta_prefill_forms.h"
#include "kernels/cuda/delta_segments.h"
#include "kernels/cuda/sm90/delta_trades.cuh"

namespace palimpsest::cuda {
namespace {

using sm90::segmented::FusedArgs;
using sm90::segmented::Segments;

constexpr std::int64_t kTakenBytes = 256;
constexpr const char* kName = "delta_prefill";

Segments segments_of(const DeltaPrefillArgs& args) {
  const std::int64_t rows = args.in.q.sizes[0], sequences = args.slots.sizes[0], heads = args.in.v.sizes[1];
  Segments s;
  s.shift = heads <= 16 ? 9 : has_few_heads(args) ? 10 : 48;  // 48: never cut
  const std::int64_t by_rows = (rows >> (s.shift - 1)) + 1, by_sequences = (rows >> s.shift) + sequences;
  s.id_sequence = by_sequences < by_rows ? 1 : 0;
  s.id_shift = s.id_sequence == 1 ? s.shift : s.shift - 1;
  s.ids = std::min(by_rows, by_sequences);
  return s;
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
  launch_overlapping(sm90::segmented::delta_segmented<State, Out, kSummary>, blocks, sm90::segmented::kThreads, sm90::segmented::kSharedBytes, stream, kName,
                     args, static_cast<unsigned>(tasks));
}

template <class State>
void launch_all(const FusedArgs& args, cudaStream_t stream) {
  const std::int64_t heads = args.a.in.v.sizes[1];
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

std::int64_t segmented_workspace(const DeltaPrefillArgs& args) {
  const Segments s = segments_of(args);
  const std::int64_t heads = args.in.v.sizes[1];
  const std::int64_t matrices = s.ids * heads * sm90::segmented::kMatrixBytes;
  return kTakenBytes + warm_bytes(s, heads) + 2 * matrices;
}

void prefill_segmented(const DeltaPrefillArgs& args, cudaStream_t stream) {
  const std::int64_t heads = args.in.v.sizes[1];
  FusedArgs fused{args, segments_of(args), 0};
  Segments& s = fused.s;
  auto* space = static_cast<unsigned char*>(args.workspace.data);
  s.may_forget = contracts(args.in);
  s.taken = reinterpret_cast<unsigned*>(space);
  s.warm = reinterpret_cast<int*>(space + kTakenBytes);
  s.states = reinterpret_cast<float*>(space + kTakenBytes + warm_bytes(s, heads));
  s.transitions = reinterpret_cast<unsigned char*>(s.states) + s.ids * heads * sm90::segmented::kMatrixBytes;
  fused.wide = in_wide_rows(args.in.q) && in_wide_rows(args.in.k) && in_wide_rows(args.in.v) && in_wide_rows(args.in.f);
  if (args.pages.dtype == DType::kBF16) launch_all<__nv_bfloat16>(fused, stream);
  else launch_all<float>(fused, stream);
}

}  // namespace palimpsest::cuda
