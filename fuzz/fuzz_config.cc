// config.json and generation_config.json out of arbitrary bytes: an Error, or a config whose weights and states can be
// listed and counted.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "formats/hf_config.h"
#include "model/state_spec.h"
#include "model/weight_spec.h"
#include "palimpsest/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace palimpsest;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const ModelConfig config = parse_model_config(text);
    if (to_string(config).empty()) __builtin_trap();
    if (state_spec(config).bytes_per_sequence() < 0) __builtin_trap();
    // The list of a valid config may be long; a few thousand weights say as much.
    if (config.num_layers() * config.moe.num_experts < 1000) {
      const auto specs = weight_spec(config);
      const ParameterCount count = count_parameters(config, specs);
      if (count.total <= 0 || count.active > count.total) __builtin_trap();
      if (weight_name(config, specs.back()).empty()) __builtin_trap();
    }
  } catch (const Error&) {
  }
  try {
    formats::parse_generation_config(text);
  } catch (const Error&) {
  }
  return 0;
}
