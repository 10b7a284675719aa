#pragma once

// delta_prefill over time in parallel: a sequence is cut at multiples of 2^Segments::shift of the absolute position, and what lies between is
// a task that any block may take, a head at a time. A task needs the page at its start:
//
//   * the first one of a sequence has it;
//   * where what came before is forgotten, it begins some chunks earlier with an empty page. A token acts on the page as diag(e^g) and then
//     as I - beta k k^T, which is no longer than 1 for |k| <= 1 and beta in [0, 2]; so the past counts for at most e^(sum over tokens of the
//     largest g), and that sum says how early (the largest of the sums would be no bound: writes mix channels);
//   * else: S_end = C + S_start A, with C the end of the segment begun with an empty page, A that of one begun with the unit matrix and
//     without values. All C and A are made at once, then linked one after the other (link_segments). That is 2.3 times the work.
//
// Of up to 16 heads, sequences are also cut half way between, where what came before is forgotten there, at positions below kFine: short
// sequences would not fill the device else.
//
// All of this hangs on positions and on what lies before them, so batch mates and later tokens change no bit.

#include "kernels/cuda/sm90/delta_step.cuh"
#include "kernels/cuda/sm90/hopper.cuh"

namespace palimpsest::cuda::sm90::fused {

inline constexpr int kTokens = 16;  ///< of a chunk
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr int kMaxWarm = 8;         ///< chunks before a boundary that may be looked at
inline constexpr float kForgotten = -26;   ///< log2 of what the past may still count for
inline constexpr int kMatrixBytes = 128 * 128 * 4;
inline constexpr std::int64_t kFine = 16384;
inline constexpr int kAbsent = -1;         ///< of a boundary: sequences are not cut there

/// Where sequences are cut, and what is known there. A multiple of 2^shift tokens is a boundary if as many rows of the batch lie before it.
/// Sequence n owns the ids from cu[n] / 2^id_shift + n * id_sequence on: one for its page, then one a boundary; some stay unused.
struct Segments {
  int shift = 0, id_shift = 0, id_sequence = 0;
  bool halves = false;  ///< every other boundary may be absent
  std::int64_t ids = 0;
  bool may_forget = false;  ///< the bound holds
  unsigned* taken = nullptr;              ///< [2]: tasks that blocks took, of the summaries and of the prefill
  int* warm = nullptr;                    ///< [heads, ids]: chunks of warm-up, 0: not forgotten, or kAbsent (also where an id has no boundary)
  float* states = nullptr;                ///< [ids, heads, 128, 128]: copies of pages, states at boundaries
  unsigned char* transitions = nullptr;   ///< [ids, heads]: A of the segment before a boundary, see transition_offset
};

struct FusedArgs {
  DeltaPrefillArgs a;
  Segments s;
  int wide = 0;  ///< rows begin at multiples of 16 bytes

  __device__ std::int64_t heads() const { return a.in.v.sizes[1]; }
  __device__ std::int64_t sequences() const { return a.slots.sizes[0]; }
  __device__ float* state(std::int64_t id, std::int64_t head) const { return s.states + (id * heads() + head) * (128 * 128); }
  __device__ std::int64_t first_id(std::int64_t n) const { return (load_index(a.cu_seqlens, n) >> s.id_shift) + n * s.id_sequence; }
  __device__ unsigned char* transition(std::int64_t id, std::int64_t head) const { return s.transitions + (id * heads() + head) * kMatrixBytes; }
  __device__ int* warm(std::int64_t id, std::int64_t head) const { return s.warm + head * s.ids + id; }
  __device__ bool absent(std::int64_t id, std::int64_t head) const { return s.halves && *warm(id, head) == kAbsent; }
};

/// Byte offset of A[i, k] in BF16: two tiles of 64 columns; what rounding lost lies 32 KiB further on.
__device__ inline int transition_offset(int i, int k) { return k / 64 * (128 * 128) + swizzled(i, k % 64); }

/// The rows of one sequence and its boundaries.
struct SequenceRows {
  std::int64_t first, length, past;
  std::int64_t boundaries, boundary;  ///< how many; the first one, counted from the first row
  std::int64_t page_id;               ///< boundary k has id page_id + 1 + k

