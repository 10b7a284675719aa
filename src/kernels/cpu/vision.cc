// What a vision tower does beside products, norms and attention. These take a few hundredths of its time, so they are plain loops.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/grain.h"
#include "kernels/cpu/vision_kernels.h"
#include "kernels/ref/load.h"

namespace palimpsest::cpu {
namespace {

/// Between which two trained rows (or columns) a row of the picture lies, and how near the second.
struct Place {
  std::int64_t low, high;
  float weight;
};

Place place(std::int64_t i, std::int64_t out, std::int64_t in) {
  const double at = std::max(0.0, (static_cast<double>(i) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5);
  const std::int64_t low = std::min(static_cast<std::int64_t>(at), in - 1);
  return {low, std::min(low + 1, in - 1), static_cast<float>(at - static_cast<double>(low))};
}

}  // namespace

void patch_positions(ExecContext& ctx, const PatchPositionsArgs& args) {
  const std::int64_t rows = args.table.size(0), columns = args.table.size(1), width = args.table.size(2), half = width / 2;
  const auto value = [&](std::int64_t row, std::int64_t column, std::int64_t c) {
    // The file promises no alignment: a copy of the bytes of one number.
    const std::int64_t size = dtype_size(args.table.dtype), i = (row * columns + column) * width + c;
    char bytes[8];
    std::memcpy(bytes, args.table.as<const char>() + i * size, static_cast<std::size_t>(size));
    if (args.table.dtype == DType::kF32) {
      float number;
      std::memcpy(&number, bytes, sizeof number);
      return number;
    }
    std::uint16_t number;
    std::memcpy(&number, bytes, sizeof number);
    return args.table.dtype == DType::kBF16 ? bf16_to_float(number) : f16_to_float(number);
  };
  ctx.pool.parallel_for(args.grid.patches(), row_grain(16 * width), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t cell = p % (args.grid.rows * args.grid.columns), frame = p / (args.grid.rows * args.grid.columns);
      const Place y = place(cell / args.grid.columns, args.grid.rows, rows), x = place(cell % args.grid.columns, args.grid.columns, columns);
      float* out = args.x.at<float>(p);
      for (std::int64_t c = 0; c < width; ++c) {
        const float upper = (1 - x.weight) * value(y.low, x.low, c) + x.weight * value(y.low, x.high, c);
        const float lower = (1 - x.weight) * value(y.high, x.low, c) + x.weight * value(y.high, x.high, c);
        out[c] += (1 - y.weight) * upper + y.weight * lower;
        if (args.grid.frames > 1) {
          const double angle = static_cast<double>(frame) * std::pow(10000.0, -static_cast<double>(c % half) / static_cast<double>(half));
          out[c] += static_cast<float>(c < half ? std::sin(angle) : std::cos(angle));
        }
      }
    }
  });
}

void patch_turns(ExecContext& ctx, const PatchTurnsArgs& args) {
  const std::int64_t n = args.head_dim / 4;
  ctx.pool.parallel_for(args.turns.size(0), row_grain(40 * n), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t x = begin; x < end; ++x) {
      for (std::int64_t i = 0; i < n; ++i) {
        const double angle = static_cast<double>(x) * std::pow(10000.0, -4.0 * static_cast<double>(i) / static_cast<double>(args.head_dim));
        *args.turns.at<float>(x, i, 0) = static_cast<float>(std::cos(angle));
        *args.turns.at<float>(x, i, 1) = static_cast<float>(std::sin(angle));
      }
    }
  });
}

void patch_rotary(ExecContext& ctx, const PatchRotaryArgs& args) {
  const std::int64_t heads = args.x.size(1), width = args.x.size(2);
  ctx.pool.parallel_for(args.x.size(0), row_grain(heads * width), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t cell = (args.first + t) % (args.grid.rows * args.grid.columns);
      const float *by_column = args.turns.at<const float>(cell % args.grid.columns), *by_row = args.turns.at<const float>(cell / args.grid.columns);
      for (std::int64_t h = 0; h < heads; ++h) {
        float* x = args.x.at<float>(t, h);
        for (std::int64_t i = 0; i < width / 4; ++i, x += 4) {
          const float cx = by_column[2 * i], sx = by_column[2 * i + 1], cy = by_row[2 * i], sy = by_row[2 * i + 1];
          const float a = x[0], b = x[1], c = x[2], d = x[3];
          x[0] = a * cx - b * sx;
          x[1] = a * sx + b * cx;
          x[2] = c * cy - d * sy;
          x[3] = c * sy + d * cy;
        }
      }
    }
  });
}

void gelu_erf(ExecContext& ctx, const GeluErfArgs& args) {
  ctx.pool.parallel_for(args.x.numel(), row_grain(32), [&](std::int64_t begin, std::int64_t end, int) {
    const float* x = args.x.as<const float>();
    float* y = args.y.as<float>();
    for (std::int64_t i = begin; i < end; ++i) y[i] = 0.5f * x[i] * (1 + std::erf(x[i] * 0.70710678118654752440f));
  });
}

void patch_merge(ExecContext& ctx, const PatchMergeArgs& args) {
  const std::int64_t width = args.x.size(1), cells = args.grid.columns / args.side, frames = args.grid.frames;
  ctx.pool.parallel_for(args.y.size(0), row_grain(args.y.size(1)), [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t top = (args.first + t) / cells * args.side, left = (args.first + t) % cells * args.side;
      for (std::int64_t i = 0; i < args.side * args.side; ++i) {
        float* out = args.y.at<float>(t) + i * width;
        const auto patch = [&](std::int64_t frame) {
          return args.x.at<const float>((frame * args.grid.rows + top + i / args.side) * args.grid.columns + left + i % args.side);
        };
        std::memcpy(out, patch(0), static_cast<std::size_t>(width) * sizeof(float));
        if (frames == 1) continue;
        for (std::int64_t frame = 1; frame < frames; ++frame) {
          for (std::int64_t c = 0; c < width; ++c) out[c] += patch(frame)[c];
        }
        for (std::int64_t c = 0; c < width; ++c) out[c] /= static_cast<float>(frames);
      }
    }
  });
}

}  // namespace palimpsest::cpu
