#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace palimpsest {

/// How products with quantised weights (ggml's blocks, MXFP4, 8-bit codes) read their activations; dense weights read them as F32 on a CPU.
/// On a CUDA device the forms are sums of two BF16 numbers (kQ16) or one (kQ8), and for BF16 and MXFP4 weights (docs/devices.md).
/// kQ16 and kQ8 round each 32 columns of a row to integers of 16 or 8 bits with one F32 scale (kernels/ref/activations.h) and multiply
/// integers, which takes fewer instructions than decoding the weights to F32. The error of an activation is at most half a step: 1/65534
/// or 1/254 of the largest of its 32.
/// kMxfp8 is for weights in MXFP4, as K3 was trained: there activations are MXFP8, 32 E4M3 numbers with a power of two as their scale, on every
/// device the same ones, multiplied exactly and added in F32. Other weights read them as with kQ16.
enum class Activations : std::uint8_t { kF32, kQ16, kQ8, kMxfp8 };
/// As flags say them; in the order above, which session files store.
inline constexpr std::array<std::string_view, 4> kActivationNames = {"f32", "q16", "q8", "mxfp8"};

/// The fastest whose perplexity stays within 0.1% of kF32's: docs/benchmarks.md, "Activations as integers".
inline constexpr Activations kDefaultActivations = Activations::kQ16;

}  // namespace palimpsest
