#pragma once

#include <cstdint>

#include "palimpsest/model.h"

namespace palimpsest {

/// forward_workspace_bytes() of forward.h where the model lies, or shall lie, on `where`.
std::int64_t forward_workspace_bytes(const Model& model, std::int64_t rows, std::int64_t sequences, std::int64_t logit_rows, DeviceKind where);

}  // namespace palimpsest
