#include "cli/setup.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "cli/budget.h"
#include "cli/io.h"
#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "machine/machine.h"
#include "machine/memory.h"
#include "model/state_spec.h"
#include "model/weight_upload.h"
#include "ops/host_experts.h"
#include "plan/memory_plan.h"
#include "report/numbers.h"
#include "report/progress.h"

namespace palimpsest::cli {
namespace {

/// A GGUF file has no place for one.
formats::GenerationConfig generation_config(const std::string& path) {
  return formats::is_gguf(path) ? formats::GenerationConfig{}
                                : formats::load_generation_config(model_folder(path));
}

/// Of the largest picture that memory is planned for: where one may well come.
std::int64_t planned_patches(const Options& options) {
  const bool runs = options.command == Command::kRun && (!options.images.empty() || options.image_tokens);
  if (!runs && options.command != Command::kServe && options.command != Command::kPlan) return 0;
  try {
    const auto config = vision_config(options);
    return config ? config->most_patches() : 0;
  } catch (const Error&) {  // a text model runs whatever its checkpoint says about eyes
    return 0;
  }
}

}  // namespace

std::filesystem::path model_folder(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw make_error(ErrorCode::kIo, "{}: no such file or folder", path);
  }
  if (std::filesystem::is_directory(path, error)) return path;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent;
}

std::shared_ptr<const Model> load_model(const Options& options) {
  model_folder(options.model);
  report::ProgressBar bar({.title = "loading " + options.model, .bytes = true}, stderr,
                          report::inspect_terminal(stderr));
  LoadOptions load;
  load.on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
  load.prefetch = true;
  load.copy = options.no_mmap;
  load.lock = options.mlock;
  load.device = options.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
  load.offload = weight_offload(options);
  if (options.random_weights) load.random_weights = static_cast<std::uint64_t>(*options.random_weights);
  std::shared_ptr<const Model> model = Model::load(options.model, load);
  bar.finish();
  if (!model->unused_tensors().empty()) {
    log::info("{} tensors that the text model does not use, the first is {}",
              model->unused_tensors().size(), model->unused_tensors().front());
  }
  return model;
}

std::optional<VisionConfig> vision_config(const Options& options) {
  if (options.image_tokens == 0) return std::nullopt;
  auto config = load_vision_config(options.model);
  if (config && options.image_tokens) config->patch_limit = std::min(config->patch_limit, *options.image_tokens * config->cell_patches());
  return config;
}

WeightOffload weight_offload(const Options& options) {
  const std::int64_t threads = options.bench_threads ? std::atoll(options.bench_threads->c_str()) : options.threads;  // the first of a list: the model is loaded once
  return {.device_layers = options.gpu_layers, .experts = options.cpu_moe, .compute = options.host_experts == "compute", .threads = static_cast<int>(std::clamp<std::int64_t>(threads, 0, 1024))};
}

std::optional<HostExpertsChoice> weigh_host_experts(const Options& options, const Model& outline, const DecodeCost& cost) {
  if (!weight_offload(options).any()) return std::nullopt;
  check_offload(weight_offload(options), outline.config());
  const BusBytes step = bus_bytes(weight_sizes(outline), weight_offload(options), outline.config().moe, 1);
  if (step.experts == 0 && options.host_experts == "compute") throw make_error(ErrorCode::kUsage, "--host-experts compute: no routed experts of this model stay with the host");
  if (step.experts == 0) return std::nullopt;
  const double reads = measure_memory_reads(ops::HostExperts::threads_or_default(static_cast<int>(options.threads)));
  return HostExpertsChoice{host_experts_speed(cost, step, *find_device("h200"), reads), reads};
}

void choose_host_experts(Options& options) {
  if (!weight_offload(options).any() || options.host_experts == "stream") return;
  model_folder(options.model);
  const auto outline = Model::outline(options.model);
  const auto choice = weigh_host_experts(options, *outline, decode_cost(*outline, 0, DType::kBF16));
  if (options.host_experts.value_or("auto") == "auto") options.host_experts = choice && choice->speed.computes() ? "compute" : "stream";
  if (choice) {
    log::info("experts of steps: {} (at most {:.3g} tokens/s over the bus, {:.3g} by the host's cores, which read {:.3g} GB/s)",
              *options.host_experts, choice->speed.stream, choice->speed.compute, choice->reads / 1e9);
  }
}

SessionOptions session_options(const Options& options) {
  SessionOptions session;
  session.threads = static_cast<int>(options.threads);
  session.pin_threads = options.pin;
  session.context = options.ctx_size;
  if (options.ubatch > 0) session.ubatch = options.ubatch;
  else if (!options.budget) session.long_ubatch = 2048;
  session.cache_type = *parse_list_type(options.cache_type);
  session.page_type = options.page_type == "bf16" ? DType::kBF16 : DType::kF32;
  const auto* form = std::find(kActivationNames.begin(), kActivationNames.end(), options.activations);
  if (form != kActivationNames.end()) session.activations = static_cast<Activations>(form - kActivationNames.begin());
  session.cache_bytes = snapshot_bytes(options);
  if (options.cache_disk) {
    session.cache_disk = *options.cache_disk;
    session.cache_disk_bytes = parse_size("--cache-disk-size", options.cache_disk_size, 1 << 20, true);
  }
  session.saved_snapshot_bytes =
      parse_size("--session-snapshots", options.session_snapshots, 1 << 20, true);
  session.picture_patches = planned_patches(options);
  return session;
}

