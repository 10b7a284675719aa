#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/weight_upload.h"
#include "palimpsest/session.h"
#include "plan/comparison.h"
#include "plan/cost.h"
#include "plan/device_plan.h"

namespace palimpsest {

/// What weights are for, as a plan counts them.
enum class WeightKind : std::uint8_t {
  kRoutedExperts,
  kRouters,
  kMixers,
  kMlps,
  kEmbedding,
  kHead,
  kVectors,
  kCount
};
inline constexpr std::size_t kWeightKinds = static_cast<std::size_t>(WeightKind::kCount);
/// "routed experts", for people.
std::string_view weight_kind_name(WeightKind kind);
/// "routed_experts", for programs.
std::string_view weight_kind_key(WeightKind kind);

/// What a process takes beside what is planned differs by so much from run to run at most: how many
/// pages of the program and its libraries the kernel maps at once depends on where they lie (60 runs
/// differed by 1.4 MiB). Advice, and what is cut to fit, leave it free, so that the next run fits too.
inline constexpr std::int64_t kProcessVariation = 3 << 20;

struct PlanRequest {
  SessionOptions session;
  std::int64_t sequences = 1;
  std::int64_t limit = 0;  ///< bytes the process may take
  std::int64_t process =
      0;  ///< bytes the process takes beside what is planned: program, libraries, tables of tensors
  bool context_is_free = true;  ///< whether a shorter context can be asked for (-c)
  /// Where weights and memories shall lie. On a device `limit` is of its memory, `process` of the host's.
  DeviceKind where = DeviceKind::kCpu;
  std::int64_t host_limit = 0;      ///< on a device: bytes that the process may take of the host's memory; 0: any
  std::int64_t more_workspace = 0;  ///< beyond that of passes of session.ubatch rows
  WeightOffload offload;            ///< on a device: weights that shall stay with the host
  bool is_budget = true;            ///< `limit` was asked for; else it is what there is
};

/// Snapshots for the reuse of prefixes.
struct SnapshotPlan {
  /// Of one at a multiple of 64 tokens, where most lie: pages, tails and logits; list rows are
  /// shared with the sequence.
  std::int64_t bytes = 0;
  std::int64_t bytes_at_end = 0;  ///< of one at another place: the end of a prompt or of an answer
  std::int64_t count = 0;         ///< that the cache holds: one at an end, the others not
};

/// What running a model takes.
struct ModelPlan {
  std::array<std::int64_t, kWeightKinds> stored = {};  ///< bytes in the files by WeightKind
  std::int64_t headers = 0;  ///< what else the files hold that is mapped: headers, padding
  std::int64_t copies = 0;   ///< of weights computed with in another form than stored
  MemoryPlan memory;         ///< its weights are the three above
  std::int64_t tails = 0;    ///< part of memory.pages
  SnapshotPlan snapshots;
  std::int64_t process = 0, limit = 0;
  std::int64_t longest = 0;  ///< longest context that fits for each sequence, 0: none
  std::int64_t longest_from_disk =
      0;              ///< the same when weights stay on disk and are read again as they are needed
  DecodeCost decode;  ///< of one token of one sequence at the end of the context
  AttentionComparison comparison;  ///< of one sequence
  DeviceKind where = DeviceKind::kCpu;
  DeviceWeights device;  ///< where that is not the host; `copies` is then what weights take more there than in the files
  HostShare host;
  std::int64_t host_limit = 0;
  /// Weights that cross the bus in a pass of one row, if none is computed by the host, and in one of session.ubatch rows.
  BusBytes bus_step, bus_pass;

  bool on_host() const { return where == DeviceKind::kCpu; }
  /// Of what `limit` is of.
  std::int64_t total() const { return memory.total() + (on_host() ? process : 0); }
  std::int64_t host_total() const { return process + host.most(); }
  bool fits_host() const { return on_host() || host_limit == 0 || host_total() <= host_limit; }
  bool fits() const { return total() <= limit && fits_host(); }
  std::int64_t stored_in(WeightKind kind) const { return stored[static_cast<std::size_t>(kind)]; }
};

/// Of a loaded model or an outline; allocates nothing that is large. Throws Error{kUsage} for
/// options out of range.
ModelPlan plan_model(const Model& model, const PlanRequest& request);

/// Most sequences of plan.memory.context tokens each that fit together, at most 4096.
std::int64_t most_sequences(const Model& model, const PlanRequest& request, const ModelPlan& plan);

/// Up to three changes that would make a plan fit that does not: each is computed, and sufficient alone.
std::vector<std::string> what_would_fit(const Model& model, const PlanRequest& request, const ModelPlan& plan);

/// Throws Error{kOutOfMemory} when the plan does not fit request.limit, with the parts and up to
/// three changes that would make it fit, the smallest first.
void require_budget(const Model& model, const PlanRequest& request, const ModelPlan& plan);

}  // namespace palimpsest
