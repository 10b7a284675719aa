// What knows where a row stands in its sequence: positions, rotation, short convolution, rows of lists.

#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/append_piece.cuh"
#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/plain/functions.cuh"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain_kernels.h"

namespace palimpsest::cuda {
namespace plain {
namespace {

/// Where a row of the batch belongs.
struct Place {
  std::int64_t sequence, position;
};
__device__ Place place_of(const RaggedRows& rows, const Tensor& past, std::int64_t row) {
  const auto* cu = as<const std::int64_t>(rows.cu_seqlens);
  const std::int64_t n = sequence_of(cu, rows.slots.sizes[0], row);
  return {n, as<const std::int64_t>(past)[n] + row - cu[n]};
}

struct Position {
  PositionsArgs a;
  __device__ void operator()(std::int64_t row) const { as<std::int32_t>(a.out)[row] = static_cast<std::int32_t>(place_of(a.rows, a.past, row).position); }
};

struct RowPlace {
  RaggedRows rows;
  Tensor past, slots, positions;
  __device__ void operator()(std::int64_t row) const {
    const Place place = place_of(rows, past, row);
    as<std::int32_t>(slots)[row] = as<const std::int32_t>(rows.slots)[place.sequence];
    as<std::int64_t>(positions)[row] = place.position;
  }
};

struct Angle {
  RotaryTableArgs a;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t n = a.inv_freq.sizes[0], row = i / n;
    const double angle = static_cast<double>(place_of(a.rows, a.past, row).position) * as<const double>(a.inv_freq)[i % n];
    as<float>(a.cos)[i] = static_cast<float>(cos(angle) * a.attention_factor);
    as<float>(a.sin)[i] = static_cast<float>(sin(angle) * a.attention_factor);
  }
};

struct Rotate {
  RotaryArgs a;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t heads = a.x.sizes[1], width = a.x.sizes[2], n = a.cos.sizes[1], row = i / n / heads;
    float* x = as<float>(a.x) + i / n * width + i % n;
    const float c = as<const float>(a.cos)[row * n + i % n], s = as<const float>(a.sin)[row * n + i % n], low = x[0], high = x[n];
    x[0] = low * c - high * s;
    x[n] = high * c + low * s;
  }
};

struct AppendPiece {
  LatentAppendArgs a;
  std::int64_t pieces;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = i / pieces, r = a.latent.sizes[1];
    const Place place = place_of(a.rows, a.past, row);
    append_piece(a.list, as<const std::int32_t>(a.rows.slots)[place.sequence], place.position, i % pieces, [&](std::int64_t c) {
      return c < r ? as<const float>(a.latent)[row * a.latent.strides[0] + c] : as<const float>(a.k_pe)[row * a.k_pe.strides[0] + c - r];
    });
  }
};

/// A convolution of one tap has no history.
struct OneTap {
  ShortConvArgs a;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t channels = a.x.sizes[1], t = i / channels, c = i % channels;
    const float y = as<const float>(a.weight)[c] * as<const float>(a.x)[t * a.x.strides[0] + c];
    as<float>(a.y)[i] = a.silu ? apply(Unary::kSilu, y) : y;
  }
};

}  // namespace

void positions(const PositionsArgs& a, void* stream) { for_each(a.out.sizes[0], Position{a}, stream, "positions"); }
void rotary_table(const RotaryTableArgs& a, void* stream) { for_each(a.cos.numel(), Angle{a}, stream, "rotary_table"); }
void rotary(const RotaryArgs& a, void* stream) { for_each(a.x.sizes[0] * a.x.sizes[1] * a.cos.sizes[1], Rotate{a}, stream, "rotary"); }

void latent_append(const LatentAppendArgs& a, void* stream) {
  const std::int64_t pieces = list_pieces(a.list);
  for_each(a.latent.sizes[0] * pieces, AppendPiece{a, pieces}, stream, "latent_append");
}

void short_conv(const ShortConvArgs& a, void* stream) {
  if (a.x.numel() == 0) return;  // tails stay as they are
  if (a.weight.sizes[1] == 1) return for_each(a.x.numel(), OneTap{a}, stream, "short_conv");
  cuda::short_conv(a, stream);
}

}  // namespace plain

void row_places(const RaggedRows& rows, const Tensor& past, const Tensor& slots, const Tensor& positions, void* stream) {
  plain::for_each(slots.sizes[0], plain::RowPlace{rows, past, slots, positions}, stream, "row_places");
}

}  // namespace palimpsest::cuda
