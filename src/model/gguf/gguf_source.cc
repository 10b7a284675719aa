#include "model/gguf/gguf_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "formats/quote.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/matrix_floats.h"
#include "model/tensor_problems.h"

namespace palimpsest {
namespace {

using formats::GgufTensor;
using formats::quote;

/// Sizes of 1 do not count: converters write convolution taps as [P, W], [P, 1, W] or [1, P, 1, W].
std::vector<std::int64_t> squeezed(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> sizes;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(sizes), [](auto size) { return size != 1; });
  return sizes;
}

bool is_page_decay(WeightRole role) { return role == WeightRole::kKdaALog || role == WeightRole::kPageALog; }

bool is_matrix(const WeightSpec& spec) { return spec.rank == 2; }

bool fits_type(const WeightSpec& spec, const GgufTensor& tensor) {
  return tensor.type->dtype ? is_weight_dtype(*tensor.type->dtype) : is_matrix(spec);
}

/// Some converters stack both halves of an expert's first step in one tensor.
constexpr std::string_view kGateUp = "ffn_gate_up_exps.weight";

}  // namespace

GgufSource::GgufSource(const ModelConfig& config, formats::Gguf file, bool outline)
    : config_(config), file_(std::move(file)), specs_(gguf_weight_spec(config)), outline_(outline),
      copies_(outline ? WeightCopies::counting(1) : WeightCopies()) {}

Result<const GgufTensor*> GgufSource::tensor(const WeightSpec& spec, const std::string& name, std::vector<std::int64_t> shape) const {
  const GgufTensor* found = file_.find(name);
  if (found && fits_type(spec, *found) && squeezed(found->shape()) == squeezed(shape)) return found;
  return fail(ErrorCode::kInvalidFile, "tensor {}: expected F32, F16{} [{}], found {}", quote(name), is_matrix(spec) ? ", BF16 or blocks" : " or BF16",
              fmt::join(shape, ", "), found ? formats::describe(*found) : "nothing");
}

Result<GgufSource::Stored> GgufSource::locate_latent(const WeightSpec& spec) const {
  const MlaConfig& mla = config_.mla;
  const auto k_b = tensor(spec, gguf_layer_name(spec.layer, "attn_k_b.weight"), {mla.num_heads, mla.kv_lora_rank, mla.qk_nope_head_dim});
  if (!k_b) return tl::make_unexpected(k_b.error());
  const auto v_b = tensor(spec, gguf_layer_name(spec.layer, "attn_v_b.weight"), {mla.num_heads, mla.v_head_dim, mla.kv_lora_rank});
  if (!v_b) return tl::make_unexpected(v_b.error());
  return Stored{{*k_b, *v_b}, 0};
}

Result<GgufSource::Stored> GgufSource::locate_expert(const WeightSpec& spec) const {
  const std::int64_t rows = spec.sizes[0], cols = spec.sizes[1], experts = config_.moe.num_experts;
  const std::string both = gguf_layer_name(spec.layer, kGateUp);
  if (spec.role != WeightRole::kExpertDown && file_.find(both)) {
    const auto stack = tensor(spec, both, {experts, 2 * rows, cols});
    if (!stack) return tl::make_unexpected(stack.error());
    return Stored{{*stack}, (2 * spec.expert + (spec.role == WeightRole::kExpertUp ? 1 : 0)) * rows};
  }
  const auto stack = tensor(spec, gguf_name(config_, spec), {experts, rows, cols});
  if (!stack) return tl::make_unexpected(stack.error());
  return Stored{{*stack}, spec.expert * rows};
}

Result<GgufSource::Stored> GgufSource::locate(const WeightSpec& spec) const {
  if (spec.expert >= 0) return locate_expert(spec);
  const std::string name = gguf_name(config_, spec);
  // Files from before k_b and v_b were stored apart have the whole.
  if (spec.role == WeightRole::kMlaKvUp && !file_.find(name)) return locate_latent(spec);
  const auto found = tensor(spec, name, {spec.sizes, spec.sizes + spec.rank});
  if (!found) return tl::make_unexpected(found.error());
  return Stored{{*found}, 0};
}

Matrix GgufSource::join_latent(const WeightSpec& spec, const Matrix& k_b, const Matrix& v_b) {
  const MlaConfig& mla = config_.mla;
  const std::int64_t rank = mla.kv_lora_rank, keys = mla.qk_nope_head_dim, values = mla.v_head_dim;
  // In the type of both where it is the same dense one.
  const bool alike = k_b.dense.defined() && v_b.dense.defined() && k_b.dense.dtype == v_b.dense.dtype;
  const DType dtype = alike ? k_b.dense.dtype : DType::kF32;
  Matrix matrix;
  if (outline_) {
    matrix.dense = Tensor::contiguous(copies_.allocate(spec.parameters() * dtype_size(dtype)), dtype, {spec.sizes[0], spec.sizes[1]});
    return matrix;
  }
  std::vector<float> joined(static_cast<std::size_t>(spec.parameters()));
  auto to = joined.begin();
  for (std::int64_t head = 0; head < mla.num_heads; ++head) {
    const std::vector<float> k = matrix_floats(k_b, head * rank, rank), v = matrix_floats(v_b, head * values, values);
    for (std::int64_t row = 0; row < keys; ++row) {
      for (std::int64_t col = 0; col < rank; ++col) *to++ = k[static_cast<std::size_t>(col * keys + row)];
    }
    to = std::copy(v.begin(), v.end(), to);
  }
  matrix.dense = copies_.dense(joined, spec.sizes[0], spec.sizes[1], dtype);
  return matrix;
}

