#include "model/weights_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/number_formats.h"
#include "formats/quote.h"
#include "model/tensor_problems.h"

namespace palimpsest {
namespace {

using formats::Checkpoint;
using formats::quote;
using formats::TensorEntry;

constexpr std::int64_t kGroup = 32;  // columns that share one scale

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

/// `base`: name of the matrix; `codes`: what was found for it.
Result<StoredWeight> locate_quantised(const WeightSpec& spec, const std::string& base, const TensorEntry& codes,
                                      const Checkpoint& checkpoint) {
  const auto [rows, columns] = quantised_shape(spec);
  const bool mxfp4 = codes.dtype != DType::kI8;
  const std::int64_t code_columns = mxfp4 ? columns / 2 : columns;
  if (columns % kGroup != 0) {
    return fail(ErrorCode::kInvalidFile, "tensor {}: {} needs a multiple of {} columns, the config says [{}, {}]",
                quote(codes.name), mxfp4 ? "MXFP4" : "I8", kGroup, rows, columns);
  }
  if ((mxfp4 && codes.dtype != DType::kU8) || !has_shape(codes, {rows, code_columns})) {
    return fail(ErrorCode::kInvalidFile, "tensor {}: expected {} [{}, {}], found {}", quote(codes.name), mxfp4 ? "U8" : "I8",
                rows, code_columns, formats::describe(codes));
  }
  const TensorEntry* scales = checkpoint.find(base + "_scale");
  const auto fits_code = [mxfp4](DType dtype) {
    return mxfp4 ? dtype == DType::kU8 : dtype == DType::kBF16 || dtype == DType::kF32;
  };
  if (!scales || !fits_code(scales->dtype) || !has_shape(*scales, {rows, columns / kGroup})) {
    return fail(ErrorCode::kInvalidFile, "tensor {}: expected {} [{}, {}], found {}", quote(base + "_scale"),
                mxfp4 ? "U8" : "BF16 or F32", rows, columns / kGroup, scales ? formats::describe(*scales) : "nothing");
  }
  return StoredWeight{nullptr, &codes, scales};
}

/// Nothing when no tensor bears the name.
std::optional<Result<StoredWeight>> locate_under(const std::string& name, const WeightSpec& spec, const Checkpoint& checkpoint) {
  if (may_be_quantised(spec)) {
    if (const TensorEntry* codes = checkpoint.find(name + "_packed")) return locate_quantised(spec, name, *codes, checkpoint);
  }
  const TensorEntry* entry = checkpoint.find(name);
  if (!entry) return std::nullopt;
  if (may_be_quantised(spec) && entry->dtype == DType::kI8) return locate_quantised(spec, name, *entry, checkpoint);
  if (!fits(*entry, spec)) {
    return fail(ErrorCode::kInvalidFile, "tensor {}: expected {}, found {}", quote(entry->name), describe(spec),
                formats::describe(*entry));
  }
  return StoredWeight{entry, nullptr, nullptr};
}

/// What old checkpoints carry as tensors and the configuration says too: causal masks of GPT-2, rotary frequencies of Llama.
bool is_buffer(Family family, std::string_view name) {
  if (family == Family::kLlama) return name.ends_with(".rotary_emb.inv_freq");
  return family == Family::kGpt2 && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

}  // namespace

bool is_tied_head(const ModelConfig& config, std::string_view name) {
  return config.tie_word_embeddings && name.ends_with("lm_head.weight") && name == weight_name(config, {.role = WeightRole::kLmHead});
}

bool is_unused_tensor(const ModelConfig& config, std::string_view name) {
  constexpr std::string_view kBeginnings[] = {"vision_tower.", "mm_projector.", "model.visual.", "mtp."};
  return is_tied_head(config, name) ||
         std::any_of(std::begin(kBeginnings), std::end(kBeginnings), [&](std::string_view beginning) { return name.starts_with(beginning); });
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
  if (auto found = locate_under(name, spec, checkpoint)) return std::move(*found);
  if (const std::string alias = weight_alias(config, spec); !alias.empty()) {
    if (auto found = locate_under(alias, spec, checkpoint)) return std::move(*found);
  }
  return fail(ErrorCode::kInvalidFile, "tensor {}: expected {}, found nothing", quote(name), describe(spec));
}

Result<Census> take_census(const ModelConfig& config, std::span<const WeightSpec> specs, const Checkpoint& checkpoint,
                           std::vector<StoredWeight>* located) {
  Census census;
  std::vector<StoredWeight> all;
  all.reserve(specs.size());
  TensorProblems problems;
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
      problems.add(stored.error().text());
      // What is there but wrong is already reported, so it is not extra as well.
      const std::string name = weight_name(config, spec);
      for (const char* suffix : {"", "_packed", "_scale"}) use(checkpoint.find(name + suffix));
      continue;
    }
    all.push_back(*stored);
    if (stored->dense) census.dense_bytes[static_cast<std::size_t>(stored->dense->dtype)] += use(stored->dense);
    const std::uint64_t bytes = use(stored->codes) + use(stored->scales);
    if (stored->is_mxfp4()) {
      ++census.mxfp4_weights;
      census.mxfp4_bytes += bytes;
    } else if (stored->is_int8()) {
      ++census.int8_weights;
      census.int8_bytes += bytes;
    }
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (used[i] || is_buffer(config.family, entries[i].name)) continue;
    const bool other_head = is_tied_head(config, entries[i].name) && !has_shape(entries[i], {config.vocab_size, config.hidden_size});
    if (is_unused_tensor(config, entries[i].name) && !other_head) {
      ++census.unused_tensors;
      census.unused_bytes += entries[i].bytes();
    } else if (other_head) {
      problems.add(fmt::format("tensor {}: tied to the embedding [{}, {}], found {}", quote(entries[i].name), config.vocab_size,
                               config.hidden_size, formats::describe(entries[i])));
    } else {
      problems.add(fmt::format("tensor {}: expected nothing of that name, found {}", quote(entries[i].name),
                               formats::describe(entries[i])));
    }
  }
  if (!problems.empty()) return tl::make_unexpected(problems.error("config.json"));
  if (located) *located = std::move(all);
  return census;
}

Result<bool> check_values(const ModelConfig& config, const WeightSpec& spec, const StoredWeight& stored,
                          const Checkpoint& checkpoint) {
  if (stored.scales) {
    const auto check = stored.is_int8() ? check_float_scales : check_scales;
    return check(stored.scales->name, checkpoint.view(*stored.scales));
  }
  if (spec.role == WeightRole::kKdaALog) {
    return check_a_log(stored.dense->name, checkpoint.view(*stored.dense), config.kda.value_heads());
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

Result<bool> check_float_scales(std::string_view name, const Tensor& scales) {
  for (std::int64_t i = 0; i < scales.numel(); ++i) {
    if (const float value = load_float(scales, i); !std::isfinite(value)) {
      return fail(ErrorCode::kInvalidFile, "tensor {}: scale [{}, {}] is {}", quote(name), i / scales.size(1), i % scales.size(1), value);
    }
  }
  return true;
}

}  // namespace palimpsest