  __device__ static SequenceRows of(const FusedArgs& f, std::int64_t n) {
    const std::int64_t first = load_index(f.a.cu_seqlens, n), length = load_index(f.a.cu_seqlens, n + 1) - first;
    const std::int64_t past = f.a.past.defined() ? load_index(f.a.past, n) : 0;
    const std::int64_t boundary = ((((past - 1) >> f.s.shift) + 2) << f.s.shift) - past;
    return {first, length, past, length <= boundary ? 0 : ((length - 1 - boundary) >> f.s.shift) + 1, boundary, f.first_id(n)};
  }
  __device__ std::int64_t row_of(const FusedArgs& f, std::int64_t k) const { return boundary + (k << f.s.shift); }
};

/// The sequence that owns an id: the last n whose first id is not beyond it.
__device__ inline std::int64_t sequence_of(const FusedArgs& f, std::int64_t id) {
  std::int64_t low = 0, high = f.sequences();
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (f.first_id(middle) <= id) low = middle;
    else high = middle;
  }
  return low;
}

/// The sequence of the i-th tasks: the longest first, so that none begins when all others end. Beyond 32 sequences in their order.
__device__ inline std::int64_t sequence_in_turn(const Tensor& cu_seqlens, std::int64_t sequences, std::int64_t i) {
  if (sequences > 32) return i;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t length = lane < sequences ? load_index(cu_seqlens, lane + 1) - load_index(cu_seqlens, lane) : -1;
  int longer = 0;
  for (int other = 0; other < sequences; ++other) {
    const std::int64_t x = __shfl_sync(~0u, length, other);
    longer += x > length || (x == length && other < lane);
  }
  return __ffs(static_cast<int>(__ballot_sync(~0u, lane < sequences && longer == i))) - 1;
}

// -- tasks -------------------------------------------------------------------------------------------------------------------------------

enum class Place : unsigned char { kNone, kEmpty, kUnit, kPage, kState, kTransition };

/// Chunks of one head, one after the other.
struct Task {
  std::int64_t row;  ///< of the batch, at position 0 of the first chunk
  unsigned char* out;  ///< of that position
  const void* load;  ///< the page, for Place::kPage and kState
  void* store;
  int chunks;        ///< -1: there are no more tasks
  int quiet;         ///< chunks at the beginning that leave no outputs
  short head, key_head;
  unsigned char begin, end;  ///< rows of the first chunk begin, of the last one end there
  unsigned char phase;       ///< chunks between the last multiple of 64 positions and the first chunk
  Place from, to;
  bool values;  ///< false: v = 0

  /// After set_rows.
  __device__ void set_head(const FusedArgs& f, unsigned i) {
    out = static_cast<unsigned char*>(f.a.o.data) + (row * f.heads() + i) * 128 * (f.a.o.dtype == DType::kBF16 ? 2 : 4);
    head = static_cast<short>(i);
    key_head = static_cast<short>(i / (static_cast<unsigned>(f.heads()) / static_cast<unsigned>(f.a.in.q.sizes[1])));
  }

  /// Rows [from_row, end_row) of a sequence.
  __device__ void set_rows(const SequenceRows& r, std::int64_t from_row, std::int64_t end_row) {
    const int offset = static_cast<int>((r.past + from_row) % kTokens);
    const std::int64_t span = end_row - from_row + offset;
    row = r.first + from_row - offset;
    chunks = static_cast<int>((span + kTokens - 1) / kTokens);
    begin = static_cast<unsigned char>(offset);
    end = static_cast<unsigned char>(span - (chunks - 1) * static_cast<std::int64_t>(kTokens));
    phase = static_cast<unsigned char>((r.past + from_row) / kTokens % 4);
  }
};

__device__ inline void* page_of(const FusedArgs& f, std::int64_t slot, std::int64_t head) {
  const std::int64_t* strides = f.a.pages.strides;
  return static_cast<unsigned char*>(f.a.pages.data) + (slot * strides[0] + head * strides[1]) * (f.a.pages.dtype == DType::kBF16 ? 2 : 4);
}

__device__ inline void write_zeros(const FusedArgs& f, const SequenceRows& r, std::int64_t head) {
  for (std::int64_t i = threadIdx.x % 32; i < r.length * 128; i += 32) store_output(f.a.o, ((r.first + i / 128) * f.heads() + head) * 128 + i % 128, 0);
}

