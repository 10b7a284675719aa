#include "convert/plan.h"

#include <algorithm>

#include "convert/quantise.h"

namespace palimpsest::convert {
namespace {

bool is_dense(Form form) { return form == Form::kBf16 || form == Form::kF16; }
DType dense_type(Form form) { return form == Form::kBf16 ? DType::kBF16 : DType::kF16; }

bool has_form(const StoredWeight& stored, Form form) {
  if (is_dense(form)) return stored.dense && stored.dense->dtype == dense_type(form);
  return form == Form::kInt8 ? stored.is_int8() : stored.is_mxfp4();
}

/// What a weight becomes; nothing: it stays.
std::optional<Form> new_form(const WeightSpec& spec, const StoredWeight& stored, const Options& options) {
  const std::optional<Form> wanted = spec.expert >= 0 && options.experts ? options.experts : options.weights;
  if (!wanted || !may_be_quantised(spec) || has_form(stored, *wanted)) return std::nullopt;
  if (is_dense(*wanted)) return wanted;
  if (stays_dense(spec.role) || quantised_shape(spec).cols % kGroup != 0) return std::nullopt;
  if (*wanted == Form::kInt8 && stored.is_mxfp4()) return std::nullopt;
  return wanted;
}

Item copy_of(const formats::TensorEntry& entry) {
  return {std::string(entry.name), entry.dtype, {entry.shape().begin(), entry.shape().end()}};
}

/// The matrix's name, whatever it is stored as.
std::string base_name(const StoredWeight& stored) {
  std::string name(stored.dense ? stored.dense->name : stored.codes->name);
  if (stored.is_mxfp4()) name.resize(name.size() - std::string_view("_packed").size());
  return name;
}

std::vector<Item> items_of(const PlannedWeight& weight) {
  const StoredWeight& source = weight.source;
  if (!weight.form) {
    if (source.dense) return {copy_of(*source.dense)};
    return {copy_of(*source.codes), copy_of(*source.scales)};
  }
  const std::string name = base_name(source);
  const auto [rows, cols] = quantised_shape(*weight.spec);
  switch (*weight.form) {
    case Form::kMxfp4:
      return {{name + "_packed", DType::kU8, {rows, cols / 2}}, {name + "_scale", DType::kU8, {rows, cols / kGroup}}};
    case Form::kInt8: return {{name, DType::kI8, {rows, cols}}, {name + "_scale", DType::kBF16, {rows, cols / kGroup}}};
    default: return {{name, dense_type(*weight.form), {weight.spec->sizes[0], weight.spec->sizes[1]}}};
  }
}

void cut_into_shards(Plan& plan, std::uint64_t shard_bytes) {
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const std::uint64_t bytes = plan.weights[i].bytes();
    if (plan.shards.empty() || plan.shards.back().bytes + bytes > shard_bytes) plan.shards.push_back({.name = {}, .begin = i, .end = i});
    plan.shards.back().end = i + 1;
    plan.shards.back().bytes += bytes;
    plan.bytes += bytes;
  }
  for (std::size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, plan.shards.size());
  }
}

}  // namespace

bool stays_dense(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedTokens:
    case WeightRole::kLmHead:
    case WeightRole::kPositions:
    case WeightRole::kRouter:
    case WeightRole::kSharedExpertGate:
    case WeightRole::kKdaDecayDown:
    case WeightRole::kKdaDecayUp:
    case WeightRole::kKdaBeta:
    case WeightRole::kPageDecay:
    case WeightRole::kPageBeta:
    case WeightRole::kPageBa:
    case WeightRole::kFeatureQ1:
    case WeightRole::kFeatureQ2:
    case WeightRole::kFeatureK1:
    case WeightRole::kFeatureK2: return true;
    default: return false;
  }
}

bool PlannedWeight::turned() const {
  if (!spec || !spec->transposed || !form) return false;
  return is_dense(*form) != (source.dense != nullptr);
}

std::uint64_t item_bytes(const Item& item) {
  std::uint64_t bytes = static_cast<std::uint64_t>(dtype_size(item.dtype));
  for (const std::int64_t size : item.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

std::uint64_t PlannedWeight::bytes() const {
  std::uint64_t sum = 0;
  for (const Item& item : items) sum += item_bytes(item);
  return sum;
}

std::string_view stored_name(const StoredWeight& stored) {
  return stored.is_mxfp4() ? "MXFP4" : stored.is_int8() ? "I8" : dtype_name(stored.dense->dtype);
}

Plan plan_conversion(const ModelConfig& config, const std::vector<WeightSpec>& specs, const formats::Checkpoint& checkpoint,
                     const Options& options) {
  Plan plan;
  plan.weights.reserve(specs.size());
  const auto entries = checkpoint.entries();
  std::vector<bool> used(entries.size());
  const auto add = [&](PlannedWeight weight) {
    for (const auto* entry : {weight.source.dense, weight.source.codes, weight.source.scales}) {
      if (entry) used[static_cast<std::size_t>(entry - entries.data())] = true;
    }
    weight.items = items_of(weight);
    plan.weights.push_back(std::move(weight));
  };
  for (const WeightSpec& spec : specs) {
    const StoredWeight stored = value_or_throw(locate_weight(config, spec, checkpoint));
    add({.spec = &spec, .source = stored, .form = new_form(spec, stored, options), .items = {}});
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!used[i] && !is_tied_head(config, entries[i].name)) add({.spec = nullptr, .source = {.dense = &entries[i]}, .form = std::nullopt, .items = {}});
  }
  cut_into_shards(plan, options.shard_bytes);
  return plan;
}

}  // namespace palimpsest::convert
