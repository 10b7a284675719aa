#include "palimpsest/model.h"

#include <utility>

#include "base/file_memory.h"
#include "machine/memory.h"
#include "model/random_weights.h"
#include "model/weight_loader.h"
#include "model/weight_source.h"
#include "model/weight_upload.h"
#include "ops/device.h"
#include "ops/host_experts.h"

namespace palimpsest {
namespace {

/// Scales up to this many bytes in all are looked at while loading; beyond it an expert's are when it is first chosen.
constexpr std::uint64_t kEagerScaleBytes = 256u << 20;

}  // namespace

struct Model::Impl {
  std::filesystem::path path;
  std::unique_ptr<const ModelConfig> config;
  std::unique_ptr<WeightSource> source;
  Device* device = &host_device();
  Buffer on_device;  ///< the weights, where the device is not the host; behind it whoever still copies there, so that this ends first
  std::unique_ptr<WeightLoader> loader;  ///< owns what had to be copied
  std::int64_t table_bytes = 0;  ///< of experts there
  std::int64_t file_bytes = 0, owned_bytes = 0;
  std::vector<std::string> unused;
  std::int64_t unused_bytes = 0;
  std::int64_t held_bytes = 0;
  bool is_outline = false;
  WeightOrigin origin = WeightOrigin::kFiles;

