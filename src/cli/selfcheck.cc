#include "selfcheck/selfcheck.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "report/numbers.h"
#include "report/progress.h"

namespace palimpsest::cli {
namespace {

using nlohmann::ordered_json;

/// "same bits", or "3.1e-06, bound 1.0e-04".
std::string difference(const selfcheck::RowResult& row, double bound) {
  if (row.exact)
    return row.worst == 0 && row.ok ? "same bits" : fmt::format("{:.1e}, bound 0", row.worst);
  return fmt::format("{:.1e}, bound {:.1e}", row.worst, bound);
}

std::string line(const selfcheck::RowResult& row, double bound) {
  std::string text = fmt::format("{:<19} {:<60} {:<24} {}\n", row.name, row.compared,
                                 difference(row, bound), row.ok ? "ok" : "FAILED");
  if (!row.ok) text += fmt::format("    {}\n", row.problem);
  return text;
}

std::string head(const selfcheck::Setting& setting) {
  std::string text = fmt::format("prompts of up to {} tokens, {} threads, {} beside the weights",
                                 report::format_grouped(setting.prompt_tokens), setting.threads,
                                 report::format_bytes(setting.memory));
  if (setting.expected_seconds > 0)
    text += fmt::format(", about {}", report::format_seconds(setting.expected_seconds));
  text += fmt::format(
      "\none unit in the last place of every activation moves logits by {:.1e} of the largest\n\n",
      setting.rounding);
  return text + fmt::format("{:<19} {:<60} {:<24}\n", "row", "against an empty state, alone",
                            "largest difference");
}

ordered_json to_json(const selfcheck::RowResult& row) {
  ordered_json json = {{"name", row.name},      {"compared", row.compared},
                       {"exact", row.exact},    {"ok", row.ok},
                       {"worst", row.worst},    {"comparisons", row.comparisons},
                       {"seconds", row.seconds}};
  if (!row.ok) json["problem"] = row.problem;
  return json;
}

}  // namespace

int selfcheck(const Options& options) {
  const std::shared_ptr<const Model> model = load_model(options);
  Interruptible interrupt;
  report::ProgressBar bar({.title = "checking"}, stderr, report::inspect_terminal(stderr));
  selfcheck::Options choices;
  choices.threads = static_cast<int>(options.threads);
  const SessionOptions session = session_options(options);
  choices.cache_type = session.cache_type;
  choices.page_type = session.page_type;
  choices.activations = session.activations;
  choices.prompt_tokens = options.prompt_tokens.value_or(0);
  choices.quick = options.quick;
  if (options.seed >= 0) choices.seed = static_cast<std::uint64_t>(options.seed);
  choices.cancel = &interrupt.flag();
  choices.on_progress = [&](std::int64_t done, std::int64_t total) { bar.update(done, total); };

  ordered_json rows = ordered_json::array();
  double bound = 0;
  std::int64_t failed = 0;
  const auto on_setting = [&](const selfcheck::Setting& setting) {
    bound = setting.bound;
    bar.wipe();
    if (!options.json) print(head(setting));
  };
  const auto on_result = [&](const selfcheck::RowResult& row) {
    failed += !row.ok;
    rows.push_back(to_json(row));
    bar.wipe();
    if (!options.json) print(line(row, bound));
  };
  const selfcheck::Setting setting = selfcheck::run(model, choices, on_setting, on_result);
  bar.finish();
  if (options.json) {
    const ordered_json json = {{"model", options.model},
                               {"prompt_tokens", setting.prompt_tokens},
                               {"threads", setting.threads},
                               {"cache_type", options.cache_type},
                               {"page_type", options.page_type},
                               {"activations", options.activations},
                               {"memory", setting.memory},
                               {"rounding", setting.rounding},
                               {"bound", setting.bound},
                               {"rows", rows},
                               {"ok", failed == 0}};
    print(json.dump(1) + "\n");
  } else {
    print(failed == 0 ? fmt::format("\nall {} rows hold\n", rows.size())
                      : fmt::format("\n{} of {} rows FAILED\n", failed, rows.size()));
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace palimpsest::cli
