#pragma once

// Where models of tests compute: on the host, or on the GPU with PALIMPSEST_TEST_DEVICE=cuda in the environment; with PALIMPSEST_TEST_GPU_LAYERS=N
// the weights of later layers visit from the host, and with PALIMPSEST_TEST_HOST_EXPERTS=1 their experts are computed there in steps.

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "palimpsest/model.h"
#include "tensor/device.h"

namespace palimpsest::test {

inline DeviceKind test_device() {
  const char* device = std::getenv("PALIMPSEST_TEST_DEVICE");
  return device && std::string_view(device) == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
}

inline std::shared_ptr<const Model> load_model(const std::filesystem::path& path) {
  LoadOptions options;
  options.device = test_device();
  if (const char* layers = std::getenv("PALIMPSEST_TEST_GPU_LAYERS")) options.offload.device_layers = std::atoll(layers);
  options.offload.compute = std::getenv("PALIMPSEST_TEST_HOST_EXPERTS") != nullptr;
  return Model::load(path, options);
}

/// The numbers of a contiguous F32 tensor of the model's device.
inline std::vector<float> floats_of(const Model& model, const Tensor& t) {
  std::vector<float> numbers(static_cast<std::size_t>(t.numel()));
  model.device().copy(numbers.data(), t.data, t.bytes());
  return numbers;
}

}  // namespace palimpsest::test