/// Task t of the prefill, for a warp; false: there is none of this number.
__device__ inline bool prefill_task(const FusedArgs& f, unsigned t, Task& task) {
  const unsigned turn = t / static_cast<unsigned>(f.heads()), head = t - turn * static_cast<unsigned>(f.heads());
  const std::int64_t id = static_cast<std::int64_t>(turn) - f.sequences();
  const std::int64_t n = id < 0 ? sequence_in_turn(f.a.cu_seqlens, f.sequences(), turn) : sequence_of(f, id);
  const SequenceRows r = SequenceRows::of(f, n);
  const std::int64_t slot = load_index(f.a.slots, n);
  const std::int64_t k = id < 0 ? -1 : id - r.page_id - 1;  // the boundary where the task begins
  if (r.length == 0 || (id >= 0 && k < 0) || k >= r.boundaries) return false;
  if (slot < 0) {
    if (id < 0 && slot != kRowsOfOthers) write_zeros(f, r, head);
    return false;
  }
  const int warm = id < 0 ? 0 : *f.warm(id, head);
  if (warm == kAbsent) return false;
  std::int64_t next = k + 1;
  if (next < r.boundaries && f.absent(r.page_id + 1 + next, head)) ++next;
  task.set_rows(r, id < 0 ? 0 : r.row_of(f, k) - warm * kTokens, next < r.boundaries ? r.row_of(f, next) : r.length);
  task.set_head(f, head);
  task.quiet = warm;
  task.values = true;
  // A cut sequence's first task may begin after its last one has written the page.
  task.from = id < 0 ? (r.boundaries == 0 ? Place::kPage : Place::kState) : warm > 0 ? Place::kEmpty : Place::kState;
  task.load = id >= 0 ? f.state(id, head) : r.boundaries == 0 ? page_of(f, slot, head) : f.state(r.page_id, head);
  task.to = next == r.boundaries ? Place::kPage : Place::kNone;
  task.store = page_of(f, slot, head);
  return true;
}

/// Task t of the summaries: C (even) or A (odd) of the segment before a boundary.
__device__ inline bool summary_task(const FusedArgs& f, unsigned t, Task& task) {
  const unsigned id = t / 2 / static_cast<unsigned>(f.heads()), head = t / 2 - id * static_cast<unsigned>(f.heads());
  const std::int64_t n = sequence_of(f, id);
  const bool unit = t % 2 != 0;
  const SequenceRows r = SequenceRows::of(f, n);
  const std::int64_t k = id - r.page_id - 1;
  if (k < 0 || k >= r.boundaries || load_index(f.a.slots, n) < 0 || *f.warm(id, head) != 0) return false;
  const std::int64_t before = k > 0 && f.absent(id - 1, head) ? k - 2 : k - 1;
  const int warm = before < 0 ? 0 : *f.warm(r.page_id + 1 + before, head);
  if (unit && (before < 0 || warm > 0)) return false;  // C is S_end already
  task.set_rows(r, before < 0 ? 0 : r.row_of(f, before) - warm * kTokens, r.row_of(f, k));
  task.set_head(f, head);
  task.quiet = task.chunks;
  task.values = !unit;
  task.from = unit ? Place::kUnit : before < 0 ? Place::kState : Place::kEmpty;
  task.load = f.state(r.page_id, head);
  task.to = unit ? Place::kTransition : Place::kState;
  task.store = unit ? static_cast<void*>(f.transition(id, head)) : f.state(id, head);
  return true;
}

/// Whether there may be a task of this number, by one look at the plan.
__device__ inline bool prefill_may_be(const FusedArgs& f, unsigned t) {
  const auto heads = static_cast<unsigned>(f.heads());
  const std::int64_t id = static_cast<std::int64_t>(t / heads) - f.sequences();
  return id < 0 || *f.warm(id, t % heads) != kAbsent;
}
__device__ inline bool summary_may_be(const FusedArgs& f, unsigned t) {
  const auto heads = static_cast<unsigned>(f.heads());
  return *f.warm(t / 2 / heads, t / 2 % heads) == 0;
}
/// Whether there is any boundary where what came before is not forgotten. All threads of the block.
__device__ inline bool any_slow(const FusedArgs& f) {
  bool slow = false;
  for (std::int64_t i = threadIdx.x; i < f.s.ids * f.heads(); i += blockDim.x) slow = slow || f.s.warm[i] == 0;
  return __syncthreads_or(slow) != 0;
}

// -- plan --------------------------------------------------------------------------------------------------------------------------------