Result<Matrix> GgufSource::logarithm(const WeightSpec& spec, const GgufTensor& stored) {
  const Tensor view = file_.view(stored);
  Matrix matrix;
  matrix.dense = copies_.f32(spec.parameters(), 1);
  for (std::int64_t i = 0; i < spec.parameters() && !outline_; ++i) {
    const double a = load_float(view, i);
    if (!(std::isfinite(a) && a < 0)) {
      return fail(ErrorCode::kInvalidFile, "tensor {}: value {}, which is -exp(A_log), must be negative, found {}", quote(stored.name), i, a);
    }
    matrix.dense.as<float>()[i] = static_cast<float>(std::log(-a));
  }
  return matrix;
}

Result<Matrix> GgufSource::find(const WeightSpec& spec) {
  const auto stored = locate(spec);
  if (!stored) return tl::make_unexpected(stored.error());
  const GgufTensor& first = *stored->tensors.front();
  if (is_page_decay(spec.role)) return logarithm(spec, first);
  if (stored->tensors.size() == 2) return join_latent(spec, file_.matrix(first), file_.matrix(*stored->tensors[1]));
  Matrix matrix = file_.matrix(first);
  if (!is_matrix(spec)) return matrix;
  if (spec.expert >= 0) return matrix.row_range(stored->first_row, spec.sizes[0]);
  if (matrix.dense.defined()) matrix.dense = matrix.dense.reshape({spec.sizes[0], spec.sizes[1]});
  if (!has_rope_rows(config_, spec.role)) return matrix;
  std::vector<WeightCopies::Run> runs;
  for (std::int64_t row = 0; row < spec.sizes[0]; ++row) runs.push_back({llama_rope_row(row, config_.attention.head_dim), 1});
  return copies_.rows(matrix, runs);
}

Result<bool> GgufSource::check(const WeightSpec& spec) const {
  const auto stored = locate(spec);
  if (!stored) return tl::make_unexpected(stored.error());
  for (const GgufTensor* tensor : stored->tensors) {
    if (tensor->type->block != BlockType::kMxfp4) continue;
    const Matrix all = file_.matrix(*tensor);
    const BlockTensor& blocks = (spec.expert >= 0 ? all.row_range(stored->first_row, spec.sizes[0]) : all).blocks;
    const auto* bytes = static_cast<const unsigned char*>(blocks.data);
    const std::int64_t per_row = blocks.cols / block_columns(BlockType::kMxfp4), size = block_bytes(BlockType::kMxfp4);
    for (std::int64_t i = 0; i < blocks.rows * per_row; ++i) {
      if (bytes[i * size] != 255) continue;
      return fail(ErrorCode::kInvalidFile, "tensor {}: scale [{}, {}] is 255, which is not a number in E8M0", quote(tensor->name),
                  stored->first_row + i / per_row, i % per_row);
    }
  }
  return true;
}

Result<Census> GgufSource::census() const {
  Census census;
  TensorProblems problems;
  const auto tensors = file_.tensors();
  std::vector<bool> used(tensors.size());
  const auto use = [&](const GgufTensor* tensor) {
    if (!tensor || used[static_cast<std::size_t>(tensor - tensors.data())]) return false;
    used[static_cast<std::size_t>(tensor - tensors.data())] = true;
    return true;
  };
  for (const WeightSpec& spec : specs_) {
    if (spec.expert > 0) continue;  // the stack of expert 0
    const auto stored = locate(spec);
    if (!stored) {
      problems.add(stored.error().text());
      use(file_.find(gguf_name(config_, spec)));  // what is there but wrong is not extra as well
      continue;
    }
    for (const GgufTensor* tensor : stored->tensors) {
      if (!use(tensor)) continue;
      ++census.text_tensors;
      census.text_bytes += tensor->bytes;
      if (tensor->type->dtype) census.dense_bytes[static_cast<std::size_t>(*tensor->type->dtype)] += tensor->bytes;
      if (tensor->type->block) census.block_bytes[static_cast<std::size_t>(*tensor->type->block)] += tensor->bytes;
    }
  }
  use(file_.find("rope_freqs.weight"));  // part of the configuration
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (used[i]) continue;
    problems.add(fmt::format("tensor {}: expected nothing of that name, found {}", quote(tensors[i].name), formats::describe(tensors[i])));
  }
  if (!problems.empty()) return tl::make_unexpected(problems.error("the metadata"));
  return census;
}

std::map<std::string, WeightSource::Amount> GgufSource::stored_types() const {
  std::map<std::string, Amount> types;
  for (const GgufTensor& tensor : file_.tensors()) {
    auto& [tensors, bytes] = types[std::string(tensor.type->name)];
    ++tensors;
    bytes += tensor.bytes;
  }
  return types;
}

void GgufSource::will_need() const {
  for (const auto& part : file_.parts()) part.file.will_need();
}

std::vector<WeightSource::Mapping> GgufSource::mappings() const {
  std::vector<Mapping> all;
  for (const auto& part : file_.parts()) all.push_back({part.path, part.file.bytes()});
  return all;
}

}  // namespace palimpsest
