#pragma once

#include <vector>

#include "convert/convert.h"
#include "convert/encode.h"

namespace palimpsest::convert {

/// Decodes every converted matrix of the new checkpoint, as its loader finds it, and compares it with the old one. One entry for each role and
/// pair of forms, in the order of the model. Throws Error{kInvalidFile} when the new checkpoint lacks a weight.
std::vector<RoleReport> measure_errors(const ModelConfig& config, const Plan& plan, const formats::Checkpoint& before,
                                       const formats::Checkpoint& after, base::ThreadPool& pool, const std::atomic<bool>* cancelled);

}  // namespace palimpsest::convert
