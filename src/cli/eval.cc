#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/evaluate.h"
#include "cli/io.h"
#include "report/numbers.h"

namespace palimpsest::cli {
namespace {

void print_result(const Evaluation& result, bool json) {
  if (json) {
    const nlohmann::ordered_json out = {{"tokens", result.tokens},
                                        {"window", result.window},
                                        {"windows", result.windows},
                                        {"scored", result.scored},
                                        {"nll_sum", result.nll_sum},
                                        {"nll_mean", result.nats_per_token()},
                                        {"perplexity", result.perplexity()},
                                        {"bits_per_byte", result.bits_per_byte()},
                                        {"bytes_covered", result.bytes},
                                        {"seconds", result.seconds}};
    print(out.dump(1) + "\n");
    return;
  }
  print(fmt::format("nats per token  {:.4f}\nperplexity      {:.3f}\nbits per byte   {:.4f}\n",
                    result.nats_per_token(), result.perplexity(), result.bits_per_byte()));
}

}  // namespace

int eval(const Options& options) {
  const Evaluation result = evaluate(options, options.model, text_argument(options, "text"));
  print_result(result, options.json);
  std::fprintf(stderr, "%s\n",
               fmt::format("{} tokens in {} windows of {}, {} scored, {} tokens/s | {}",
                           report::format_grouped(result.tokens), result.windows, result.window,
                           report::format_grouped(result.scored),
                           report::format_rate(result.tokens, result.seconds), result.memory)
                   .c_str());
  return 0;
}

}  // namespace palimpsest::cli
