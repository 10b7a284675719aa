#pragma once

// The arguments of the ops that only a vision tower uses. Conventions as in op_args.h. Rows are patches of one picture: patch (frame, row, column) of
// a grid is row (frame * rows + row) * columns + column. Columns and rows of a grid are at most 512.

#include <cstdint>

#include "palimpsest/tensor.h"

namespace palimpsest {

/// Patches of one picture (frames = 1) or of a few frames that are read together.
struct PatchGridSize {
  std::int64_t frames = 1, rows = 0, columns = 0;
  std::int64_t patches() const { return frames * rows * columns; }
};

/// x[p] += table at patch p, resampled from the trained grid where the picture's is another: bilinear between pixel centres, no antialiasing
/// (torch's interpolate, align_corners = false). With frames > 1 also + the sine and cosine row of the frame: width / 2 sines of frame *
/// 10000^(-i / (width / 2)), then as many cosines.
struct PatchPositionsArgs {
  Tensor table;  ///< F32, F16 or BF16 [table rows, table columns, width], at any address
  PatchGridSize grid;
  Tensor x;  ///< F32 [patches, width]
};

/// turns[x, i] = (cos, sin) of x * f_i, f_i = 10000^(-4i / D), angles in double: what patch_rotary turns by, for a row or column x.
struct PatchTurnsArgs {
  std::int64_t head_dim = 0;  ///< D, a multiple of 4
  Tensor turns;               ///< F32 [coordinates, D / 4, 2]
};

/// 2D rotary embedding of neighbouring channels, in place: channels (4i, 4i + 1) of every head are a complex number turned by column * f_i,
/// (4i + 2, 4i + 3) one turned by row * f_i. The column comes first. Row t of x is patch first + t.
struct PatchRotaryArgs {
  Tensor x;  ///< F32 [T, H, D], D a multiple of 4; rows may lie apart
  std::int64_t first = 0;
  PatchGridSize grid;
  Tensor turns;  ///< of PatchTurnsArgs, for as many coordinates as the grid has rows and columns, or more
};

/// Attention of all patches to all patches: o_h = softmax(scale * q_h K_h^T) V_h. No matrix of all pairs: key blocks are walked in order with an
/// online softmax.
struct PatchAttentionArgs {
  Tensor q;  ///< F32 [Tq, H, D]
  Tensor k;  ///< F32 [T, H, D]
  Tensor v;  ///< F32 [T, H, D]
  float scale = 1;
  Tensor o;  ///< F32 [Tq, H, D], not q
};

/// y = x/2 (1 + erf(x / sqrt 2)): the exact GELU.
struct GeluErfArgs {
  Tensor x;  ///< any shape
  Tensor y;  ///< same; may be x
};

/// Patches of a token side by side: y[token] = the patches of its cell, row by row, each the mean over the frames. Token t of y is token first + t
/// of the grid of cells, row-major.
struct PatchMergeArgs {
  Tensor x;  ///< F32 [patches, width]
  PatchGridSize grid;
  std::int64_t side = 2;  ///< patches a side of a cell; divides rows and columns of the grid
  std::int64_t first = 0;
  Tensor y;  ///< F32 [tokens, side * side * width]
};

}  // namespace palimpsest