/// Of 32 tokens that end before row `end` of the batch: log2 of the largest decay, summed over each chunk: the later one first.
__device__ inline float2 largest_decays(const FusedArgs& f, std::int64_t end, std::int64_t head, float (&sums)[8]) {
  const DeltaInputs& in = f.a.in;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const float slope = -kLog2e * __expf(static_cast<const float*>(in.a_log.data)[head]), inverse_bound = 1 / (kLog2e * in.lower_bound);
  const float* bias = static_cast<const float*>(in.dt_bias.data) + head * 128 + 4 * lane;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::int64_t row = end - 4 * (warp + 1) + i;
    const uint2 bits = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(in.f.data) + row * in.f.strides[0] + head * in.f.strides[1] + 4 * lane);
    const float2 x = unpack_bf16(bits.x), y = unpack_bf16(bits.y);
    float e = fmaxf(fmaxf(slope * (x.x + bias[0]), slope * (x.y + bias[1])), fmaxf(slope * (y.x + bias[2]), slope * (y.y + bias[3])));
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) e = fmaxf(e, __shfl_xor_sync(~0u, e, offset));
    sum += reciprocal_fast(fmaf(exp2_fast(e), inverse_bound, inverse_bound));
  }
  __syncthreads();
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  return make_float2((sums[0] + sums[1]) + (sums[2] + sums[3]), (sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// Chunks before row `boundary` of a sequence after which nothing is left of what came before; 0: not within kMaxWarm.
__device__ inline int warm_up(const FusedArgs& f, const SequenceRows& r, std::int64_t boundary, std::int64_t head) {
  __shared__ float sums[8];
  float sum = 0;
  for (int warm = 0; warm < kMaxWarm; warm += 2) {
    if (boundary < (warm + 2) * kTokens) return 0;
    const float2 chunk = largest_decays(f, r.first + boundary - warm * kTokens, head, sums);
    sum += chunk.x;
    if (sum <= kForgotten) return warm + 1;
    sum += chunk.y;
    if (sum <= kForgotten) return warm + 2;
  }
  return 0;
}

template <class State>
__device__ void copy_page(const FusedArgs& f, std::int64_t slot, std::int64_t id, std::int64_t head) {
  const State* page = static_cast<const State*>(page_of(f, slot, head));
  float* to = f.state(id, head);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < 128 * 32; i += 256) {
    float x[4];
    PageLane<State, 4>::load(page + i / 32 * f.a.pages.strides[2] + i % 32 * 4, x);
    reinterpret_cast<float4*>(to)[i] = make_float4(x[0], x[1], x[2], x[3]);
  }
}

/// Block (id, head).
template <class State>
__global__ void __launch_bounds__(256) plan_segments(const __grid_constant__ FusedArgs f) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  if (blockIdx.x == 0 && threadIdx.x < 2) f.s.taken[threadIdx.x] = 0;
  const std::int64_t id = blockIdx.x / f.heads(), head = blockIdx.x % f.heads(), n = sequence_of(f, id);
  const SequenceRows r = SequenceRows::of(f, n);
  const std::int64_t k = id - r.page_id - 1, slot = load_index(f.a.slots, n);
  const bool cut = r.boundaries > 0 && slot >= 0;
  if (!cut || k < 0 || k >= r.boundaries) {
    if (threadIdx.x == 0) *f.warm(id, head) = kAbsent;
    if (cut && k < 0) copy_page<State>(f, slot, id, head);
    return;
  }
  const std::int64_t position = r.past + r.row_of(f, k);
  const bool half = f.s.halves && (position >> f.s.shift) % 2 != 0;
  const int warm = f.s.may_forget && (!half || position < kFine) ? warm_up(f, r, r.row_of(f, k), head) : 0;
  if (threadIdx.x == 0) *f.warm(id, head) = half && warm == 0 ? kAbsent : warm;
}

// -- link --------------------------------------------------------------------------------------------------------------------------------

inline constexpr int kLinkRows = 16, kLinkStages = 3, kLinkFlags = 256, kLinkStride = 136;
struct LinkMemory {
  unsigned char transitions[kLinkStages][kMatrixBytes];
  __nv_bfloat16 state[2][2][kLinkRows][kLinkStride];  ///< of the boundary before: rounded, and what rounding lost; two buffers
  signed char warm[kLinkFlags + 2];                   ///< of boundary base + i - 2, at most 1; 1 before the first
  std::uint64_t ready[kLinkStages];
};
inline constexpr int kLinkSharedBytes = static_cast<int>(sizeof(LinkMemory)) + 1024;

/// Rows [16 slice, + 16) of the states of one head at all boundaries of a sequence.
struct Link {
  const FusedArgs& f;
  LinkMemory& m;
  std::int64_t head, first_id;
  int v0, warp, lane;
  int used = 0;  ///< transitions so far

