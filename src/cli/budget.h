#pragma once

#include <cstdint>
#include <memory>

#include "cli/options.h"
#include "palimpsest/model.h"
#include "plan/model_plan.h"

// What memory a command is going to take, before the model is loaded.

namespace palimpsest::cli {

/// A model's outline, and the bytes that the process takes beside what a plan counts: measured with
/// the outline and the tokenizer in memory, as the loaded model and the tokenizer will be.
struct MeasuredOutline {
  std::shared_ptr<const Model> model;
  std::int64_t process = 0;
};
MeasuredOutline outline_model(const Options& options);

/// --cache-ram in bytes, 0 if not given.
std::int64_t snapshot_bytes(const Options& options);

/// With --budget, for the commands that run the model: throws Error{kOutOfMemory} when it will not
/// do, with what would; sets context and snapshots where none were asked for. Nothing without --budget.
void keep_to_budget(Options& options);

}  // namespace palimpsest::cli
