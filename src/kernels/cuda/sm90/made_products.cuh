#pragma once

// Wide products with weights in MXFP4, decoded by warps of their own. Tiles, images, outputs and the order of sums are those of wide_products.cuh. Two
// warpgroups take codes straight from memory, a unit ahead, and leave BF16 numbers beside the image, where wgmma reads both; two multiply, with few
// instructions of their own. The latter was what had bounded them.

#include "kernels/cuda/sm90/wide_products.cuh"

namespace palimpsest::cuda::sm90 {

/// The two warpgroups that decode. A lane has 32 columns of a unit of two rows, eight apart.
template <int kMatrices>
struct MadeWeights {
  using Outputs = WideOutputs<Form::kMx, kMatrices>;
  const WideJob& job;
  int row_tiles, rank, quad = static_cast<int>(threadIdx.x) % 4, row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  const std::uint8_t *codes[2], *scales[2];
  std::uint32_t next_scale[2];
  uint4 next[2];
  int block, expert = 0;
  /// The next task, found out while this one is read.
  __device__ void look(int index) {
    const WidePlace place(job, row_tiles, index, rank);
    block = place.block;
    const tiles::Work& work = job.works.work[0];
    if (work.experts) expert = work.tiles[place.row_tile].expert;
  }
  __device__ void point() {
    const Outputs outputs(job, block);
    const tiles::Work& work = *outputs.work;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const StoredMatrix& w = work.experts ? work.experts[3 * expert + work.matrix + Outputs::matrix(8 * i)] : work.w;
      const int output = min(outputs.output(row + 8 * i), work.outputs - 1);
      codes[i] = w.data + output * w.row_bytes + quad * 16;
      scales[i] = w.scales + output * w.scale_row_bytes + quad;
    }
  }
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(next[i].x), "=r"(next[i].y), "=r"(next[i].z), "=r"(next[i].w) : "l"(codes[i]));
      asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(next_scale[i]) : "l"(scales[i]));
      codes[i] += 64;
      scales[i] += 4;
    }
  }
};
/// The first of their threads brings images as well.
template <int kRows, int kMatrices, int kParts>
__device__ void make_weights(const WideJob& job, const WideMemory<kRows, kParts>& m, int row_tiles, int rank) {
  using Shape = WideShape<kRows, kParts>;
  using U = tiles::Unit<Form::kMx>;
  const int total = row_tiles * job.pairs, step = static_cast<int>(gridDim.x) / 2;
  int index = static_cast<int>(blockIdx.x) / 2;
  if (index >= total) return;
  MadeWeights<kMatrices> w{job, row_tiles, rank};
  const int at = w.row * 128 + w.row % 8 * 16 + w.quad * 4;
  w.look(index), w.point(), w.load();
  WideRing ring;
  for (; index < total; index += step) {
    const bool more = index + step < total;
    const WideTask task = WideTask::of<kRows>(job.works.work[0], WidePlace(job, row_tiles, index, rank));
    const int image_rows = rows_of<kRows>(job.works.work[0], task.count), half_image = image_rows * kParts * 64;
    const std::uint8_t* image = job.image + static_cast<std::int64_t>(task.row_tile) * job.chunks * job.image_parts * Shape::kPartBytes + rank * half_image;
#pragma unroll 1
    for (int unit = 0; unit < job.units; ++unit) {
      const uint4 now[2] = {w.next[0], w.next[1]};
      const std::uint32_t scale[2] = {w.next_scale[0], w.next_scale[1]};
      const bool large = __any_sync(~0u, max(scale[0], scale[1]) > 128);
      if (more && unit == 0) w.look(index + step);
      if (unit + 1 == job.units && more) w.point();
      if (unit + 1 < job.units || more) w.load();
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        barrier_wait(m.empty(ring.stage), ring.parity ^ 1);
        if (threadIdx.x == 0) {
          if (k == 0 && unit == 0) *m.task(ring.stage) = WideTask::of<kRows>(job.works.work[0], WidePlace(job, row_tiles, index, rank));
          barrier_expect(m.full(ring.stage), 2 * half_image);
          copy_bulk_to_both(m.image(ring.stage) + rank * half_image, image, half_image, m.full(ring.stage));
          image += image_rows * job.image_parts * 128;
        }
        const std::uint32_t to = shared_address(m.weights(ring.stage)) + at;
        const auto make = [&](auto is_large) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const uint4 words = U::decode<decltype(is_large)::value>(k == 0 ? (h == 0 ? now[i].x : now[i].y) : (h == 0 ? now[i].z : now[i].w), scale[i]);
              const std::uint32_t of[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
              for (int j = 0; j < 4; ++j) asm volatile("st.shared.u32 [%0], %1;" ::"r"((to ^ ((4 * h + j) * 16)) + i * 1024), "r"(of[j]) : "memory");
            }
          }
        };
        if (large) make(std::true_type{});
        else make(std::false_type{});
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(m.full(ring.stage));
        ring.next(Shape::kStages);
      }
    }
  }
}

