// delta_prefill for a gate a head, or none: factors of all chunks, then the recurrence. Few heads: with summaries of segments and their links between.

#include <algorithm>

#include "kernels/cuda/delta_fused_launch.h"
#include "kernels/cuda/delta_launch.cuh"
#include "kernels/cuda/delta_prefill_forms.h"
#include "kernels/cuda/product_workspace.h"
#include "kernels/cuda/sm90/delta_scalar_recur.cuh"

namespace palimpsest::cuda {
namespace {

namespace form = sm90::scalar;

constexpr const char* kName = "delta_prefill";
constexpr int kSegmentShift = 11;
constexpr std::int64_t kTakenBytes = 256;
static_assert(kHeadChunkBytes == sizeof(form::Image));

/// The recurrence of more heads fills the device better than its two passes over segments. By the number of heads alone: the batch must not matter.
bool in_segments(const DeltaPrefillArgs& args) { return args.in.v.sizes[1] <= 16 && !args.in_turn; }

std::int64_t rounded(std::int64_t bytes) { return (bytes + 1023) / 1024 * 1024; }

/// What lies in the workspace, in this order.
struct Room {
  sm90::fused::Segments segments;
  std::int64_t plan = 0, matrices = 0;  ///< bytes; of the states, and as many of the transitions
  std::int64_t carry = 0;               ///< pages between launches, where they are not F32 already and not all chunks fit
  std::int64_t id, ids;                 ///< bytes of the factors of a chunk id; ids of all chunks

  explicit Room(const DeltaPrefillArgs& args) : id(args.in.v.sizes[1] * kHeadChunkBytes), ids(chunk_ids(args.in.q.sizes[0], args.slots.sizes[0])) {
    const std::int64_t rows = args.in.q.sizes[0], sequences = args.slots.sizes[0], heads = args.in.v.sizes[1];
    if (in_segments(args)) {
      segments = segments_of(rows, sequences, kSegmentShift, false);
      plan = rounded(kTakenBytes + segments.ids * heads * 4);
      matrices = segments.ids * heads * sm90::fused::kMatrixBytes;
    } else if (args.pages.dtype != DType::kF32) {
      carry = sequences * heads * sm90::fused::kMatrixBytes;
    }
  }
  std::int64_t all() const { return plan + 2 * matrices + ids * id; }
  std::int64_t least() const { return segments.ids > 0 ? all() : std::min(all(), carry + id); }
};

/// Value heads of a key head that a block makes the factors of, which saves it their products; one where blocks would be few.
int shared_heads(std::int64_t ids, std::int64_t keys, std::int64_t heads) {
  return ids * keys >= 2 * form::kFactorBlocks * multiprocessors(kName) ? static_cast<int>(heads / keys) : 1;
}

template <class State>
void recur(const form::ScalarArgs& args, bool half_output, std::int64_t blocks, cudaStream_t stream) {
  const auto kernel = half_output ? form::scalar_recur<State, __nv_bfloat16> : form::scalar_recur<State, float>;
  launch_overlapping(kernel, blocks, form::kRecurThreads, form::kRecurBytes, stream, kName, args);
}

}  // namespace

DeltaWorkspace scalar_workspace(const DeltaPrefillArgs& args) {
  const Room room(args);
  return {room.least(), room.all()};
}

void prefill_scalar(const DeltaPrefillArgs& args, cudaStream_t stream) {
  const std::int64_t rows = args.in.q.sizes[0], sequences = args.slots.sizes[0], heads = args.in.v.sizes[1];
  const Room room(args);
  const bool whole = args.workspace.bytes() >= room.all();
  form::ScalarArgs scalar{{args, room.segments, in_wide_rows(args.in.q) && in_wide_rows(args.in.k) && in_wide_rows(args.in.v)}, nullptr, nullptr, 0, room.ids};
  auto* space = static_cast<unsigned char*>(args.workspace.data);
  sm90::fused::Segments& s = scalar.f.s;
  const bool cut = s.ids > 0 && rows > std::int64_t{1} << s.shift;
  if (!cut) {
    s.ids = 0;
  } else {
    s.taken = reinterpret_cast<unsigned*>(space);
    s.warm = reinterpret_cast<int*>(space + kTakenBytes);
    s.states = reinterpret_cast<float*>(space + room.plan);
    s.transitions = space + room.plan + room.matrices;
    plan_segments(scalar.f, stream);
  }
  space += room.plan + 2 * room.matrices;
  std::int64_t at_once = room.ids;
  if (!whole) {
    if (room.carry > 0) scalar.carry = reinterpret_cast<float*>(space);
    space += room.carry;
    at_once = (args.workspace.bytes() - room.carry) / room.id;
  }
  scalar.images = reinterpret_cast<form::Image*>(space);
  check(cudaFuncSetAttribute(form::scalar_factors, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), kName);
  for (; scalar.first_id < room.ids; scalar.first_id += at_once) {
    scalar.ids = std::min(at_once, room.ids - scalar.first_id);
    const int shared = shared_heads(scalar.ids, args.in.q.sizes[1], heads);
    launch_overlapping(form::scalar_factors, scalar.ids * heads / shared, form::kFactorThreads, form::kFactorBytes, stream, kName, scalar, shared);
    if (cut) {
      launch_overlapping(form::scalar_summaries, 4 * s.ids * heads, form::kRecurThreads, form::kRecurBytes, stream, kName, scalar);
      link_segments(scalar.f, stream);
    }
    const std::int64_t blocks = 2 * (sequences + (cut ? s.ids : 0)) * heads;
    if (args.pages.dtype == DType::kBF16) recur<__nv_bfloat16>(scalar, args.o.dtype == DType::kBF16, blocks, stream);
    else recur<float>(scalar, args.o.dtype == DType::kBF16, blocks, stream);
  }
}

}  // namespace palimpsest::cuda
