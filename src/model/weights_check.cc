#include "model/weights_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/number_formats.h"
#include "formats/quote.h"

namespace palimpsest {
namespace {

using formats::Checkpoint;
using formats::quote;
using formats::TensorEntry;

constexpr std::int64_t kMxGroup = 32;  // columns that share one scale

bool has_shape(const TensorEntry& entry, std::initializer_list<std::int64_t> shape) {
  return std::equal(shape.begin(), shape.end(), entry.shape().begin(), entry.shape().end());
}

bool fits(const TensorEntry& entry, const WeightSpec& spec) {
  if (!is_weight_dtype(entry.dtype)) return false;
  if (!spec.stored_as_heads) {
    return std::equal(spec.shape().begin(), spec.shape().end(), entry.shape().begin(), entry.shape().end());
  }
  const std::int64_t heads = spec.sizes[0], padded = (heads + 127) / 128 * 128;
  return entry.numel() == heads || entry.numel() == padded;
}

Result<StoredWeight> locate_mxfp4(const WeightSpec& spec, const std::string& name, const TensorEntry& codes,
                                  const Checkpoint& checkpoint) {
  const std::int64_t rows = spec.sizes[0], columns = spec.sizes[1];
  const auto mismatch = [&](const std::string& tensor, std::int64_t per_byte, const TensorEntry* found) {
    return fail(ErrorCode::kInvalidFile, "tensor {}: expected U8 [{}, {}], found {}", quote(tensor), rows,
                columns / per_byte, found ? describe(*found) : "nothing");
  };
  if (columns % kMxGroup != 0) {
    return fail(ErrorCode::kInvalidFile, "tensor {}: MXFP4 needs a multiple of {} columns, the config says [{}, {}]",
                quote(name + "_packed"), kMxGroup, rows, columns);
  }
  if (codes.dtype != DType::kU8 || !has_shape(codes, {rows, columns / 2})) return mismatch(name + "_packed", 2, &codes);
  const TensorEntry* scales = checkpoint.find(name + "_scale");
  if (!scales || scales->dtype != DType::kU8 || !has_shape(*scales, {rows, columns / kMxGroup})) {
    return mismatch(name + "_scale", kMxGroup, scales);
  }
  return StoredWeight{nullptr, &codes, scales};
}

/// Causal masks that old GPT-2 checkpoints carry as tensors.
bool is_mask_buffer(Family family, std::string_view name) {
  return family == Family::kGpt2 && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

}  // namespace

bool is_vision_tensor(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("mm_projector.") || name.starts_with("model.visual.");
}

float load_float(const Tensor& t, std::int64_t i) {
  const char* p = t.as<const char>() + i * dtype_size(t.dtype);
  std::uint16_t half = 0;
  float value = 0;
  if (t.dtype == DType::kF32) {
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  std::memcpy(&half, p, sizeof half);
  return t.dtype == DType::kBF16 ? bf16_to_float(half) : f16_to_float(half);
}

Result<StoredWeight> locate_weight(const ModelConfig& config, const WeightSpec& spec, const Checkpoint& checkpoint) {
  const std::string name = weight_name(config, spec);
  if (spec.may_be_mxfp4) {
    if (const TensorEntry* codes = checkpoint.find(name + "_packed")) return locate_mxfp4(spec, name, *codes, checkpoint);
  }
  const TensorEntry* entry = checkpoint.find(name);
  if (!entry) {
    if (const std::string alias = weight_alias(config, spec); !alias.empty()) entry = checkpoint.find(alias);
  }
  if (!entry) return fail(ErrorCode::kInvalidFile, "tensor {}: expected {}, found nothing", quote(name), describe(spec));
  if (!fits(*entry, spec)) {
    return fail(ErrorCode::kInvalidFile, "tensor {}: expected {}, found {}", quote(entry->name), describe(spec),
                formats::describe(*entry));
  }
  return StoredWeight{entry, nullptr, nullptr};
}

Result<Census> take_census(const ModelConfig& config, std::span<const WeightSpec> specs, const Checkpoint& checkpoint) {
  Census census;
  std::vector<std::string> problems;
  std::int64_t problem_count = 0;
  const auto report = [&](std::string text) {
    if (problem_count++ < kMaxListed) problems.push_back(std::move(text));
  };
  const auto entries = checkpoint.entries();
  std::vector<bool> used(entries.size());
  const auto use = [&](const TensorEntry* entry) {
    if (!entry) return std::uint64_t{0};
    used[static_cast<std::size_t>(entry - entries.data())] = true;
    ++census.text_tensors;
    census.text_bytes += entry->bytes();
    return entry->bytes();
  };

  for (const WeightSpec& spec : specs) {
    const auto stored = locate_weight(config, spec, checkpoint);
    if (!stored) {
      report(stored.error().text());
      // What is there but wrong is already reported, so it is not extra as well.
      const std::string name = weight_name(config, spec);
      for (const char* suffix : {"", "_packed", "_scale"}) use(checkpoint.find(name + suffix));
      continue;
    }
    if (stored->dense) census.dense_bytes[static_cast<std::size_t>(stored->dense->dtype)] += use(stored->dense);
    if (stored->codes) ++census.mxfp4_weights;
    census.mxfp4_bytes += use(stored->codes) + use(stored->scales);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (used[i] || is_mask_buffer(config.family, entries[i].name)) continue;
    if (is_vision_tensor(entries[i].name)) {
      ++census.vision_tensors;
      census.vision_bytes += entries[i].bytes();
    } else {
      report(fmt::format("tensor {}: expected nothing of that name, found {}", quote(entries[i].name),
                         formats::describe(entries[i])));
    }
  }
  if (problem_count == 0) return census;
  const std::int64_t rest = problem_count - static_cast<std::int64_t>(problems.size());
  return fail(ErrorCode::kInvalidFile, "the tensors do not fit config.json:\n  {}{}", fmt::join(problems, "\n  "),
              rest > 0 ? fmt::format("\n  and {} more", rest) : "");
}

Result<bool> check_values(const ModelConfig& config, const WeightSpec& spec, const StoredWeight& stored,
                          const Checkpoint& checkpoint) {
  if (stored.scales) return check_scales(stored.scales->name, checkpoint.view(*stored.scales));
  if (spec.role == WeightRole::kKdaALog) {
    return check_a_log(stored.dense->name, checkpoint.view(*stored.dense), config.kda.num_heads);
  }
  return true;
}

Result<bool> check_a_log(std::string_view name, const Tensor& stored, std::int64_t heads) {
  for (std::int64_t i = 0; i < stored.numel(); ++i) {
    const float value = load_float(stored, i);
    if (!std::isfinite(value)) {
      return fail(ErrorCode::kInvalidFile, "tensor {}: value {} is {}", quote(name), i, value);
    }
    if (i >= heads && value != 0) {
      return fail(ErrorCode::kInvalidFile, "tensor {}: value {}, behind the {} heads, must be 0, found {}", quote(name), i,
                  heads, value);
    }
  }
  return true;
}

Result<bool> check_scales(std::string_view name, const Tensor& scales) {
  const auto* bytes = scales.as<const unsigned char>();
  const void* bad = scales.numel() > 0 ? std::memchr(bytes, 255, static_cast<std::size_t>(scales.numel())) : nullptr;
  if (!bad) return true;
  const std::int64_t at = static_cast<const unsigned char*>(bad) - bytes;
  return fail(ErrorCode::kInvalidFile, "tensor {}: scale [{}, {}] is 255, which is not a number in E8M0", quote(name),
              at / scales.size(1), at % scales.size(1));
}

}  // namespace palimpsest