  void load(const LoadOptions& options);
  void outline();
  Census open(OpenedModel opened);
  void hold(const LoadOptions& options);
  void finish(std::function<void(std::int64_t, std::int32_t)> verify);
  void note_sizes();
  void upload(const LoadOptions& options);
};

Census Model::Impl::open(OpenedModel opened) {
  config = std::move(opened.config);
  source = std::move(opened.source);
  loader = std::make_unique<WeightLoader>(*config, *source, is_outline);
  const Census census = value_or_throw(source->census());
  unused = source->unused();
  unused_bytes = static_cast<std::int64_t>(census.unused_bytes);
  return census;
}

void Model::Impl::finish(std::function<void(std::int64_t, std::int32_t)> verify) {
  loader->finish();
  loader->unchecked.clear();  // verify() needs no list
  note_sizes();
  loader->weights.experts = std::make_shared<MappedExperts>(std::move(loader->experts), std::move(verify));
}

void Model::Impl::note_sizes() {
  file_bytes = static_cast<std::int64_t>(source->file_bytes());
  owned_bytes = loader->owned_bytes();
}

/// Weights to the device, or to memory that it copies from; files and copies are given back.
void Model::Impl::upload(const LoadOptions& options) {
  loader->finish();
  note_sizes();
  WeightUpload upload(loader->weights, loader->experts, options.offload);
  on_device = upload.run(
      *device, options.on_progress, [this](const void* from, std::int64_t bytes, void* to) { return source->make(*device, from, bytes, to); },
      source->mappings(), {loader->unchecked, [this](std::int64_t spec) { value_or_throw(source->check(source->specs()[static_cast<std::size_t>(spec)])); }});
  loader->weights.stream = upload.host_bytes() > 0 ? upload.stream(on_device, ops::copy_queue(*device), config->moe) : nullptr;
  if (WeightStream* const stream = loader->weights.stream.get(); options.offload.compute && stream && stream->has_experts()) {
    const auto home = [stream](std::int64_t layer, Matrix& m) { stream->send_home(layer, m); };
    stream->compute_steps(std::make_unique<ops::HostExperts>(*device, expert_shapes(*config), home, options.offload.threads));
  }
  std::vector<Buffer> tables;
  for (const auto& experts : loader->experts) {
    tables.push_back(experts.empty() || device->kind() == DeviceKind::kCpu ? Buffer() : ops::expert_table(*device, experts));
    table_bytes += tables.back().bytes();
  }
  loader->weights.experts = std::make_shared<DeviceExperts>(std::move(loader->experts), std::move(tables), loader->weights.stream);
  loader->forget_copies();
  source.reset();
}

void Model::Impl::outline() {
  is_outline = true;
  auto opened = open_outline(path);
  origin = opened.origin;
  open(std::move(opened));
  for (std::size_t i = 0; i < source->specs().size(); ++i) loader->place(i, false);
  finish([](std::int64_t, std::int32_t) {});
}

/// Views of the files stay valid: their addresses do not change.
void Model::Impl::hold(const LoadOptions& options) {
  if (!options.copy && !options.lock) return;
  const auto bytes = static_cast<std::int64_t>(source->file_bytes());
  if (const std::int64_t available = machine::available_memory(); bytes > available)
    throw make_error(ErrorCode::kOutOfMemory, "the weights take {} bytes of memory to hold, {} are available; mapped files need not fit", bytes, available);
  for (const auto& mapping : source->mappings()) {
    if (options.copy) value_or_throw(base::copy_into_memory(mapping.bytes));
    if (options.lock) value_or_throw(base::lock_in_memory(mapping.bytes));
  }
  held_bytes = bytes;
}

void Model::Impl::load(const LoadOptions& options) {
  device = &ops::device(options.device);
  const bool on_host = options.device == DeviceKind::kCpu, elsewhere = !on_host || options.offload.any();
  if (elsewhere && (options.copy || options.lock))
    throw make_error(ErrorCode::kUsage, "weights on a device are neither held nor locked in the host's memory");
  if (options.random_weights && (options.copy || options.lock))
    throw make_error(ErrorCode::kUsage, "random weights come from no files that could be held or locked");
  const Census census = open(options.random_weights ? open_random_model(path, *options.random_weights, on_host) : open_model(path));
  check_offload(options.offload, *config);
  hold(options);
  const std::uint64_t scaled = census.mxfp4_bytes + census.int8_bytes + census.block_bytes[static_cast<std::size_t>(BlockType::kMxfp4)];
  // On their way elsewhere experts are checked as they pass: looked at before, they would be read from disk twice, or waited for without progress.
  const bool check_experts = !elsewhere && scaled / 17 <= kEagerScaleBytes;
  const auto total = static_cast<std::int64_t>(source->specs().size());
  for (std::int64_t i = 0; i < total; ++i) {
    loader->place(static_cast<std::size_t>(i), check_experts);
    if (options.on_progress && !elsewhere && (i % 512 == 511 || i + 1 == total)) options.on_progress(i + 1, total);
  }
  if (elsewhere) return upload(options);
  finish([this, check_experts](std::int64_t layer, std::int32_t expert) {
    if (!check_experts) loader->verify_expert(layer, expert);
  });
  if (options.prefetch && held_bytes == 0) source->will_need();
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

template <class Fill>
std::shared_ptr<const Model> Model::make(const std::filesystem::path& path, Fill fill) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  try {
    fill(*impl);
  } catch (Error& error) {
    if (error.text().find(path.string()) == std::string::npos) error.add_context(path.string());
    throw;
  }
  return std::shared_ptr<const Model>(new Model(std::move(impl)));
}

std::shared_ptr<const Model> Model::load(const std::filesystem::path& path, const LoadOptions& options) {
  return make(path, [&](Impl& impl) { impl.load(options); });
}
std::shared_ptr<const Model> Model::outline(const std::filesystem::path& path) {
  return make(path, [](Impl& impl) { impl.outline(); });
}

const ModelConfig& Model::config() const { return *impl_->config; }
const Weights& Model::weights() const { return impl_->loader->weights; }
const std::filesystem::path& Model::path() const { return impl_->path; }
std::int64_t Model::file_bytes() const { return impl_->file_bytes; }
Device& Model::device() const { return *impl_->device; }
std::int64_t Model::device_bytes() const { return impl_->on_device.bytes() + impl_->table_bytes; }
std::int64_t Model::held_bytes() const { return impl_->held_bytes; }
std::int64_t Model::owned_bytes() const { return impl_->owned_bytes; }
std::int64_t Model::vector_bytes() const { return impl_->loader->vector_bytes(); }
std::span<const std::int64_t> Model::role_bytes() const { return impl_->loader->role_bytes(); }
std::int64_t Model::unused_bytes() const { return impl_->unused_bytes; }
bool Model::is_outline() const { return impl_->is_outline; }
WeightOrigin Model::origin() const { return impl_->origin; }
const std::vector<std::string>& Model::unused_tensors() const { return impl_->unused; }

}  // namespace palimpsest
