#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "plan/cost.h"

namespace palimpsest {

/// Decode speed of one sequence when nothing but moving bytes takes time: an upper bound.
struct SpeedEstimate {
  std::int64_t from_disk = 0;  ///< bytes a token reads from disk, on average
  double tokens_per_second = 0;
};

/// Weights that do not fit into `room` bytes of memory are read from disk again for every token: of
/// the routed experts (`all_experts` bytes, all equally likely) the share that does not fit, of
/// everything else all that is beyond. `memory` and `disk` in bytes a second; reads of the two do
/// not overlap. Nothing where disk reads are needed and `disk` is 0.
std::optional<SpeedEstimate> decode_speed(const DecodeCost& cost, std::int64_t all_experts,
                                          std::int64_t room, double memory, double disk);

/// A device by its data sheet.
struct DeviceData {
  std::string_view name;
  std::int64_t memory;  ///< bytes
  double bandwidth;     ///< bytes a second
};
std::span<const DeviceData> known_devices();
/// Null for other names.
const DeviceData* find_device(std::string_view name);

/// A step of one sequence on a device some of whose experts stay with the host, in both ways there are, in tokens a second. Nothing but moving bytes
/// takes time; dense weights come ahead, while the device computes, but experts when the router has chosen, and it waits for them.
struct HostExpertsSpeed {
  double stream = 0;   ///< they come over the bus, at kBusBandwidth
  double compute = 0;  ///< the host's cores compute them; 0: nobody knows how fast they read
  bool computes() const { return compute > stream; }
};
/// `step`: bus_bytes() of one row; `host`: bytes a second that its cores read, 0: not known.
HostExpertsSpeed host_experts_speed(const DecodeCost& cost, const BusBytes& step, const DeviceData& device, double host);

/// `count` devices that share the weights evenly.
struct DeviceEstimate {
  std::int64_t count = 0;  ///< fewest that hold `total` bytes
  double tokens_per_second = 0;
};
DeviceEstimate device_speed(const DecodeCost& cost, std::int64_t total, const DeviceData& device);

}  // namespace palimpsest