EngineOptions engine_options(const Options& options) {
  const SessionOptions session = session_options(options);
  EngineOptions engine;
  engine.threads = session.threads;
  engine.sequences = options.parallel;
  engine.context = session.context;
  engine.ubatch = session.ubatch;
  engine.cache_type = session.cache_type;
  engine.page_type = session.page_type;
  engine.activations = session.activations;
  if (options.cache_ram) engine.cache_bytes = session.cache_bytes;
  engine.suspended_bytes = options.suspended_bytes;
  engine.cache_disk = session.cache_disk;
  engine.cache_disk_bytes = session.cache_disk_bytes;
  engine.picture_patches = session.picture_patches;
  return engine;
}

SessionOptions with_default_types(SessionOptions session) {
  session.cache_type = SessionOptions{}.cache_type;
  session.page_type = SessionOptions{}.page_type;
  return session;
}

std::int64_t default_cache_bytes(const Model& model, const SessionOptions& options) {
  constexpr std::int64_t kSnapshots = 32, kBlock = 64;
  const MemoryPlan plan = Session::plan(model, options);
  const std::int64_t one = plan.pages + plan.logits + kBlock * plan.list_per_token;
  const std::int64_t available = memory_for(model);
  std::int64_t most = available / 8;
  if (options.context > 0) most = std::min(most, (available - plan.total()) / 2);
  return std::clamp<std::int64_t>(most, 0, kSnapshots * one);
}

std::optional<Tokenizer> find_tokenizer(const std::string& path,
                                        std::optional<std::int64_t> vocab_size) {
  const bool is_gguf = formats::is_gguf(path);
  const std::filesystem::path place = is_gguf ? std::filesystem::path(path) : model_folder(path);
  if (!Tokenizer::available(place)) {
    if (is_gguf) value_or_throw(formats::Gguf::open(place));  // a damaged file is not one without
    return std::nullopt;
  }
  return Tokenizer::load(place, vocab_size);
}

Tokenizer require_tokenizer(const std::string& path, std::optional<std::int64_t> vocab_size,
                            std::string_view instead) {
  std::optional<Tokenizer> tokenizer = find_tokenizer(path, vocab_size);
  if (!tokenizer) {
    throw make_error(ErrorCode::kIo,
                     "{}: there is no tokenizer (tiktoken.model, tokenizer.json, or "
                     "one within a GGUF file){}",
                     path, instead);
  }
  return *tokenizer;
}

std::vector<std::int32_t> stop_ids(const Model& model, const std::optional<Tokenizer>& tokenizer) {
  if (tokenizer) return tokenizer->stop_ids();
  std::vector<std::int64_t> wide = model.config().eos_token_ids;
  const auto generation = generation_config(model.path());
  wide.insert(wide.end(), generation.eos_token_ids.begin(), generation.eos_token_ids.end());
  std::sort(wide.begin(), wide.end());
  wide.erase(std::unique(wide.begin(), wide.end()), wide.end());
  std::vector<std::int32_t> ids;
  for (const std::int64_t id : wide) {
    if (id >= 0 && id < model.config().vocab_size) ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

SamplingParams sampling_params(const Options& options) {
  const formats::GenerationConfig recommended = generation_config(options.model);
  SamplingParams params;
  params.temperature = recommended.temperature.value_or(params.temperature);
  if (recommended.do_sample && !*recommended.do_sample) params.temperature = 0;
  params.temperature = options.temperature.value_or(params.temperature);
  params.top_k = options.top_k.value_or(recommended.top_k.value_or(params.top_k));
  params.top_p = options.top_p.value_or(recommended.top_p.value_or(params.top_p));
  params.min_p = options.min_p.value_or(recommended.min_p.value_or(params.min_p));
  params.repeat_penalty = options.repeat_penalty.value_or(
      recommended.repetition_penalty.value_or(params.repeat_penalty));
  // Small enough to be typed again.
  params.seed = options.seed >= 0 ? static_cast<std::uint64_t>(options.seed)
                                  : std::random_device{}() % 1'000'000'000u;
  return params;
}

std::string memory_text(const Session& session) {
  const MemoryPlan& plan = session.memory();
  return fmt::format("state {} | peak memory {}",
                     report::format_bytes(plan.pages + session.length() * plan.list_per_token),
                     report::format_bytes(machine::peak_resident_memory()));
}

}  // namespace palimpsest::cli
