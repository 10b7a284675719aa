#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/evaluate.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "model/state_spec.h"
#include "report/numbers.h"
#include "report/table.h"

namespace palimpsest::cli {
namespace {

std::string types_of(const SessionOptions& session) {
  return fmt::format("{} lists, {} pages", list_type_name(session.cache_type),
                     list_type_name(session.page_type));
}

/// all: a drift is from F32 activations, else from the default types.
nlohmann::ordered_json to_json(const Evaluation& result, const SessionOptions& session,
                               const std::string& activations, bool all = false) {
  nlohmann::ordered_json out = {{"activations", activations},
                                {"tokens", result.tokens},
                                {"window", result.window},
                                {"windows", result.windows},
                                {"scored", result.scored},
                                {"nll_sum", result.nll_sum},
                                {"nll_mean", result.nats_per_token()},
                                {"perplexity", result.perplexity()},
                                {"bits_per_byte", result.bits_per_byte()},
                                {"bytes_covered", result.bytes},
                                {"cache_type", list_type_name(session.cache_type)},
                                {"page_type", list_type_name(session.page_type)},
                                {"seconds", result.seconds}};
  if (!result.drift) return out;
  const Drift& drift = *result.drift;
  const auto scored = static_cast<double>(result.scored);
  const SessionOptions usual = all ? session : with_default_types(session);
  out["compare"] = {{"activations", all ? "f32" : activations},
                    {"cache_type", list_type_name(usual.cache_type)},
                    {"page_type", list_type_name(usual.page_type)},
                    {"nll_sum", drift.nll_sum},
                    {"nll_mean", drift.nll_sum / scored},
                    {"nll_difference", (result.nll_sum - drift.nll_sum) / scored},
                    {"kl_mean", drift.kl_sum / scored},
                    {"kl_largest", drift.kl_largest},
                    {"logit_difference_largest", drift.largest_logit_difference},
                    {"same_top", drift.same_top}};
  return out;
}

std::string drift_text(const Evaluation& result, const SessionOptions& session) {
  const Drift& drift = *result.drift;
  const auto scored = static_cast<double>(result.scored);
  return fmt::format(
      "\n{} against {}\n"
      "nats per token  {:+.6f} (from {:.4f})\n"
      "KL              mean {:.3g}, largest {:.3g} nats\n"
      "logits          differ by at most {:.3g}\n"
      "likeliest token the same for {:.2f}%\n",
      types_of(session), types_of(with_default_types(session)),
      (result.nll_sum - drift.nll_sum) / scored, drift.nll_sum / scored, drift.kl_sum / scored,
      drift.kl_largest, drift.largest_logit_difference,
      100 * static_cast<double>(drift.same_top) / scored);
}

void print_result(const Evaluation& result, const Options& options) {
  const SessionOptions session = session_options(options);
  if (options.json) {
    print(to_json(result, session, options.activations).dump(1) + "\n");
    return;
  }
  print(fmt::format("nats per token  {:.4f}\nperplexity      {:.3f}\nbits per byte   {:.4f}\n",
                    result.nats_per_token(), result.perplexity(), result.bits_per_byte()));
  if (result.drift) print(drift_text(result, session));
}

using AllForms = std::array<Evaluation, kActivationNames.size()>;

/// The text scored with every form of activations, side by side; ratios, KL and likeliest tokens are to F32.
void print_all(const AllForms& results, const Options& options) {
  const Evaluation& f32 = results[0];
  if (options.json) {
    const SessionOptions session = session_options(options);
    nlohmann::ordered_json out;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::string name(kActivationNames[i]);
      const Evaluation& result = results[i];
      out[name] = to_json(result, session, name, true);
      out[name]["perplexity_ratio"] = result.perplexity() / f32.perplexity();
    }
    print(out.dump(1) + "\n");
    return;
  }
  using report::Align;
  report::Table table({{"activations"},
                       {"nats per token", Align::kRight},
                       {"perplexity", Align::kRight},
                       {"bits per byte", Align::kRight},
                       {"ratio of perplexities", Align::kRight},
                       {"KL (mean)", Align::kRight},
                       {"KL (largest)", Align::kRight},
                       {"same likeliest token", Align::kRight}});
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Evaluation& result = results[i];
    const auto scored = static_cast<double>(result.scored);
    const Drift none{.same_top = result.scored}, &drift = result.drift ? *result.drift : none;
    table.add_row({std::string(kActivationNames[i]), fmt::format("{:.5f}", result.nats_per_token()),
                   fmt::format("{:.4f}", result.perplexity()),
                   fmt::format("{:.5f}", result.bits_per_byte()),
                   fmt::format("{:.6f}", result.perplexity() / f32.perplexity()),
                   fmt::format("{:.3g}", drift.kl_sum / scored),
                   fmt::format("{:.3g}", drift.kl_largest),
                   fmt::format("{:.2f}%", 100 * static_cast<double>(drift.same_top) / scored)});
  }
  print(table.to_string());
}

}  // namespace

int eval(const Options& options) {
  const std::string text = text_argument(options, "text");
  Evaluation result;
  if (options.activations == "all") {
    if (options.compare)
      throw Error(ErrorCode::kUsage, "--compare: goes with one form of --activations, not all");
    AllForms results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      Options with = options;
      with.activations = kActivationNames[i];
      results[i] = evaluate(with, options.model, text, i == 0 ? std::nullopt : std::optional(Activations::kF32));
    }
    print_all(results, options);
    result = results[0];
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
