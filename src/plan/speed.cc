#include "plan/speed.h"

#include <algorithm>

namespace palimpsest {
namespace {

// Data sheets of the makers: memory and its bandwidth.
constexpr DeviceData kDevices[] = {
    {"h100", 80'000'000'000, 3.35e12},      // H100 SXM
    {"h200", 141'000'000'000, 4.8e12},      // H200 SXM
    {"a100", 80'000'000'000, 2.039e12},     // A100 80GB SXM
    {"rtx4090", 24'000'000'000, 1.008e12},  // GeForce RTX 4090
};

double as_double(std::int64_t n) {
  return static_cast<double>(n);
}

}  // namespace

std::optional<SpeedEstimate> decode_speed(const DecodeCost& cost, std::int64_t all_experts,
                                          std::int64_t room, double memory, double disk) {
  SpeedEstimate estimate;
  const std::int64_t always = cost.weights - cost.experts;
  if (room < always) {
    estimate.from_disk = always - std::max<std::int64_t>(room, 0) + cost.experts;
  } else if (all_experts > 0) {
    const double held = std::min(1.0, as_double(room - always) / as_double(all_experts));
    estimate.from_disk = static_cast<std::int64_t>(as_double(cost.experts) * (1 - held));
  }
  if (memory <= 0 || (estimate.from_disk > 0 && disk <= 0)) return std::nullopt;
  const double seconds = as_double(cost.total()) / memory +
                         (estimate.from_disk > 0 ? as_double(estimate.from_disk) / disk : 0);
  estimate.tokens_per_second = 1 / seconds;
  return estimate;
}

std::span<const DeviceData> known_devices() {
  return kDevices;
}

const DeviceData* find_device(std::string_view name) {
  const auto* found = std::find_if(std::begin(kDevices), std::end(kDevices),
                                   [&](const DeviceData& d) { return d.name == name; });
  return found == std::end(kDevices) ? nullptr : found;
}

HostExpertsSpeed host_experts_speed(const DecodeCost& cost, const BusBytes& step, const DeviceData& device, double host) {
  const double ahead = step.dense / kBusBandwidth, touched = as_double(cost.total());
  HostExpertsSpeed speed{.stream = 1 / (std::max(ahead, touched / device.bandwidth) + step.experts / kBusBandwidth)};
  // The bus is free for what comes ahead while the host computes.
  if (host > 0) speed.compute = 1 / std::max(ahead, (touched - step.experts) / device.bandwidth + step.experts / host);
  return speed;
}

DeviceEstimate device_speed(const DecodeCost& cost, std::int64_t total, const DeviceData& device) {
  const std::int64_t count = std::max<std::int64_t>(1, (total + device.memory - 1) / device.memory);
  return {count, as_double(count) * device.bandwidth / as_double(cost.total())};
}

}  // namespace palimpsest
