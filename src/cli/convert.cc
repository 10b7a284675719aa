#include "convert/gguf_export.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/evaluate.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "report/numbers.h"
#include "report/progress.h"
#include "report/table.h"

namespace palimpsest::cli {
namespace {

std::optional<palimpsest::convert::Form> form_of(const std::optional<std::string>& name) {
  return name ? palimpsest::convert::parse_form(*name) : std::nullopt;
}

std::string report_text(const palimpsest::convert::Report& report) {
  using report::Align;
  const auto bytes = [](std::uint64_t n) {
    return report::format_bytes(static_cast<std::int64_t>(n));
  };
  report::Table table({{"role"},
                       {"from"},
                       {"to"},
                       {"matrices", Align::kRight},
                       {"before", Align::kRight},
                       {"after", Align::kRight},
                       {"max error", Align::kRight},
                       {"rms error", Align::kRight}});
  for (const auto& role : report.roles) {
    table.add_row({role.role, role.from, role.to, report::format_grouped(role.matrices),
                   bytes(role.bytes_before), bytes(role.bytes_after),
                   fmt::format("{:.2e}", role.max_error), fmt::format("{:.2e}", role.rms_error)});
  }
  return table.to_string() +
         fmt::format("all tensors: {} -> {} in {} file(s), read again and compared\n",
                     bytes(report.bytes_before), bytes(report.bytes_after), report.shards);
}

palimpsest::convert::Report convert_with_progress(const Options& options) {
  const Interruptible interrupt;
  report::ProgressBar bar({.title = "converting", .bytes = true}, stderr,
                          report::inspect_terminal(stderr));
  palimpsest::convert::Report report = palimpsest::convert::convert_checkpoint(
      {.input = options.model,
       .output = *options.output,
       .weights = form_of(options.weights),
       .experts = form_of(options.experts),
       .shard_bytes = static_cast<std::uint64_t>(parse_size("--shard-size", options.shard_size.value_or("4GiB"))),
       .force = options.force,
       .threads = static_cast<int>(options.threads),
       .on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); },
       .cancelled = &interrupt.flag()});
  bar.finish();
  return report;
}

palimpsest::convert::GgufType gguf_type(const std::optional<std::string>& name) {
  using palimpsest::convert::Form;
  using palimpsest::convert::GgufType;
  if (!name) return GgufType::kAsStored;
  switch (*form_of(name)) {
    case Form::kBf16: return GgufType::kBF16;
    case Form::kF16: return GgufType::kF16;
    case Form::kInt8: return GgufType::kQ8_0;
    case Form::kMxfp4: return GgufType::kMxfp4;
  }
  return GgufType::kAsStored;
}

/// What does not end in .gguf could not be run. A file that is there is only replaced on demand, and nothing else ever.
void check_gguf_output(const std::filesystem::path& file, bool force) {
  std::error_code error;
  if (file.extension() != ".gguf")
    throw make_error(ErrorCode::kUsage, "--output: '{}' must end in .gguf", file.string());
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, error))) return;
  if (!force)
    throw make_error(ErrorCode::kUsage, "--output: '{}' exists; --force replaces it", file.string());
  if (!std::filesystem::is_regular_file(file, error)) {
    throw make_error(ErrorCode::kUsage,
                     "--output: '{}' exists and is no file, so --force does not replace it",
                     file.string());
  }
}

palimpsest::convert::Report convert_to_gguf(const Options& options) {
  if (options.shard_size)
    throw make_error(ErrorCode::kUsage, "--shard-size: --to gguf writes one file of any size");
  check_gguf_output(*options.output, options.force);
  const Interruptible interrupt;
  report::ProgressBar bar({.title = "converting", .bytes = true}, stderr,
                          report::inspect_terminal(stderr));
  palimpsest::convert::Report report = palimpsest::convert::export_gguf(
      options.model, *options.output,
      {.matrices = gguf_type(options.weights),
       .experts = gguf_type(options.experts ? options.experts : options.weights),
       .threads = static_cast<int>(options.threads),
       .on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); },
       .cancelled = &interrupt.flag()});
  bar.finish();
  return report;
}

/// Perplexity of the old and the new model.
std::string comparison_text(const Evaluation& before, const Evaluation& after) {
  report::Table table(
      {{""}, {"before", report::Align::kRight}, {"after", report::Align::kRight}, {""}});
  table.add_row({"nats per token", fmt::format("{:.4f}", before.nats_per_token()),
                 fmt::format("{:.4f}", after.nats_per_token()),
                 fmt::format("{:+.4f}", after.nats_per_token() - before.nats_per_token())});
  table.add_row({"perplexity", fmt::format("{:.3f}", before.perplexity()),
                 fmt::format("{:.3f}", after.perplexity()),
                 fmt::format("ratio {:.4f}", after.perplexity() / before.perplexity())});
  return table.to_string();
}

}  // namespace

int convert(const Options& options) {
  model_folder(options.model);  // is there
  std::string text;
  if (options.eval_file) {  // whatever is wrong with it is told before hours of work
    text = read_input(*options.eval_file);
    scored_ids(options, require_tokenizer(options.model, std::nullopt, ", which --eval needs"), text);
  }
  print(report_text(options.to == "gguf" ? convert_to_gguf(options)
                                         : convert_with_progress(options)));
  if (!options.eval_file) return 0;
  Options after = options;
  after.model = *options.output;
  const Evaluation old_model = evaluate(options, options.model, text);
  print(comparison_text(old_model, evaluate(after, options.model, text)));
  return 0;
}

}  // namespace palimpsest::cli
