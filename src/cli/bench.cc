#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/error.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "formats/atomic_file.h"
#include "machine/machine.h"
#include "report/progress.h"

namespace palimpsest::cli {
namespace {

using Numbers = std::vector<std::int64_t>;
using Kind = BenchCase::Kind;

/// "1,2,4": whole numbers within [least, most], at most 64 of them.
Numbers parse_numbers(std::string_view flag, const std::string& text, std::int64_t least, std::int64_t most) {
  Numbers numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    if (error != std::errc() || stop != text.data() + end || value < least || value > most) {
      throw make_error(ErrorCode::kUsage, "{}: '{}' is not a number from {} to {} (a list is written 1,2,4)", flag,
                       text.substr(begin, end - begin), least, most);
    }
    numbers.push_back(value);
    begin = end + 1;
  }
  if (numbers.size() > 64) throw make_error(ErrorCode::kUsage, "{}: {} numbers; 64 are the most", flag, numbers.size());
  return numbers;
}

/// The values of one quantity: what is varied, and what it is while others are.
struct Choice {
  Numbers values;
  bool given = false;
};

Choice choose(std::string_view flag, const std::optional<std::string>& text, std::int64_t by_default, std::int64_t least, std::int64_t most) {
  return text ? Choice{parse_numbers(flag, *text, least, most), true} : Choice{{by_default}, false};
}

/// Powers of two below `most`, and it.
Numbers powers_up_to(std::int64_t first, std::int64_t most) {
  Numbers numbers;
  for (std::int64_t n = first; n < most; n *= 2) numbers.push_back(n);
  numbers.push_back(most);
  return numbers;
}

/// Every combination of the lists that are given. With --sweep each of the others is varied alone besides.
std::vector<BenchCase> cases_of(const Options& options) {
  const std::int64_t cores = probe_machine().cores;
  const Choice prompts = choose("-p", options.bench_prompt, 512, 0, 1 << 24), predicts = choose("-n", options.bench_predict, 128, 0, 1 << 24);
  Choice threads = choose("-t", options.bench_threads, cores, 0, 1024);
  const Choice passes = choose("-ub", options.bench_ubatch, 512, 1, 65536), sequences = choose("-np", options.bench_sequences, 1, 1, 4096);
  for (std::int64_t& t : threads.values) t = t == 0 ? cores : t;

  std::vector<BenchCase> cases;
  const auto add = [&](const Numbers& all_threads, const Numbers& all_passes, const Numbers& all_sequences, bool reads, bool writes) {
    for (const std::int64_t t : all_threads) {
      const auto add_case = [&](Kind kind, std::int64_t tokens, std::int64_t ubatch, std::int64_t count) {
        const BenchCase c{kind, tokens, static_cast<int>(t), ubatch, count};
        if (tokens > 0 && std::find(cases.begin(), cases.end(), c) == cases.end()) cases.push_back(c);
      };
      for (const std::int64_t tokens : reads ? prompts.values : Numbers{}) {
        for (const std::int64_t ubatch : all_passes) add_case(Kind::kPrefill, tokens, std::min(ubatch, std::max<std::int64_t>(tokens, 1)), 1);
      }
      for (const std::int64_t tokens : writes ? predicts.values : Numbers{}) {
        for (const std::int64_t count : all_sequences) add_case(Kind::kDecode, tokens, 512, count);
      }
    }
  };
  if (options.sweep && !threads.given) add(powers_up_to(1, cores), passes.values, sequences.values, true, true);
  add(threads.values, passes.values, sequences.values, true, true);
  if (options.sweep && !passes.given) add(threads.values, powers_up_to(32, 1024), sequences.values, true, false);
  if (options.sweep && !sequences.given) add(threads.values, passes.values, powers_up_to(1, 16), false, true);
  if (cases.empty()) throw make_error(ErrorCode::kUsage, "nothing to measure: -p 0 and -n 0");
  return cases;
}

MachineLimits measure_limits(std::int64_t buffer, int threads) {
  return {measure_read_bandwidth(buffer, threads, Pages::kSmall), measure_read_bandwidth(buffer, threads, Pages::kHuge), measure_fma_rate(threads)};
}

/// As large as the model, but at most 2 GiB (no cache is), and what memory has room for beside it.
std::int64_t probe_bytes(const Model& model) {
  return std::clamp<std::int64_t>(model.file_bytes(), 1 << 20, std::min<std::int64_t>(std::int64_t{2} << 30, std::max<std::int64_t>(probe_machine().memory_available / 4, 1 << 20)));
}

void measure_all(const Options& options, const std::vector<BenchCase>& cases, BenchReport& report) {
  const report::Terminal terminal = report::inspect_terminal(stderr);
  const Interruptible interrupt;
  const auto say = [&](const std::string& text) {
    if (!options.json) print(text);
  };
  say(bench_heading(report));
  const bool on_device = report.model->device_bytes() > 0;
  if (on_device) say("computed on the CUDA device; shares of its limits are not known\n");
  int heading_for = 0;
  for (const BenchCase& what : cases) {
    if (on_device) {
      report.limits[what.threads] = {};
    } else if (!report.limits.contains(what.threads)) {
      report.limits[what.threads] = measure_limits(report.buffer_bytes, what.threads);
      say(limits_text(report, what.threads));
    }
    if (heading_for != what.threads || options.profile) say(row_heading());
    heading_for = what.threads;
    report::ProgressBar bar({.title = "measuring " + bench_name(what)}, stderr, terminal);
    const BenchOptions bench{.repetitions = static_cast<int>(options.repetitions),
                             .warm_up = !options.no_warmup,
                             .profile = options.profile,
                             .depth = options.depth,
                             .cache_type = session_options(options).cache_type,
                             .activations = session_options(options).activations,
                             .pin_threads = options.pin,
                             .stop = [&](int repetition) {
                               bar.update(repetition, options.repetitions);
                               return interrupt.cancelled();
                             }};
    report.results.push_back(measure_model(report.model, what, bench));
    bar.finish();
    say(row_text(report, report.results.back()));
    if (options.profile) say(profile_text(report, report.results.back()));
  }
}

}  // namespace

int bench(const Options& options) {
  const std::vector<BenchCase> cases = cases_of(options);
  if (options.svg && !varies(cases)) {
    throw make_error(ErrorCode::kUsage, "--svg {}: nothing to draw, since all rows have the same threads, passes and sequences; give a list or --sweep", *options.svg);
  }
  if (options.svg) require_writable(*options.svg);
  const auto start = std::chrono::steady_clock::now();
  BenchReport report{.model = load_model(options), .limits = {}, .results = {}};
  report.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.buffer_bytes = probe_bytes(*report.model);
  measure_all(options, cases, report);
  if (options.json) print(to_json(report).dump(1) + "\n");
  if (!options.svg) return 0;
  const std::string picture = to_svg(report);
  formats::AtomicFile file(*options.svg);
  file.write(picture.data(), picture.size());
  file.commit();
  return 0;
}

}  // namespace palimpsest::cli
