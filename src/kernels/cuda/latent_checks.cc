#include "kernels/cuda/latent_checks.h"

#include <algorithm>

#include "kernels/cuda/latent_kernels.h"
#include "kernels/cuda/tensor_checks.h"
#include "kernels/latent_splits.h"

namespace palimpsest::cuda {
namespace {

constexpr std::int64_t kLatent = 512, kShared = 64, kKeys = 128, kValues = 128;

void check_list(const TensorChecks& check, const PagedList& list) {
  const Tensor& blocks = list.blocks;
  const std::int64_t tokens = blocks.sizes[1];
  if (tokens % 8 != 0 || tokens < 8) check.refuse("list.blocks", fmt::format("blocks of {} tokens, expected a multiple of 8", tokens));
  check.type("list.table", list.table, {DType::kI32});
  const Q8Rows& q8 = list.q8;
  check.type("list.blocks", blocks, {q8.defined() ? DType::kI8 : DType::kBF16});
  if (!q8.defined()) {
    check.sizes("list.blocks", blocks, {blocks.sizes[0], tokens, kLatent + kShared});
    return check.aligned("list.blocks", blocks, 16);
  }
  if (q8.left != kLatent || q8.right != kShared || q8.left_group != 192 || q8.right_group < kShared) {
    check.refuse("list.q8", fmt::format("rows of {} + {} codes in groups of {} and {}, expected 512 + 64 in groups of 192 and 64", q8.left, q8.right,
                                        q8.left_group, q8.right_group));
  }
  check.sizes("list.blocks", blocks, {blocks.sizes[0], tokens, q8.row_bytes()});
  if (reinterpret_cast<std::uintptr_t>(blocks.data) % 16 != 0 || blocks.strides[0] % 16 != 0) check.refuse("list.blocks", "blocks must begin at multiples of 16 bytes");
}

void check_ragged(const TensorChecks& check, const Tensor& cu, std::int64_t sequences) {
  check.type("cu_seqlens", cu, {DType::kI32, DType::kI64});
  check.sizes("cu_seqlens", cu, {sequences + 1});
}

}  // namespace

std::int64_t latent_decode_workspace(std::int64_t rows, std::int64_t heads, std::int64_t max_length) {
  return LatentDecodeRoom(rows, heads, max_length).bytes();
}

void check_latent_decode(const LatentDecodeArgs& a, std::int64_t max_length) {
  const TensorChecks check{"latent_decode"};
  check.type("q", a.q, {DType::kBF16, DType::kF32});
  const std::int64_t rows = a.q.sizes[0], heads = a.q.sizes[1], sequences = a.slots.sizes[0];
  check.sizes("q", a.q, {rows, heads, kKeys + kShared});
  check.aligned("q", a.q, dtype_size(a.q.dtype));
  if (heads < 1 || heads > 128) check.refuse("q", fmt::format("{} heads, expected 1 to 128", heads));
  check.type("kv_b", a.kv_b, {DType::kBF16});
  check.sizes("kv_b", a.kv_b, {heads * (kKeys + kValues), kLatent});
  check.aligned("kv_b", a.kv_b, 16);
  check_list(check, a.list);
  if (a.cu_seqlens.defined()) check_ragged(check, a.cu_seqlens, sequences);
  check.type("slots", a.slots, {DType::kI32});
  check.sizes("slots", a.slots, {a.cu_seqlens.defined() ? sequences : rows});
  check.type("past", a.past, {DType::kI64});
  check.sizes("past", a.past, {sequences});
  if (a.gate.defined()) {
    check.type("gate", a.gate, {a.q.dtype});
    check.sizes("gate", a.gate, {rows, heads, kValues});
    check.aligned("gate", a.gate, dtype_size(a.gate.dtype));
  }
  check.type("o", a.o, {DType::kBF16, DType::kF32, DType::kF64});
  check.sizes("o", a.o, {rows, heads, kValues});
  check.contiguous("o", a.o);
  if (a.kv_a.defined()) {
    if (a.cu_seqlens.defined()) check.refuse("kv_a", "given beside cu_seqlens: rows are written where each sequence has one");
    check.type("kv_a", a.kv_a, {DType::kF32});
    check.sizes("kv_a", a.kv_a, {rows, kLatent + kShared});
    check.aligned("kv_a", a.kv_a, 16);
    check.type("kv_a_layernorm", a.kv_a_layernorm, {DType::kF32});
    check.sizes("kv_a_layernorm", a.kv_a_layernorm, {kLatent});
    check.aligned("kv_a_layernorm", a.kv_a_layernorm, 16);
  }
  if (max_length < 1 || max_length > (std::int64_t{1} << 31) - 64) check.refuse("max_length", fmt::format("{}, expected 1 to 2^31 - 64", max_length));
  const std::int64_t need = latent_decode_workspace(rows, heads, max_length);
  if (!a.workspace.defined() || a.workspace.bytes() < need || reinterpret_cast<std::uintptr_t>(a.workspace.data) % 16 != 0) {
    check.refuse("workspace", fmt::format("{} bytes, at least {} are needed, at a multiple of 16", a.workspace.bytes(), need));
  }
}

void check_latent_prefill(const LatentPrefillArgs& a) {
  const TensorChecks check{"latent_prefill"};
  for (const auto& [field, t] : {std::pair{"q", &a.q}, {"k", &a.k}, {"k_pe", &a.k_pe}, {"v", &a.v}}) check.type(field, *t, {DType::kBF16});
  const std::int64_t rows = a.q.sizes[0], heads = a.q.sizes[1], keys = a.k.sizes[0];
  check.sizes("q", a.q, {rows, heads, kKeys + kShared});
  check.sizes("k", a.k, {keys, heads, kKeys});
  check.sizes("k_pe", a.k_pe, {keys, kShared});
  check.sizes("v", a.v, {keys, heads, kValues});
  for (const auto& [field, t] : {std::pair{"q", &a.q}, {"k", &a.k}, {"k_pe", &a.k_pe}, {"v", &a.v}}) check.aligned(field, *t, 16);
  check_ragged(check, a.cu_seqlens, a.cu_seqlens.sizes[0] - 1);
  if (a.cu_keys.defined()) {
    check.type("cu_keys", a.cu_keys, {a.cu_seqlens.dtype});
    check.sizes("cu_keys", a.cu_keys, {a.cu_seqlens.sizes[0]});
  } else {
    check.sizes("k", a.k, {rows, heads, kKeys});
  }
  if (a.gate.defined()) {
    check.type("gate", a.gate, {DType::kBF16});
    check.sizes("gate", a.gate, {rows, heads, kValues});
    check.aligned("gate", a.gate, 4);
  }
  check.type("o", a.o, {DType::kBF16, DType::kF32, DType::kF64});
  check.sizes("o", a.o, {rows, heads, kValues});
  check.contiguous("o", a.o);
  if (!a.carry.defined()) return;
  check.type("carry", a.carry, {DType::kF32});
  check.sizes("carry", a.carry, {rows, heads, 8});
  check.type("past", a.past, {DType::kI64});
  check.sizes("past", a.past, {a.cu_seqlens.sizes[0] - 1});
  check.type("o", a.o, {DType::kF32});
  if (!a.cu_keys.defined() || a.window % 128 != 0 || a.window_keys % 128 != 0 || a.window_keys < 128) {
    check.refuse("window", fmt::format("{} keys from position {}, expected multiples of 128, and cu_keys", a.window_keys, a.window));
  }
}

}  // namespace palimpsest::cuda
