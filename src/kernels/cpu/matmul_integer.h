#pragma once

#include "kernels/cpu/matmul.h"

namespace palimpsest::cpu {

/// Computes a part of a product with a quantised matrix over activations rounded to 8 or 16 bits (Activations::kQ8, kQ16). An output's
/// bits depend on its row of x and its row of W alone: they are the same on every target. scratch: 64-byte aligned, of the bytes that
/// the function for the same width says.
void matmul_q8_part(const MatmulPart& part, std::byte* scratch);
void matmul_q16_part(const MatmulPart& part, std::byte* scratch);
std::int64_t matmul_q8_scratch_bytes(std::int64_t k);
std::int64_t matmul_q16_scratch_bytes(std::int64_t k);

/// Whether these products use AVX512_VNNI on AVX3: where the machine has it, unless a test forbids it. No result depends on it.
bool uses_vnni();
/// For tests, not while kernels run; says whether they use it now.
bool allow_vnni(bool allowed);

}  // namespace palimpsest::cpu
