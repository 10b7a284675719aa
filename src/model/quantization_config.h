#pragma once

#include "formats/hf_config.h"

namespace palimpsest {

/// Checks what config.json promises about quantised weights, at the top level and in text_config. Which form each matrix has is told by
/// its tensors; this only refuses forms that the loader would read wrongly: anything but compressed-tensors, formats other than
/// mxfp4-pack-quantized, int-quantized and mixes of the two, integers other than 8 bits with symmetric groups of 32, quantised
/// activations. Throws Error{kUnsupported} or Error{kInvalidFile} that names the key.
void check_quantization(const formats::JsonObject& root, const formats::JsonObject& text);

/// Whether the routed experts of such a checkpoint are MXFP4 by config.json alone. Throws Error{kUnsupported} where only its tensors could tell
/// (int-quantized and mixes).
bool promises_mxfp4_experts(const formats::JsonObject& root, const formats::JsonObject& text);

}  // namespace palimpsest
