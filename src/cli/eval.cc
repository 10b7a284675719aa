#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/evaluate.h"
#include "cli/io.h"
#include "report/numbers.h"
#include "report/table.h"

namespace palimpsest::cli {
namespace {

nlohmann::ordered_json json_of(const Evaluation& result, const std::string& activations) {
  return {{"activations", activations},
          {"tokens", result.tokens},
          {"window", result.window},
          {"windows", result.windows},
          {"scored", result.scored},
          {"nll_sum", result.nll_sum},
          {"nll_mean", result.nats_per_token()},
          {"perplexity", result.perplexity()},
          {"bits_per_byte", result.bits_per_byte()},
          {"bytes_covered", result.bytes},
          {"seconds", result.seconds}};
}

void print_result(const Evaluation& result, const Options& options) {
  if (options.json) {
    print(json_of(result, options.activations).dump(1) + "\n");
    return;
  }
  print(fmt::format("nats per token  {:.4f}\nperplexity      {:.3f}\nbits per byte   {:.4f}\n",
                    result.nats_per_token(), result.perplexity(), result.bits_per_byte()));
}

/// The text scored with every form of activations, side by side; ratios are to F32.
void print_all(const std::array<std::pair<const char*, Evaluation>, 3>& results, bool json) {
  const Evaluation& f32 = results[0].second;
  if (json) {
    nlohmann::ordered_json out;
    for (const auto& [name, result] : results) {
      out[name] = json_of(result, name);
      out[name]["perplexity_ratio"] = result.perplexity() / f32.perplexity();
    }
    print(out.dump(1) + "\n");
    return;
  }
  using report::Align;
  report::Table table({{"activations"}, {"nats per token", Align::kRight}, {"perplexity", Align::kRight}, {"bits per byte", Align::kRight},
                       {"ratio of perplexities", Align::kRight}});
  for (const auto& [name, result] : results) {
    table.add_row({name, fmt::format("{:.5f}", result.nats_per_token()), fmt::format("{:.4f}", result.perplexity()),
                   fmt::format("{:.5f}", result.bits_per_byte()), fmt::format("{:.6f}", result.perplexity() / f32.perplexity())});
  }
  print(table.to_string());
}

}  // namespace

int eval(const Options& options) {
  const std::string text = text_argument(options, "text");
  Evaluation result;
  if (options.activations == "all") {
    std::array<std::pair<const char*, Evaluation>, 3> results = {{{"f32", {}}, {"q16", {}}, {"q8", {}}}};
    for (auto& [name, of] : results) {
      Options with = options;
      with.activations = name;
      of = evaluate(with, options.model, text);
    }
    print_all(results, options.json);
    result = results[0].second;
  } else {
    result = evaluate(options, options.model, text);
    print_result(result, options);
  }
  std::fprintf(stderr, "%s\n",
               fmt::format("{} tokens in {} windows of {}, {} scored, {} tokens/s | {}",
                           report::format_grouped(result.tokens), result.windows, result.window,
                           report::format_grouped(result.scored),
                           report::format_rate(result.tokens, result.seconds), result.memory)
                   .c_str());
  return 0;
}

}  // namespace palimpsest::cli
