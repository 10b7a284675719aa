#pragma once

#include <vector>

#include "kernels/logit_args.h"
#include "tensor/exec_context.h"

namespace palimpsest::ops {

/// KeepLogitsArgs, on a device alone. `facts` gets one a row; candidates are valid until the context's next result. Waits for the device.
void keep_logits(ExecContext& ctx, const KeepLogitsArgs& args, std::vector<LogitFacts>& facts);

}  // namespace palimpsest::ops
