#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::cuda {

struct DeviceInfo {
  std::string name;
  std::int64_t memory_total = 0;  ///< bytes
  std::int64_t memory_free = 0;
  int major = 0, minor = 0;  ///< compute capability
};

struct DeviceList {
  std::vector<DeviceInfo> devices;
  std::string reason;  ///< why there are none; empty where there are some
};

/// What the driver offers. Never throws for a missing driver or device.
DeviceList query_devices();

}  // namespace palimpsest::cuda
