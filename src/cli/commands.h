#pragma once

#include "cli/options.h"

namespace palimpsest::cli {

// The subcommands. Each returns the process's exit code and throws Error.
int run(const Options& options);
int recall(const Options& options);
int inspect(const Options& options);
int logits(const Options& options);
int eval(const Options& options);
int tokenize(const Options& options);
int render(const Options& options);
int pull(const Options& options);
int lineage(const Options& options);
int convert(const Options& options);
int plan(const Options& options);
int selfcheck(const Options& options);
int bench(const Options& options);
int serve(const Options& options);

}  // namespace palimpsest::cli