  __device__ float* at(std::int64_t id, int i) const {  // of fragment pair i: rows + 8 (i % 2), columns + 8 (i / 2)
    return f.state(id, head) + (v0 + lane / 4 + 8 * (i % 2)) * 128 + 16 * warp + 8 * (i / 2) + 2 * (lane % 4);
  }
  __device__ void load(std::int64_t id, float (&x)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 y = *reinterpret_cast<const float2*>(at(id, i));
      x[i / 2][i % 2 * 2] = y.x, x[i / 2][i % 2 * 2 + 1] = y.y;
    }
  }
  __device__ void store(std::int64_t id, const float (&x)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<float2*>(at(id, i)) = make_float2(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
  }
  __device__ void share(int buffer, const float (&x)[2][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i % 2), column = 16 * warp + 8 * (i / 2) + 2 * (lane % 4);
      const std::uint32_t high = pack_bf16(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
      const float2 rounded = unpack_bf16(high);
      *reinterpret_cast<std::uint32_t*>(&m.state[buffer][0][row][column]) = high;
      *reinterpret_cast<std::uint32_t*>(&m.state[buffer][1][row][column]) =
          pack_bf16(x[i / 2][i % 2 * 2] - rounded.x, x[i / 2][i % 2 * 2 + 1] - rounded.y);
    }
  }
  /// x += S A, with S of a buffer and A of a stage.
  __device__ void add_product(int buffer, const unsigned char* stage, float (&x)[2][4]) const {
    const int row = lane % 8 + lane / 8 % 2 * 8, column = 16 * warp + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      std::uint32_t s[2][4], a[2][4];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        load_matrices(s[part], &m.state[buffer][part][lane % 16][16 * step + lane / 16 * 8]);
        load_matrices_transposed(a[part], stage + part * (kMatrixBytes / 2) + transition_offset(16 * step + row, column));
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        mma(x[tile], s[0], a[0][2 * tile], a[0][2 * tile + 1]);
        mma(x[tile], s[1], a[0][2 * tile], a[0][2 * tile + 1]);
        mma(x[tile], s[0], a[1][2 * tile], a[1][2 * tile + 1]);
      }
    }
  }

  __device__ int warm(int i) const { return m.warm[i + 2]; }
  __device__ int before(int i) const { return warm(i - 1) == kAbsent ? i - 2 : i - 1; }
  __device__ bool linked(int i) const { return warm(i) == 0 && warm(before(i)) == 0; }

  /// Boundaries base .. base + count - 1.
  __device__ void run(std::int64_t base, int count) {
    int ahead = 0, fetched = used;
    const auto fetch = [&] {  // one thread
      while (ahead < count && !linked(ahead)) ++ahead;
      if (ahead == count) return;
      const int stage = fetched % kLinkStages;
      barrier_expect(m.ready + stage, kMatrixBytes);
      copy_bulk(m.transitions[stage], f.transition(first_id + base + ahead, head), kMatrixBytes, m.ready + stage);
      ++fetched, ++ahead;
    };
    if (threadIdx.x == 0) {
      for (int i = 0; i < kLinkStages; ++i) fetch();
    }
    int last = -3, buffer = 0;
    for (int i = 0; i < count; ++i) {
      if (!linked(i)) continue;
      const std::int64_t id = first_id + base + i;
      float x[2][4];
      if (last != before(i)) {
        load(first_id + base + before(i), x);
        share(buffer, x);
        __syncthreads();
      }
      load(id, x);
      barrier_wait(m.ready + used % kLinkStages, used / kLinkStages & 1);
      add_product(buffer, m.transitions[used % kLinkStages], x);
      store(id, x);
      buffer ^= 1;
      share(buffer, x);
      __syncthreads();
      if (threadIdx.x == 0) fetch();
      ++used, last = i;
    }
  }
};

/// Block (sequence, head, slice of 16 rows), slices fastest.
static __global__ void __launch_bounds__(256, 1) link_segments(const __grid_constant__ FusedArgs f) {
  extern __shared__ __align__(16) unsigned char link_memory[];
  auto& m = *reinterpret_cast<LinkMemory*>(link_memory + (-shared_address(link_memory) & 1023));
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  constexpr int kSlices = 128 / kLinkRows;
  const std::int64_t n = blockIdx.x / kSlices / f.heads(), head = blockIdx.x / kSlices % f.heads();
  const SequenceRows r = SequenceRows::of(f, n);
  if (r.boundaries < 2 || load_index(f.a.slots, n) < 0) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kLinkStages; ++i) barrier_init(m.ready + i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  Link link{f, m, head, r.page_id + 1, static_cast<int>(blockIdx.x % kSlices) * kLinkRows, __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0),
            static_cast<int>(threadIdx.x) % 32};
  for (std::int64_t base = 0; base < r.boundaries; base += kLinkFlags) {
    const int count = static_cast<int>(min(static_cast<long long>(kLinkFlags), static_cast<long long>(r.boundaries - base)));
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < count + 2; i += 256) {
      m.warm[i] = base + i < 2 ? 1 : static_cast<signed char>(min(*f.warm(r.page_id - 1 + base + i, head), 1));
    }
    __syncthreads();
    link.run(base, count);
  }
}

}  // namespace palimpsest::cuda::sm90::fused
