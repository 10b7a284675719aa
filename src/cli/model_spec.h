#pragma once

#include <string>

#include "hub/model_id.h"
#include "hub/pull.h"
#include "hub/settings.h"

namespace palimpsest::cli {

/// What -m stands for, as a path. A path that exists is itself. OWNER/NAME[@REV] is the model of
/// that name in the cache of the Hugging Face hub, which is downloaded if it is not there (unless
/// HF_HUB_OFFLINE is set); not where OWNER is a folder here, since then it is a path with a
/// mistake. Anything else is returned as it is, for the command to refuse. Throws Error as
/// hub::pull does.
///
/// `outline_only`: of a model that is not in the cache only the files are downloaded that plan it,
/// config.json, the index of the weights and the tokenizer.
std::string resolve_model(const std::string& spec, bool outline_only = false);

/// hub::pull with a progress bar; Ctrl-C ends it.
hub::PullResult fetch_model(const hub::Settings& settings, const hub::ModelId& id,
                            hub::PullOptions options);

}  // namespace palimpsest::cli
