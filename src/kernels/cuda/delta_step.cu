#include <algorithm>

#include "kernels/cuda/delta_checks.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/delta_prefill_forms.h"
#include "kernels/cuda/sm90/delta_decode.cuh"
#include "kernels/cuda/sm90/delta_step.cuh"

namespace palimpsest::cuda {
namespace {

constexpr const char* kName = "delta_step";

std::int64_t pages_of(const DeltaStepArgs& args) { return args.slots.sizes[0] * args.in.v.sizes[1]; }

/// The slices of a page share the norm's sums, and the tails of q and k: without these they need not know each other.
bool slices_share(const DeltaStepArgs& args) { return args.norm.weight.defined() || args.conv.weight.defined(); }

/// From this many pages on a block owns a whole page; with fewer, a page is spread over several multiprocessors in slices of 32 rows. Both
/// give the same bits. Measured on an H200: slices that share nothing pay up to 8 sequences of 96 heads, slices of a cluster up to two pages
/// a multiprocessor.
std::int64_t many_pages(const DeltaStepArgs& args) { return slices_share(args) ? 2 * 132 : 8 * 132; }

/// Rows and heads begin at multiples of 8 bytes.
bool in_vectors(const Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.data) % 8 == 0 && t.strides[0] % 4 == 0 && (t.rank < 3 || t.strides[1] % 4 == 0);
}

/// BF16 inputs that lie so that four channels are one access, a gate a channel or none, four taps or none.
bool takes_vectors(const DeltaStepArgs& a) {
  const auto& in = a.in;
  const bool conv = a.conv.weight.defined();
  return in.q.sizes[2] == 128 && in.q.dtype == DType::kBF16 && (in.gate == DeltaGate::kNone || (in.f.rank == 3 && in_vectors(in.f))) && in_vectors(in.q) &&
         in_vectors(in.k) && in_vectors(in.v) && (!in.dt_bias.defined() || reinterpret_cast<std::uintptr_t>(in.dt_bias.data) % 16 == 0) &&
         (!a.norm.gate.defined() || in_vectors(a.norm.gate)) &&
         (!conv || (a.conv.weight.sizes[1] == 4 && in_vectors(a.conv.tails) && reinterpret_cast<std::uintptr_t>(a.conv.weight.data) % 16 == 0));
}

/// What delta_decode can do; a matter of shapes and layouts alone, never of the batch.
bool is_plain_decode(const DeltaStepArgs& a) {
  return takes_vectors(a) && !a.cu_seqlens.defined() && !a.snapshots.defined() && a.in.gate != DeltaGate::kNone;
}

/// How delta_step works through the rows.
struct Walk {
  std::int64_t max_rows;
  int snapshot_mask;
  const std::int64_t* past;
};

template <int kWarps, int kRows, class State>
void launch_decode(const DeltaStepArgs& args, cudaStream_t stream) {
  const std::int64_t slices = args.in.v.sizes[2] / (kWarps * kRows);
  const auto kernel = args.conv.weight.defined() ? sm90::delta_decode<kWarps, kRows, State, true> : sm90::delta_decode<kWarps, kRows, State, false>;
  launch_clusters(kernel, pages_of(args) * slices, slices_share(args) ? slices : 1, kWarps * 32, 0, stream, kName, args, static_cast<int>(slices));
}

template <int K, int kWarps, int kRows, class State>
void launch_step(const DeltaStepArgs& args, const Walk& walk, cudaStream_t stream) {
  using Step = sm90::DeltaStep<K, kWarps, kRows, State>;
  const std::int64_t slices = args.in.v.sizes[2] / Step::kSlice;
  const int rows = static_cast<int>(std::min<std::int64_t>(sm90::kBlockRows, std::max<std::int64_t>(walk.max_rows, 1)));
  launch_clusters(sm90::delta_step<K, kWarps, kRows, State>, pages_of(args) * slices, slices, kWarps * 32, Step::Memory::bytes(rows), stream, kName, args,
                  sm90::DeltaStepShape{rows, static_cast<int>(slices), takes_vectors(args), walk.snapshot_mask, walk.past});
}

template <int K, int kWarps, int kRows, class State>
void launch(const DeltaStepArgs& args, const Walk& walk, cudaStream_t stream) {
  if constexpr (K == 128) {
    if (is_plain_decode(args)) return launch_decode<kWarps, kRows, State>(args, stream);
  }
  launch_step<K, kWarps, kRows, State>(args, walk, stream);
}

template <int K, class State>
void choose_slice(const DeltaStepArgs& args, const Walk& walk, cudaStream_t stream) {
  if constexpr (K <= 128) {
    if (args.in.v.sizes[2] % 128 == 0 && pages_of(args) >= many_pages(args)) return launch<K, 8, 16, State>(args, walk, stream);
  }
  launch<K, 4, 8, State>(args, walk, stream);
}

template <class State>
void choose_width(const DeltaStepArgs& args, const Walk& walk, cudaStream_t stream) {
  switch (args.in.q.sizes[2]) {
    case 64: return choose_slice<64, State>(args, walk, stream);
    case 128: return choose_slice<128, State>(args, walk, stream);
    default: return choose_slice<256, State>(args, walk, stream);
  }
}

void walk_rows(const DeltaStepArgs& args, const Walk& walk, cudaStream_t stream) {
  if (args.slots.sizes[0] == 0 || args.o.sizes[0] == 0) return;
  if (args.pages.dtype == DType::kBF16) choose_width<__nv_bfloat16>(args, walk, stream);
  else choose_width<float>(args, walk, stream);
}

}  // namespace

void delta_step(const DeltaStepArgs& args, std::int64_t max_rows, void* stream) {
  check_delta_step(args);
  walk_rows(args, {max_rows, 0, nullptr}, static_cast<cudaStream_t>(stream));
}

void prefill_in_steps(const DeltaPrefillArgs& args, cudaStream_t stream) {
  DeltaStepArgs step;
  step.in = args.in, step.pages = args.pages, step.cu_seqlens = args.cu_seqlens, step.slots = args.slots;
  step.snapshots = args.snapshots, step.snapshot_slots = args.snapshot_slots, step.o = args.o;
  walk_rows(step, {sm90::kBlockRows, 63, args.past.defined() ? args.past.as<const std::int64_t>() : nullptr}, stream);
}

}  // namespace palimpsest::cuda
