#include "cli/budget.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "engine/longer_passes.h"
#include "machine/memory.h"
#include "ops/device.h"
#include "plan/memory_plan.h"

namespace palimpsest::cli {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

/// Text that is read whole: its bytes and, at worst, an id of four bytes for each.
std::int64_t input_bytes(const Options& options) {
  if (!options.file || *options.file == "-") return 0;
  std::error_code failed;
  const auto size = std::filesystem::file_size(*options.file, failed);
  return failed ? 0 : static_cast<std::int64_t>(size) * 6;
}

/// The context that a command will ask for; 0: what fits. Whatever is wrong with its flags the
/// command says itself.
std::int64_t wanted_context(const Options& options, std::int64_t most) {
  switch (options.command) {
    case Command::kEval:
      return std::min<std::int64_t>(options.ctx_size > 0 ? options.ctx_size : 4096, most);
    // The story is no longer than asked for, or as long as its three sentences; an answer follows.
    case Command::kRecall:
      return std::min<std::int64_t>(std::max<std::int64_t>(options.tokens.value_or(4000), 240) + 16,
                                    most);
    case Command::kLogits: {
      std::size_t longest = 1;
      if (options.ids) longest = parse_id_list(*options.ids).size();
      if (options.ids_file) {
        for (const auto& ids : read_id_lists(*options.ids_file))
          longest = std::max(longest, ids.size());
      }
      return std::min(static_cast<std::int64_t>(longest), most);
    }
    default:
      return options.ctx_size;
  }
}

bool runs_a_model(Command command) {
  return command == Command::kRun || command == Command::kRecall || command == Command::kLogits ||
         command == Command::kEval;
}

/// For threads, connections and requests of serve, beside the model.
constexpr std::int64_t kServerBytes = 32 * kMiB;
constexpr std::int64_t kDecodedPicture = 256 * kMiB;  ///< at most, one at a time

/// What to keep to: --budget, and what a device has free.
void set_limit(PlanRequest& request, const Options& options) {
  const bool on_device = options.device == "cuda";
  const std::optional<std::int64_t> free = on_device ? ops::free_cuda_memory() : std::nullopt;
  if (options.budget) request.limit = parse_size("--budget", *options.budget);
  if (on_device) request.where = DeviceKind::kCuda;
  request.offload = weight_offload(options);
  if (on_device) request.host_limit = machine::available_memory() + request.process;
  request.is_budget = options.budget && request.limit <= free.value_or(request.limit);
  if (!request.is_budget) request.limit = free.value_or(0);
}

/// What --budget leaves, but for what the program's own part may take the next time.
std::int64_t left_of(const ModelPlan& plan) {
  return std::max<std::int64_t>(0, plan.limit - plan.total() - (plan.on_host() ? kProcessVariation : 0));
}

/// Context, snapshots and room for sequences that step back, from what --budget leaves.
void keep_server_to_budget(Options& options) {
  const MeasuredOutline outlined = outline_model(options);
  const Model& model = *outlined.model;
  PlanRequest request{.session = session_options(options), .sequences = options.parallel, .process = outlined.process + kServerBytes};
  if (request.session.picture_patches > 0) request.process += kDecodedPicture + engine_options(options).picture_bytes;
  set_limit(request, options);
  request.session.ubatch = engine_ubatch(request.session.ubatch, options.parallel);
  request.more_workspace = longer_passes_bytes(model, request.session.ubatch, options.parallel, request.where);
  const ModelPlan plan = plan_model(model, request);
  require_budget(model, request, plan);
  if (!options.budget) return;
  options.suspended_bytes = 0;
  options.ctx_size = plan.memory.context;
  const std::int64_t left = left_of(plan);
  if (!plan.on_host()) {  // snapshots lie on the device, sequences that step back do not
    options.suspended_bytes = std::clamp<std::int64_t>((plan.host_limit - plan.host_total()) / 2, 0, EngineOptions{}.suspended_bytes);
    if (!options.cache_ram) options.cache_ram = std::to_string(std::min(left, EngineOptions{}.cache_bytes) / kMiB);
    return;
  }
  const std::int64_t part = std::min(left / 2, EngineOptions{}.cache_bytes);
  options.suspended_bytes = options.cache_ram ? std::clamp<std::int64_t>(left, 0, 2 * part) : part;
  if (!options.cache_ram) options.cache_ram = std::to_string(part / kMiB);
}

}  // namespace

MeasuredOutline outline_model(const Options& options) {
  model_folder(options.model);
  MeasuredOutline outlined{Model::outline(options.model), 0};
  std::optional<Tokenizer> tokenizer;
  try {
    tokenizer = find_tokenizer(options.model, outlined.model->config().vocab_size);
  } catch (const Error&) {
    // Who needs it will say what is wrong with it.
  }
  outlined.process = machine::peak_resident_memory();
  return outlined;
}

std::int64_t snapshot_bytes(const Options& options) {
  return options.cache_ram ? parse_size("--cache-ram", *options.cache_ram, 1 << 20, true) : 0;
}

void keep_to_budget(Options& options) {
  const bool serves = options.command == Command::kServe;
  if (!serves && !runs_a_model(options.command)) return;
  if (!options.budget && (options.device != "cuda" || !ops::free_cuda_memory())) return;
  if (serves) return keep_server_to_budget(options);
  const MeasuredOutline outlined = outline_model(options);
  PlanRequest request{.session = session_options(options), .process = outlined.process + input_bytes(options)};
  set_limit(request, options);
  request.session.context =
      wanted_context(options, outlined.model->config().max_position_embeddings);
  if (options.compare) {  // a second session over the same weights
    const MemoryPlan usual = plan_memory(*outlined.model, with_default_types(request.session), memory_for(*outlined.model), 1,
                                         {request.where, 0});
    (request.where == DeviceKind::kCpu ? request.process : request.more_workspace) += usual.total();
  }
  request.context_is_free = options.command == Command::kRun || options.command == Command::kEval;
  const ModelPlan plan = plan_model(*outlined.model, request);
  require_budget(*outlined.model, request, plan);
  if (options.command != Command::kRun || !options.budget) return;
  options.ctx_size = request.session.context = plan.memory.context;
  if (options.cache_ram) return;
  const std::int64_t cache = plan.on_host() ? default_cache_bytes(*outlined.model, request.session) : 32 * plan.snapshots.bytes_at_end;
  options.cache_ram = std::to_string(std::min(left_of(plan), cache) / kMiB);
}

}  // namespace palimpsest::cli