/// The products of a warpgroup, as wide_multiply() asks for them.
template <int kRows, int kParts>
struct MadeSums {
  using Shape = WideShape<kRows, kParts>;
  const WideJob& job;
  const WideMemory<kRows, kParts>& m;
  int which;
  std::uint32_t images = operand(shared_address(m.image(0))), freed = address_in(static_cast<int>(threadIdx.x) % kWideCluster, m.empty(0));
  WideRing ring{};
  __device__ void operator()(int, int rows, float (&total)[kRows / 2]) {
    const int each = (job.units + tiles::kSegments - 1) / tiles::kSegments * 2;
    float acc[kRows / 2];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) total[i] = acc[i] = 0;
#pragma unroll 1
    for (int left = job.chunks; left > 0; left -= each) {
      const int count = min(left, each);
      int before = 0;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        barrier_wait(m.full(ring.stage), ring.parity);
        copies_follow();  // decoded numbers were written by threads, and products read them past those
        const std::uint32_t b = images + ring.stage * (Shape::kStageBytes >> 4), a = b + (Shape::kImageBytes >> 4) + which * 512;
        with_width<kRows>(rows, [&](auto width) {
          wgmma_fence();
#pragma unroll
          for (int h = 0; h < 4; ++h) {
#pragma unroll
            for (int p = 0; p < kParts; ++p) wide_step<width.value>(acc, a + h * kStepAlong, b + p * rows * 8 + h * kStepAlong, h + p > 0 ? 1 : i);
          }
          wgmma_commit();
        });
        if (i > 0) {
          wgmma_wait<1>();
          release(static_cast<int>(threadIdx.x) % 32, freed, before);
        }
        before = ring.stage;
        ring.next(Shape::kStages);
      }
      wgmma_wait<0>();
      settled(acc);
      release(static_cast<int>(threadIdx.x) % 32, freed, before);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) total[i] += acc[i];
    }
  }
};

template <Form kForm>
constexpr int kWideFetchers = kForm == Form::kMx ? 2 : 1;  ///< warpgroups that bring weights, before the two that multiply

/// Grid: any even number of blocks, in clusters of two.
template <Form kForm, int kRows, int kMatrices, int kParts>
__global__ void __launch_bounds__((kWideFetchers<kForm> + 2) * 128, 1) wide_products(const __grid_constant__ WideJob job) {
  using Shape = WideShape<kRows, kParts>;
  constexpr bool kMade = kForm == Form::kMx;
  extern __shared__ __align__(16) std::uint8_t wide_memory[];
  const WideMemory<kRows, kParts> m{wide_memory + (-shared_address(wide_memory) & 1023)};
  const int rank = static_cast<int>(blockIdx.x) % kWideCluster, which = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0) - kWideFetchers<kForm>;
  const tiles::Work& first = job.works.work[0];
  const int row_tiles = first.tiles ? *first.tiles_used : job.row_tiles;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(m.full(i), 1 + (kMade ? 8 : 128));  // the image's bytes, and warps that decode, or pieces of weights
      barrier_init(m.empty(i), 8 * kWideCluster);      // warps that multiply, of both blocks
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_meet();
  if (which < 0) {
    registers_down<kMade ? 64 : Shape::kFetchRegisters>();
    if constexpr (kMade) make_weights<kRows, kMatrices, kParts>(job, m, row_tiles, rank);
    else wide_fetch<kRows, kMatrices, kParts>(job, m, row_tiles, rank);
  } else {
    registers_up<kMade ? 192 : Shape::kMultiplyRegisters>();
    std::conditional_t<kMade, MadeSums<kRows, kParts>, WideSums<kRows, kParts>> sums{job, m, which};
    // The second begins two chunks later, so that one multiplies while the other stores.
    if (which == 1 && static_cast<int>(blockIdx.x) / 2 < row_tiles * job.pairs) barrier_wait(m.full(min(2, min(job.chunks, Shape::kStages) - 1)), 0);
    wide_multiply<kForm, kRows, kMatrices, kParts>(job, row_tiles, which, sums);
  }
  __syncwarp();
  cluster_meet();  // neither leaves while the other sends it something
}

}  // namespace palimpsest::cuda::sm90
