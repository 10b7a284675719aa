#include "plan/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "machine/memory.h"
#include "model/forward_workspace.h"
#include "model/state_spec.h"
#include "model/vision/vision_tower.h"
#include "model/weight_upload.h"
#include "plan/device_plan.h"
#include "state/block_table.h"
#include "tensor/device.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
// Tiles and packed panels of one thread inside kernels: bounded by cache sizes, not by the model.
constexpr std::int64_t kThreadScratch = 4 * kMiB;

std::int64_t resolve_context(const ModelConfig& config, const MemoryPlan& fixed,
                             std::int64_t available) {
  const std::int64_t most = config.max_position_embeddings;
  if (fixed.list_per_token == 0) return most;
  const std::int64_t left =
      std::max<std::int64_t>(available - fixed.total(), 0) / 2 / fixed.sequences;
  // At least a page of conversation, even if the plan then says that it does not fit.
  return std::clamp(left / fixed.list_per_token, std::min<std::int64_t>(most, 4096), most);
}

void check_options(const SessionOptions& options, std::int64_t sequences, std::int64_t most) {
  if (sequences < 1 || sequences > 4096)
    throw make_error(ErrorCode::kUsage, "sequences must be between 1 and 4096, not {}", sequences);
  if (options.ubatch < 1 || options.ubatch > 65536) {
    throw make_error(ErrorCode::kUsage, "ubatch must be between 1 and 65536, not {}",
                     options.ubatch);
  }
  if (options.long_ubatch < 0 || options.long_ubatch > 65536) {
    throw make_error(ErrorCode::kUsage, "long_ubatch must be between 0 (none) and 65536, not {}",
                     options.long_ubatch);
  }
  if (options.threads < 0 || options.threads > 1024) {
    throw make_error(ErrorCode::kUsage, "threads must be between 0 (one a core) and 1024, not {}",
                     options.threads);
  }
  if (options.context < 0 || options.context > most) {
    throw make_error(ErrorCode::kUsage,
                     "a context of {} tokens is outside what this model was made for (1 to {})",
                     options.context, most);
  }
  if (options.cache_bytes < 0 || options.cache_disk_bytes < 0) {
    throw make_error(ErrorCode::kUsage, "a cache of {} bytes cannot be",
                     std::min(options.cache_bytes, options.cache_disk_bytes));
  }
  if (!parse_list_type(list_type_name(options.cache_type))) {
    throw make_error(ErrorCode::kUsage, "the cache type must be f32, bf16 or q8, not {}",
                     dtype_name(options.cache_type));
  }
  if (options.page_type != DType::kF32 && options.page_type != DType::kBF16) {
    throw make_error(ErrorCode::kUsage, "the page type must be f32 or bf16, not {}",
                     dtype_name(options.page_type));
  }
}

/// The tower with what it takes for the largest picture, and what of that the host keeps for one on a device. A checkpoint without one takes nothing.
struct PictureBytes {
  std::int64_t there = 0, kept_by_host = 0;
};
PictureBytes picture_bytes(const Model& model, const SessionOptions& options, DeviceKind where) {
  if (options.picture_patches == 0) return {};
  const auto config = load_vision_config(model.path());
  if (!config) return {};
  const auto tower = VisionTower::outline(*config);
  const std::int64_t rows = std::max(options.ubatch, options.long_ubatch);
  return {(where == DeviceKind::kCpu ? tower->file_bytes() : tower->upload_bytes()) + picture_rows_bytes(*tower, options.picture_patches, rows, where),
          kept_rows_bytes(*tower, options.picture_patches, rows)};
}

std::string gigabytes(std::int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

}  // namespace

std::int64_t score_rows(const ModelConfig& config, std::int64_t ubatch) {
  return std::min(ubatch, std::max<std::int64_t>(16, 64 * kMiB / (config.vocab_size * 4)));
}

StatePoolOptions pool_options(const ModelConfig& config, const MemoryPlan& plan) {
  return {.slots = plan.sequences,
          .tokens = plan.sequences * plan.context,
          .max_length = plan.context,
          .vocab_size = config.vocab_size,
          .cache_bytes = plan.cache};
}

std::int64_t memory_for(const Model& model) {
  if (model.device().kind() != DeviceKind::kCpu)
    return model.device().free_memory() + model.device_bytes();
  return machine::available_memory() + model.held_bytes();
}

