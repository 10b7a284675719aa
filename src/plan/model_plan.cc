#include "plan/model_plan.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "model/state_spec.h"
#include "model/weight_spec.h"
#include "plan/memory_plan.h"
#include "state/state_pool.h"

namespace palimpsest {
namespace {

struct KindName {
  std::string_view name, key;
};
// In the order of WeightKind.
constexpr KindName kKinds[] = {{"routed experts", "routed_experts"},
                               {"routers, latent projections", "routers"},
                               {"mixers", "mixers"},
                               {"dense and shared MLPs", "mlps"},
                               {"embedding", "embedding"},
                               {"head", "head"},
                               {"norms and other vectors", "vectors"}};
static_assert(std::size(kKinds) == kWeightKinds);

WeightKind kind_of(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedTokens:
    case WeightRole::kPositions:
      return WeightKind::kEmbedding;
    case WeightRole::kLmHead:
      return WeightKind::kHead;
    case WeightRole::kFinalNorm:
    case WeightRole::kFinalNormBias:
    case WeightRole::kOutputResNorm:
    case WeightRole::kOutputResProj:
    case WeightRole::kInputNorm:
    case WeightRole::kInputNormBias:
    case WeightRole::kPostAttentionNorm:
    case WeightRole::kPostAttentionNormBias:
    case WeightRole::kAttentionResNorm:
    case WeightRole::kAttentionResProj:
    case WeightRole::kMlpResNorm:
    case WeightRole::kMlpResProj:
    case WeightRole::kMlpUpBias:
    case WeightRole::kMlpDownBias:
    case WeightRole::kRouterBias:
    case WeightRole::kLatentNorm:
      return WeightKind::kVectors;
    case WeightRole::kRouter:
    case WeightRole::kLatentDown:
    case WeightRole::kLatentUp:
      return WeightKind::kRouters;
    case WeightRole::kMlpGate:
    case WeightRole::kMlpUp:
    case WeightRole::kMlpDown:
    case WeightRole::kSharedGate:
    case WeightRole::kSharedUp:
    case WeightRole::kSharedDown:
    case WeightRole::kSharedExpertGate:
      return WeightKind::kMlps;
    case WeightRole::kExpertGate:
    case WeightRole::kExpertUp:
    case WeightRole::kExpertDown:
      return WeightKind::kRoutedExperts;
    default:
      return WeightKind::kMixers;  // with their own norms, taps and biases
  }
}

std::int64_t tail_bytes(const StateSpec& spec) {
  std::int64_t sum = 0;
  for (const StateEntry& entry : spec.entries)
    sum += entry.kind == StateKind::kConvTail ? entry.bytes() : 0;
  return sum;
}

SnapshotPlan plan_snapshots(const StateSpec& spec, const ModelConfig& config,
                            const MemoryPlan& memory) {
  const auto sizes = StatePool::snapshot_bytes(spec, pool_options(config, memory));
  return {sizes.at_border, sizes.elsewhere, sizes.count_in(memory.cache)};
}

}  // namespace

std::string_view weight_kind_name(WeightKind kind) {
  return kKinds[static_cast<std::size_t>(kind)].name;
}
std::string_view weight_kind_key(WeightKind kind) {
  return kKinds[static_cast<std::size_t>(kind)].key;
}

ModelPlan plan_model(const Model& model, const PlanRequest& request) {
  const ModelConfig& config = model.config();
  const SessionOptions& options = request.session;
  const StateSpec spec = state_spec(config, options.cache_type, options.page_type);
  ModelPlan plan;
  plan.where = request.where;
  plan.process = request.process;
  plan.limit = request.limit;
  plan.host_limit = request.host_limit;
  if (!plan.on_host()) {
    check_offload(request.offload, config);
    const WeightSizes sizes = weight_sizes(model);
    plan.device = device_weights(sizes, request.offload);
    plan.bus_step = bus_bytes(sizes, request.offload, config.moe, 1);
    plan.bus_pass = bus_bytes(sizes, request.offload, config.moe, options.ubatch);
  }
  plan.host = host_share(model, options, request.sequences, request.where, plan.device.host);
  if (request.offload.compute && plan.bus_step.experts > 0) {
    const ops::ExpertShapes shapes = expert_shapes(config);
    plan.host.experts = ops::HostExperts::pinned_bytes(shapes) + ops::HostExperts::workspace_bytes(shapes, request.offload.threads);
  }
  const WeightPlace place = plan.on_host() ? place_weights(model, request.where) : WeightPlace{request.where, plan.device.bytes()};
  const std::int64_t available = request.limit - (plan.on_host() ? request.process : 0);
  plan.memory = plan_memory(model, options, available - request.more_workspace, request.sequences, place);
  plan.memory.workspace += request.more_workspace;

  for (std::size_t role = 0; role < model.role_bytes().size(); ++role) {
    plan.stored[static_cast<std::size_t>(kind_of(static_cast<WeightRole>(role)))] +=
        model.role_bytes()[role];
  }
  const auto stored = std::accumulate(plan.stored.begin(), plan.stored.end(), std::int64_t{0});
  plan.copies = plan.on_host() ? model.owned_bytes() + model.vector_bytes() : plan.device.reserved + plan.device.host - plan.device.padding - stored;
  plan.headers = plan.on_host() ? plan.memory.weights - plan.copies - stored : 0;
  plan.tails = request.sequences * tail_bytes(spec);
  plan.snapshots = plan_snapshots(spec, config, plan.memory);

  plan.longest = largest_context(config, plan.memory, available, request.where);
  MemoryPlan without_weights = plan.memory;
  without_weights.weights = 0;
  if (plan.on_host()) plan.longest_from_disk = largest_context(config, without_weights, available);
  plan.decode = decode_cost(model, plan.memory.context, options.cache_type);
  plan.comparison = compare_with_attention(config, options.cache_type);
  return plan;
}

std::int64_t most_sequences(const Model& model, const PlanRequest& request, const ModelPlan& plan) {
  SessionOptions options = request.session;
  options.context = plan.memory.context;
  const WeightPlace place = {request.where, plan.memory.weights};
  const std::int64_t available = request.limit - (plan.on_host() ? request.process : 0) - request.more_workspace;
  std::int64_t fit = 0, too_many = 4097;
  while (too_many - fit > 1) {
    const std::int64_t n = (fit + too_many) / 2;
    (plan_memory(model, options, 0, n, place).total() <= available ? fit : too_many) = n;
  }
  return fit;
}

}  // namespace palimpsest
