#include "model/random_weights.h"

#include <cmath>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "formats/gguf.h"
#include "ops/device.h"

namespace palimpsest {
namespace {

/// FNV-1a.
std::uint64_t key_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3ull;
  return hash ^ seed * 0x9e3779b97f4a7c15ull;
}

/// Where the values of a dense weight lie.
std::pair<float, float> range_of(const WeightSpec& spec, std::string_view leaf) {
  switch (spec.role) {
    case WeightRole::kKdaALog:
    case WeightRole::kPageALog: return {0.0f, 2.75f};  // rates of 1 to 16
    case WeightRole::kKdaDtBias:
    case WeightRole::kPageDtBias: return {-6.0f, -2.0f};
    case WeightRole::kRouterBias: return {-0.01f, 0.01f};
    case WeightRole::kEmbedTokens: return {-1.7f, 1.7f};
    default: break;
  }
  if (spec.rank == 1) {
    if (leaf.ends_with("bias")) return {-0.02f, 0.02f};
    return spec.plus_one ? std::pair(0.0f, 0.0f) : std::pair(1.0f, 1.0f);  // a norm
  }
  // Products and convolutions keep the size of their input.
  const auto terms = static_cast<float>(spec.rank == 3 ? spec.sizes[2] : spec.transposed ? spec.sizes[0] : spec.sizes[1]);
  const float most = std::sqrt(3.0f / terms);
  return {-most, most};
}

class RandomSource final : public WeightSource {
 public:
  RandomSource(const ModelConfig& config, std::unique_ptr<WeightSource> outline, std::uint64_t seed, bool on_host)
      : config_(config), outline_(std::move(outline)), seed_(seed), on_host_(on_host),
        memory_(static_cast<std::int64_t>(outline_->file_bytes() + 256 * 2 * outline_->specs().size())) {}

  const std::vector<WeightSpec>& specs() const override { return outline_->specs(); }
  Result<Matrix> find(const WeightSpec& spec) override {
    Result<Matrix> matrix = outline_->find(spec);
    if (!matrix) return matrix;
    const std::string name = weight_name(config_, spec);
    const auto cols = static_cast<float>(matrix->cols());
    if (matrix->dense.defined()) {
      const auto [low, high] = range_of(spec, weight_leaf(config_, spec.role));
      place(matrix->dense, {key_of(name, seed_), matrix->dense.dtype, low, high});
    } else if (matrix->is_mx()) {
      // The 16 codes have a mean square of 8.6.
      const auto scale = 127 + std::lround(std::log2(1 / std::sqrt(8.6f * cols)));
      place(matrix->mx.codes, {key_of(name, seed_), DType::kU8, 0, 256});
      place(matrix->mx.scales, {0, DType::kU8, static_cast<float>(scale), static_cast<float>(scale)});
    } else {
      const float scale = std::sqrt(3 / cols) / 127;
      place(matrix->int8.codes, {key_of(name, seed_), DType::kI8, -127, 128});
      place(matrix->int8.scales, {0, matrix->int8.scales.dtype, scale, scale});
    }
    if (on_host_) need_values(*matrix);
    return matrix;
  }
  Result<bool> check(const WeightSpec&) const override { return true; }
  Result<Census> census() const override { return outline_->census(); }
  std::vector<std::string> unused() const override { return {}; }
  std::map<std::string, Amount> stored_types() const override { return outline_->stored_types(); }
  std::size_t file_count() const override { return 0; }
  std::uint64_t file_bytes() const override { return outline_->file_bytes(); }
  std::int64_t owned_bytes() const override { return 0; }
  std::vector<Mapping> mappings() const override { return {}; }
  void will_need() const override {}

  void need_values(const Matrix& matrix) override {
    for (const Tensor* t : {&matrix.dense, &matrix.mx.codes, &matrix.mx.scales, &matrix.int8.codes, &matrix.int8.scales}) {
      if (t->defined()) make(host_device(), t->data, t->bytes(), t->data);
    }
  }
  bool make(Device& device, const void* from, std::int64_t bytes, void* to) override {
    const auto* begin = static_cast<const std::byte*>(from);
    auto found = fills_.upper_bound(begin);
    if (found == fills_.begin()) return false;
    --found;
    const std::int64_t offset = begin - found->first, size = dtype_size(found->second.fill.dtype);
    if (offset + bytes > found->second.bytes) return false;
    ops::random_fill(device, found->second.fill, offset / size, bytes / size, to);
    return true;
  }

 private:
  struct Filled {
    RandomFill fill;
    std::int64_t bytes;
  };
  void place(Tensor& t, const RandomFill& fill) {
    t.data = memory_.data() + used_;
    PALIMPSEST_CHECK(used_ + t.bytes() <= memory_.bytes(), "each weight is found once");
    fills_[memory_.data() + used_] = {fill, t.bytes()};
    used_ += (t.bytes() + 255) / 256 * 256;
  }

  const ModelConfig& config_;
  std::unique_ptr<WeightSource> outline_;
  std::uint64_t seed_;
  bool on_host_;
  Buffer memory_;  ///< addresses; taken from the system where values are made
  std::int64_t used_ = 0;
  std::map<const std::byte*, Filled> fills_;  ///< by where they begin
};

}  // namespace

OpenedModel open_random_model(const std::filesystem::path& path, std::uint64_t seed, bool on_host) {
  if (formats::is_gguf(path)) throw make_error(ErrorCode::kUnsupported, "{}: random weights take their shapes from a config.json, not from a GGUF file", path.string());
  OutlinedModel outline = open_outline(path);
  OpenedModel opened;
  opened.config = std::move(outline.config);
  opened.source = std::make_unique<RandomSource>(*opened.config, std::move(outline.source), seed, on_host);
  return opened;
}

}  // namespace palimpsest