std::int64_t largest_context(const ModelConfig& config, const MemoryPlan& plan,
                             std::int64_t available) {
  return largest_context(config, plan, available, DeviceKind::kCpu);
}
std::int64_t largest_context(const ModelConfig& config, const MemoryPlan& plan, std::int64_t available, DeviceKind where) {
  const std::int64_t left = available - (plan.total() - plan.lists), most = config.max_position_embeddings;
  if (left < 0 || plan.list_per_token == 0) return left < 0 ? 0 : most;
  const std::int64_t block = StatePoolOptions{}.block_tokens, bytes = block * plan.list_per_token;
  const std::int64_t with_table = bytes + (where == DeviceKind::kCpu ? 0 : static_cast<std::int64_t>(sizeof(std::int32_t)));
  // Every sequence but one may need a block more than its share: its last one is partly filled.
  const std::int64_t tokens = (left - (plan.sequences - 1) * bytes) / (plan.sequences * with_table) * block;
  return std::clamp<std::int64_t>(tokens, 0, most);
}

std::int64_t list_bytes(const StateSpec& spec, StatePoolOptions pool, const MemoryPlan& plan, DeviceKind where) {
  pool.cache_bytes = 0;
  return StatePool::bytes(spec, pool) - plan.pages - plan.logits + (where == DeviceKind::kCpu ? 0 : block_table_bytes(spec, pool));
}

WeightPlace place_weights(const Model& model, DeviceKind where, const WeightOffload& offload) {
  if (where != DeviceKind::kCpu) return {where, model.device_bytes() > 0 ? model.device_bytes() : device_weights(model, offload).bytes()};
  const std::int64_t unused = model.held_bytes() > 0 ? 0 : model.unused_bytes();
  return {where, model.file_bytes() - unused + model.owned_bytes() + model.vector_bytes()};
}

HostShare host_share(const Model& model, const SessionOptions& options, std::int64_t sequences, DeviceKind where, std::int64_t weights) {
  if (where == DeviceKind::kCpu) return {};
  const std::int64_t row = model.config().vocab_size * dtype_size(DType::kF32);
  return {.logits = sequences * row,
          .results = std::max(sequences, score_rows(model.config(), options.ubatch)) * row,
          .pictures = picture_bytes(model, options, where).kept_by_host,
          .staging = WeightUpload::kStagingBytes,
          .copies = model.owned_bytes() + model.vector_bytes(),
          .weights = weights};
}

MemoryPlan plan_memory(const Model& model, const SessionOptions& options, std::int64_t available,
                       std::int64_t sequences) {
  return plan_memory(model, options, available, sequences, place_weights(model, model.device().kind()));
}
MemoryPlan plan_memory(const Model& model, const SessionOptions& options, std::int64_t available, std::int64_t sequences, const WeightPlace& place) {
  const bool on_host = place.where == DeviceKind::kCpu;
  const ModelConfig& config = model.config();
  check_options(options, sequences, config.max_position_embeddings);
  const StateSpec spec = state_spec(config, options.cache_type, options.page_type);
  MemoryPlan plan;
  plan.sequences = sequences;
  plan.weights = place.bytes;
  plan.pages = sequences * spec.bytes_per_sequence();
  plan.logits = sequences * config.vocab_size * dtype_size(DType::kF32);
  plan.list_per_token = spec.bytes_per_token();
  const int threads = options.threads > 0 ? options.threads : base::ThreadPool::default_size();
  plan.workspace = forward_workspace_bytes(model, options.ubatch, sequences,
                                           score_rows(config, options.ubatch), place.where) +
                   (on_host ? threads * kThreadScratch : 0);
  plan.cache = options.cache_bytes;
  plan.pictures = picture_bytes(model, options, place.where).there;
  plan.context = options.context > 0 ? options.context : resolve_context(config, plan, available);
  plan.lists = list_bytes(spec, pool_options(config, plan), plan, place.where);
  return plan;
}

void require_memory(const MemoryPlan& plan, std::int64_t available) {
  if (plan.total() <= available) return;
  throw make_error(ErrorCode::kOutOfMemory,
                   "not enough memory: {} needed (weights {}, pages {}, cache of {} tokens {}, "
                   "workspace {}, snapshots {}{}), {} available. "
                   "A smaller context (-c) or ubatch (-ub) needs less",
                   gigabytes(plan.total()), gigabytes(plan.weights),
                   gigabytes(plan.pages + plan.logits), plan.context, gigabytes(plan.lists),
                   gigabytes(plan.workspace), gigabytes(plan.cache),
                   plan.pictures > 0 ? ", pictures " + gigabytes(plan.pictures) : "", gigabytes(available));
}

}  // namespace palimpsest
