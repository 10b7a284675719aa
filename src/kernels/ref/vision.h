#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/ref/load.h"
#include "kernels/vision_args.h"

namespace palimpsest::ref {

/// PatchPositionsArgs.
template <class T>
void patch_positions(const PatchPositionsArgs& a) {
  const std::int64_t rows = a.table.size(0), columns = a.table.size(1), width = a.table.size(2);
  struct Place {
    std::int64_t low, high;
    T weight;  // of high
  };
  const auto place = [](std::int64_t i, std::int64_t out, std::int64_t in) {
    const T at = std::max(T{0}, (static_cast<T>(i) + T{0.5}) * static_cast<T>(in) / static_cast<T>(out) - T{0.5});
    const auto low = std::min(static_cast<std::int64_t>(at), in - 1);
    return Place{low, std::min(low + 1, in - 1), at - static_cast<T>(low)};
  };
  for (std::int64_t p = 0; p < a.grid.patches(); ++p) {
    const std::int64_t cell = p % (a.grid.rows * a.grid.columns), frame = p / (a.grid.rows * a.grid.columns);
    const Place y = place(cell / a.grid.columns, a.grid.rows, rows), x = place(cell % a.grid.columns, a.grid.columns, columns);
    for (std::int64_t c = 0; c < width; ++c) {
      const auto at = [&](std::int64_t row, std::int64_t column) { return load<T>(a.table, (row * columns + column) * width + c); };
      const T upper = (1 - x.weight) * at(y.low, x.low) + x.weight * at(y.low, x.high);
      const T lower = (1 - x.weight) * at(y.high, x.low) + x.weight * at(y.high, x.high);
      T sum = load<T>(a.x, p * width + c) + (1 - y.weight) * upper + y.weight * lower;
      if (a.grid.frames > 1) {
        const std::int64_t half = width / 2;
        const T angle = static_cast<T>(frame) * std::pow(T{10000}, -static_cast<T>(c % half) / static_cast<T>(half));
        sum += c < half ? std::sin(angle) : std::cos(angle);
      }
      store<T>(a.x, p * width + c, sum);
    }
  }
}

/// PatchTurnsArgs.
template <class T>
void patch_turns(const PatchTurnsArgs& a) {
  for (std::int64_t x = 0; x < a.turns.size(0); ++x) {
    for (std::int64_t i = 0; i < a.head_dim / 4; ++i) {
      const double angle = static_cast<double>(x) * std::pow(10000.0, -4.0 * static_cast<double>(i) / static_cast<double>(a.head_dim));
      store<T>(a.turns, (x * (a.head_dim / 4) + i) * 2, static_cast<T>(std::cos(angle)));
      store<T>(a.turns, (x * (a.head_dim / 4) + i) * 2 + 1, static_cast<T>(std::sin(angle)));
    }
  }
}

/// PatchRotaryArgs.
template <class T>
void patch_rotary(const PatchRotaryArgs& a) {
  const std::int64_t heads = a.x.size(1), width = a.x.size(2);
  for (std::int64_t t = 0; t < a.x.size(0); ++t) {
    const std::int64_t cell = (a.first + t) % (a.grid.rows * a.grid.columns);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t pair = 0; pair < width / 2; ++pair) {
        const std::int64_t turn = ((pair % 2 == 0 ? cell % a.grid.columns : cell / a.grid.columns) * (width / 4) + pair / 2) * 2;
        const std::int64_t at = t * a.x.stride(0) + h * width + 2 * pair;
        const T re = load<T>(a.x, at), im = load<T>(a.x, at + 1), c = load<T>(a.turns, turn), s = load<T>(a.turns, turn + 1);
        store<T>(a.x, at, re * c - im * s);
        store<T>(a.x, at + 1, re * s + im * c);
      }
    }
  }
}

/// PatchAttentionArgs.
template <class T>
void patch_attention(const PatchAttentionArgs& a) {
  const std::int64_t heads = a.q.size(1), width = a.q.size(2), keys = a.k.size(0);
  for (std::int64_t t = 0; t < a.q.size(0); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto score = [&](std::int64_t key) {
        T sum = 0;
        for (std::int64_t c = 0; c < width; ++c) sum += load<T>(a.q, (t * heads + h) * width + c) * load<T>(a.k, (key * heads + h) * width + c);
        return sum * static_cast<T>(a.scale);
      };
      T top = score(0), total = 0;
      for (std::int64_t key = 1; key < keys; ++key) top = std::max(top, score(key));
      for (std::int64_t key = 0; key < keys; ++key) total += std::exp(score(key) - top);
      for (std::int64_t c = 0; c < width; ++c) store<T>(a.o, (t * heads + h) * width + c, 0);
      for (std::int64_t key = 0; key < keys; ++key) {
        const T weight = std::exp(score(key) - top) / total;
        for (std::int64_t c = 0; c < width; ++c) {
          const std::int64_t at = (t * heads + h) * width + c;
          store<T>(a.o, at, load<T>(a.o, at) + weight * load<T>(a.v, (key * heads + h) * width + c));
        }
      }
    }
  }
}

/// GeluErfArgs.
template <class T>
void gelu_erf(const GeluErfArgs& a) {
  for (std::int64_t i = 0; i < a.x.numel(); ++i) {
    const T x = load<T>(a.x, i);
    store<T>(a.y, i, x / 2 * (1 + std::erf(x / std::sqrt(T{2}))));
  }
}

/// PatchMergeArgs.
template <class T>
void patch_merge(const PatchMergeArgs& a) {
  const std::int64_t width = a.x.size(1), cells = a.grid.columns / a.side;
  for (std::int64_t t = 0; t < a.y.size(0); ++t) {
    const std::int64_t top = (a.first + t) / cells * a.side, left = (a.first + t) % cells * a.side;
    for (std::int64_t i = 0; i < a.side * a.side; ++i) {
      for (std::int64_t c = 0; c < width; ++c) {
        T sum = 0;
        for (std::int64_t frame = 0; frame < a.grid.frames; ++frame) {
          const std::int64_t patch = (frame * a.grid.rows + top + i / a.side) * a.grid.columns + left + i % a.side;
          sum += load<T>(a.x, patch * width + c);
        }
        store<T>(a.y, (t * a.side * a.side + i) * width + c, sum / static_cast<T>(a.grid.frames));
      }
    }
  }
}

}  // namespace palimpsest::ref
