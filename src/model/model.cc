#include "palimpsest/model.h"

#include <utility>

#include "model/weight_loader.h"
#include "model/weight_source.h"

namespace palimpsest {
namespace {

/// Scales up to this many bytes in all are looked at while loading; beyond it an expert's are when it is first chosen.
constexpr std::uint64_t kEagerScaleBytes = 256u << 20;

}  // namespace

struct Model::Impl {
  std::filesystem::path path;
  std::unique_ptr<const ModelConfig> config;
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<WeightLoader> loader;  ///< owns what had to be copied
  std::vector<std::string> unused;

  void load(const LoadOptions& options);
};

void Model::Impl::load(const LoadOptions& options) {
  auto opened = open_model(path);
  config = std::move(opened.config);
  source = std::move(opened.source);
  loader = std::make_unique<WeightLoader>(*config, *source);
  const Census census = value_or_throw(source->census());
  const std::uint64_t scaled = census.mxfp4_bytes + census.int8_bytes + census.block_bytes[static_cast<std::size_t>(BlockType::kMxfp4)];
  const bool check_experts = scaled / 17 <= kEagerScaleBytes;
  const auto total = static_cast<std::int64_t>(source->specs().size());
  for (std::int64_t i = 0; i < total; ++i) {
    loader->place(static_cast<std::size_t>(i), check_experts);
    if (options.on_progress && (i % 512 == 511 || i + 1 == total)) options.on_progress(i + 1, total);
  }
  loader->finish();
  loader->weights.experts = std::make_shared<MappedExperts>(
      std::move(loader->experts), [this, check_experts](std::int64_t layer, std::int32_t expert) {
        if (!check_experts) loader->verify_expert(layer, expert);
      });
  unused = source->unused();
  if (options.prefetch) source->will_need();
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::shared_ptr<const Model> Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  try {
    impl->load(options);
  } catch (Error& error) {
    throw error.add_context(path.string());
  }
  return std::shared_ptr<const Model>(new Model(std::move(impl)));
}

const ModelConfig& Model::config() const { return *impl_->config; }
const Weights& Model::weights() const { return impl_->loader->weights; }
const std::filesystem::path& Model::path() const { return impl_->path; }
std::int64_t Model::file_bytes() const { return static_cast<std::int64_t>(impl_->source->file_bytes()); }
std::int64_t Model::owned_bytes() const { return impl_->loader->owned_bytes(); }
const std::vector<std::string>& Model::unused_tensors() const { return impl_->unused; }

}  // namespace palimpsest
