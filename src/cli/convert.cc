#include "convert/convert.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/evaluate.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "formats/checkpoint.h"
#include "model/gguf/gguf_export.h"
#include "report/numbers.h"
#include "report/progress.h"
#include "report/table.h"

namespace palimpsest::cli {
namespace {

/// "500MB", "4GiB", "1000000".
std::uint64_t parse_size(std::string_view text) {
  constexpr std::pair<std::string_view, std::uint64_t> kUnits[] = {
      {"", 1},
      {"KB", 1'000},
      {"MB", 1'000'000},
      {"GB", 1'000'000'000},
      {"KiB", std::uint64_t{1} << 10},
      {"MiB", std::uint64_t{1} << 20},
      {"GiB", std::uint64_t{1} << 30}};
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [name, bytes] : kUnits) {
    if (error == std::errc{} && unit == name && number > 0 && number <= kMost / bytes)
      return number * bytes;
  }
  throw make_error(ErrorCode::kUsage, "--shard-size: '{}' is no size such as 500MB or 4GiB", text);
}

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
       .shard_bytes = parse_size(options.shard_size),
       .force = options.force,
       .threads = static_cast<int>(options.threads),
       .on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); },
       .cancelled = &interrupt.flag()});
  bar.finish();
  return report;
}

GgufType gguf_type(const std::optional<std::string>& name) {
  using palimpsest::convert::Form;
  if (!name) return GgufType::kAsStored;
  switch (*form_of(name)) {
    case Form::kBf16: return GgufType::kBF16;
    case Form::kF16: return GgufType::kF16;
    case Form::kInt8: return GgufType::kQ8_0;
    case Form::kMxfp4: return GgufType::kMxfp4;
  }
  return GgufType::kAsStored;
}

/// What the routed experts become: as in a folder, MXFP4 stays where 8 bits are asked of all weights.
GgufType expert_type(const Options& options) {
  if (options.experts || options.weights != "q8")
    return gguf_type(options.experts ? options.experts : options.weights);
  const auto checkpoint = value_or_throw(formats::Checkpoint::open(options.model));
  const auto entries = checkpoint.entries();
  const bool packed = std::any_of(entries.begin(), entries.end(),
                                  [](const auto& e) { return e.name.ends_with("_packed"); });
  return packed ? GgufType::kAsStored : GgufType::kQ8_0;
}

void convert_to_gguf(const Options& options) {
  namespace fs = std::filesystem;
  const fs::path file = *options.output;
  std::error_code error;
  if (fs::exists(file, error)) {
    if (!options.force)
      throw make_error(ErrorCode::kUsage, "--output: '{}' exists; --force replaces it", file.string());
    if (!fs::is_regular_file(file, error) || file.extension() != ".gguf" ||
        fs::equivalent(file, options.model, error)) {
      throw make_error(ErrorCode::kUsage, "--output: '{}' is the input or no .gguf file, so --force does not replace it", file.string());
    }
  }
  report::ProgressBar bar({.title = "converting"}, stderr, report::inspect_terminal(stderr));
  export_gguf(options.model, file,
              {.matrices = gguf_type(options.weights),
               .experts = expert_type(options),
               .on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); }});
  bar.finish();
  print(fmt::format("{}: {}\n", file.string(),
                    report::format_bytes(static_cast<std::int64_t>(fs::file_size(file)))));
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
    require_tokenizer(options.model, std::nullopt, ", which --eval needs");
  }
  if (options.to == "gguf") {
    convert_to_gguf(options);
  } else {
    print(report_text(convert_with_progress(options)));
  }
  if (!options.eval_file) return 0;
  Options after = options;
  after.model = *options.output;
  const Evaluation old_model = evaluate(options, options.model, text);
  print(comparison_text(old_model, evaluate(after, options.model, text)));
  return 0;
}

}  // namespace palimpsest::cli
