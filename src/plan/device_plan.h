#pragma once

#include <algorithm>

#include "palimpsest/session.h"
#include "state/state_pool.h"

// Plans for a device that need not be there. A model on a device takes what plan_memory() says of the device's memory, and a HostShare of the host's.

namespace palimpsest {

/// Where a model's weights lie, or shall, and what they take there.
struct WeightPlace {
  DeviceKind where = DeviceKind::kCpu;
  std::int64_t bytes = 0;
};
/// Of an outline or a loaded model, wherever that lies.
WeightPlace place_weights(const Model& model, DeviceKind where, const WeightOffload& offload = {});

/// As in memory_plan.h, for weights at `place`. Towers lie and compute where the weights do.
MemoryPlan plan_memory(const Model& model, const SessionOptions& options, std::int64_t available, std::int64_t sequences, const WeightPlace& place);
std::int64_t largest_context(const ModelConfig& config, const MemoryPlan& plan, std::int64_t available, DeviceKind where);

/// MemoryPlan::lists of a plan whose pages and logits are known, in such a pool.
std::int64_t list_bytes(const StateSpec& spec, StatePoolOptions pool, const MemoryPlan& plan, DeviceKind where);

/// What sessions on a device take of the host's memory, beside the program.
struct HostShare {
  std::int64_t logits = 0;    ///< of the next token of every sequence
  std::int64_t results = 0;   ///< pinned: the logits of a pass at most
  std::int64_t pictures = 0;  ///< rows of pictures, which the host keeps
  std::int64_t staging = 0;   ///< pinned, while weights are loaded
  std::int64_t copies = 0;    ///< while weights are loaded: those in another form than stored
  std::int64_t weights = 0;   ///< pinned: those that visit the device
  std::int64_t experts = 0;   ///< rows and workspace of experts that the host computes
  std::int64_t most() const { return weights + experts + std::max(logits + results + pictures, staging + copies); }
};
/// All 0 on the host.
HostShare host_share(const Model& model, const SessionOptions& options, std::int64_t sequences, DeviceKind where, std::int64_t weights = 0);

}  // namespace palimpsest
