#pragma once

#include <span>

#include "palimpsest/engine.h"

namespace palimpsest {

/// Log-probability of `id` under softmax(logits) and the `top` most likely tokens, summed in double
/// precision in the order of ids. Logits are finite.
TokenInfo token_info(std::span<const float> logits, std::int32_t id, std::int64_t top);

}  // namespace palimpsest
