#include "cli/budget.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "machine/memory.h"

namespace palimpsest::cli {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kSmallestContext = 64;

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

/// Context, snapshots and room for sequences that step back, from what --budget leaves.
void keep_server_to_budget(Options& options) {
  const MeasuredOutline outlined = outline_model(options);
  const Model& model = *outlined.model;
  PlanRequest request{.session = session_options(options),
                      .sequences = options.parallel,
                      .limit = parse_size("--budget", *options.budget),
                      .process = outlined.process + kServerBytes};
  if (request.session.picture_patches > 0) request.process += kDecodedPicture;
  options.suspended_bytes = 0;
  // What an engine takes beyond as many sessions: longer passes.
  Options least = options;
  least.ctx_size = kSmallestContext;
  least.cache_ram.emplace(1, '0');  // g++ 12 warns of an assignment where nothing is wrong
  SessionOptions session = session_options(least);
  request.process += Engine::plan(model, engine_options(least)).total() -
                     plan_model(model, {.session = session, .sequences = options.parallel}).memory.total();
  const ModelPlan plan = plan_model(model, request);
  require_budget(model, request, plan);
  options.ctx_size = plan.memory.context;
  const std::int64_t left = plan.limit - plan.total() - kProcessVariation;
  const std::int64_t part = std::clamp<std::int64_t>(left / 2, 0, EngineOptions{}.cache_bytes);
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
  if (!options.budget) return;
  if (options.command == Command::kServe) return keep_server_to_budget(options);
  if (!runs_a_model(options.command)) return;
  const std::int64_t budget = parse_size("--budget", *options.budget);
  const MeasuredOutline outlined = outline_model(options);
  PlanRequest request{.session = session_options(options),
                      .limit = budget,
                      .process = outlined.process + input_bytes(options)};
  request.session.context =
      wanted_context(options, outlined.model->config().max_position_embeddings);
  if (options.compare) {  // a second session over the same weights
    const MemoryPlan usual = Session::plan(*outlined.model, with_default_types(request.session));
    request.process += usual.total() - usual.weights;
  }
  request.context_is_free = options.command == Command::kRun || options.command == Command::kEval;
  const ModelPlan plan = plan_model(*outlined.model, request);
  require_budget(*outlined.model, request, plan);
  if (options.command != Command::kRun) return;
  options.ctx_size = request.session.context = plan.memory.context;
  if (options.cache_ram) return;
  // Snapshots get what is left, but for what the program's own part may take the next time.
  const std::int64_t left = plan.limit - plan.total() - kProcessVariation;
  const std::int64_t cache = std::min(left, default_cache_bytes(*outlined.model, request.session));
  options.cache_ram = std::to_string(std::max<std::int64_t>(cache, 0) / kMiB);
}

}  // namespace palimpsest::cli
