#pragma once

#include <string>
#include <string_view>

#include "convert/plan.h"

namespace palimpsest::convert {

/// The new checkpoint's config.json: the old one with `quantization_config` (where the model's family publishes it: Kimi K3 in text_config,
/// others at the top level) as compressed-tensors writes it, or without where nothing is quantised, and with the dtype that dense
/// matrices have now, if it was asked for. All other keys keep their order and values.
std::string new_config(std::string_view config_json, const ModelConfig& config, const Plan& plan, const Options& options);

}  // namespace palimpsest::convert
