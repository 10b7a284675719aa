#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/setup.h"
#include "plan/model_plan.h"
#include "plan/speed.h"

// What `palimpsest plan` prints.

namespace palimpsest::cli {

/// An edit that `following` tokens follow: at most `at_most` of the tokens before it are computed
/// again.
struct Replay {
  std::int64_t following = 0, at_most = 0;
};

/// A plan with what was measured, and what follows from both.
struct PlanReport {
  std::shared_ptr<const Model> model;
  PlanRequest request;
  ModelPlan plan;
  bool has_budget = false;
  std::int64_t most_sequences = 0;

  std::int64_t spacing = 1;        ///< of snapshots, in multiples of the densest
  std::int64_t densest_bytes = 0;  ///< of the cache that holds the densest
  std::vector<Replay> replays;

  double memory_bandwidth = 0, disk_bandwidth = 0;  ///< bytes a second; 0: not measured
  std::optional<SpeedEstimate> speed;
  std::optional<HostExpertsChoice> host_experts;  ///< where routed experts stay with the host
  std::vector<std::string> would_fit;             ///< of a plan for a device that does not fit
  const DeviceData* device = nullptr;
  std::optional<DeviceEstimate> on_device;
};

std::string to_text(const PlanReport& report, int width);
nlohmann::ordered_json to_json(const PlanReport& report);
/// Memory over context on logarithmic axes.
std::string to_svg(const PlanReport& report);

}  // namespace palimpsest::cli
