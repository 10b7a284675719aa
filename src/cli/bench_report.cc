#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "machine/machine.h"
#include "model/weight_spec.h"
#include "report/numbers.h"
#include "report/svg.h"
#include "report/table.h"
#include "tensor/exec_context.h"

namespace palimpsest::cli {
namespace {

using Kind = BenchCase::Kind;
using nlohmann::ordered_json;

constexpr std::string_view kRow = "{:<9} {:>7} {:>6} {:>5}  {:>10}  {:>10} {:>9} {:>5}  {:>9} {:>7} {:>8}  {:>8} {:>7}\n";

std::string percent(double part, double whole) { return whole > 0 ? fmt::format("{:.0f}%", 100 * part / whole) : "-"; }

double a_second(double amount, const BenchResult& result) { return amount / result.best_seconds(); }
double bytes_a_token(const BenchResult& result) { return result.bytes / static_cast<double>(result.tokens()); }

/// How many cores the threads had on average in the best repetition: fewer than threads where others had them.
double cores_had(const BenchResult& result) {
  const auto best = std::min_element(result.seconds.begin(), result.seconds.end());
  return result.cpu_seconds[static_cast<std::size_t>(best - result.seconds.begin())] / *best;
}

ParameterCount parameters_of(const ModelConfig& config) { return count_parameters(config, weight_spec(config)); }

std::string rate(double amount, double seconds, std::string_view unit) {
  return amount > 0 && seconds > 0 ? fmt::format("{:.1f} {}", amount / seconds * 1e-9, unit) : "";
}

ordered_json row_json(const BenchResult& result, const MachineLimits& limits) {
  const BenchCase& what = result.what;
  std::vector<double> all;
  for (const double s : result.seconds) all.push_back(static_cast<double>(result.tokens()) / s);
  ordered_json json = {{"test", bench_name(what)},
                       {"kind", what.kind == Kind::kPrefill ? "prefill" : "decode"},
                       {"tokens", what.tokens},
                       {"threads", what.threads},
                       {"ubatch", what.kind == Kind::kPrefill ? ordered_json(what.ubatch) : ordered_json(nullptr)},
                       {"sequences", what.sequences},
                       {"tokens_per_second", {{"best", result.best()}, {"mean", result.mean()}, {"spread", result.spread()}, {"all", all}}},
                       {"cpu_seconds", result.cpu_seconds},
                       {"bytes_per_token", bytes_a_token(result)},
                       {"flops_per_token", result.flops / static_cast<double>(result.tokens())},
                       {"bytes_per_second", a_second(result.bytes, result)},
                       {"flops_per_second", a_second(result.flops, result)},
                       {"share_of_read", a_second(result.bytes, result) / limits.read()},
                       {"share_of_multiply_adds", a_second(result.flops, result) / limits.multiply_adds}};
  if (result.profiled_seconds <= 0) return json;
  ordered_json ops = ordered_json::array();
  for (const OpProfile::Entry& e : result.profile.entries()) {
    ops.push_back({{"op", op_name(e.op)}, {"form", e.form}, {"calls", e.calls}, {"seconds", e.seconds}, {"flops", e.flops}, {"bytes", e.bytes}});
  }
  json["profile"] = {{"seconds", result.profiled_seconds}, {"between_ops", result.profiled_seconds - result.profile.seconds()}, {"ops", ops}};
  return json;
}

/// One quantity that rows may differ in.
struct Axis {
  std::string name;
  Kind kind;
  std::function<double(const BenchCase&)> value;
  std::function<BenchCase(BenchCase)> without;  ///< the case with this quantity made equal
};

std::vector<Axis> axes() {
  std::vector<Axis> all;
  for (const Kind kind : {Kind::kPrefill, Kind::kDecode}) {
    all.push_back({"threads", kind, [](const BenchCase& c) { return static_cast<double>(c.threads); }, [](BenchCase c) { return c.threads = 1, c; }});
  }
  all.push_back({"tokens of a pass", Kind::kPrefill, [](const BenchCase& c) { return static_cast<double>(c.ubatch); }, [](BenchCase c) { return c.ubatch = 1, c; }});
  all.push_back({"sequences", Kind::kDecode, [](const BenchCase& c) { return static_cast<double>(c.sequences); }, [](BenchCase c) { return c.sequences = 1, c; }});
  return all;
}

std::string series_name(const Axis& axis, const BenchCase& what) {
  std::string name = bench_name(what);
  if (axis.name != "threads") name += fmt::format(", {} threads", what.threads);
  if (axis.name == "threads" && what.kind == Kind::kPrefill) name += fmt::format(", passes of {}", what.ubatch);
  if (axis.name == "threads" && what.sequences > 1) name += fmt::format(", {} sequences", what.sequences);
  return name;
}

report::LinePlot plot_along(const Axis& axis, const std::vector<BenchResult>& results) {
  report::LinePlot plot{.title = axis.kind == Kind::kPrefill ? "Reading a prompt" : "Writing",
                        .x_label = axis.name,
                        .y_label = "tokens a second",
                        .series = {},
                        .y_from_zero = true};
  std::vector<BenchCase> groups;
  for (const BenchResult& r : results) {
    if (r.what.kind != axis.kind) continue;
    const BenchCase group = axis.without(r.what);
    auto at = static_cast<std::size_t>(std::find(groups.begin(), groups.end(), group) - groups.begin());
    if (at == groups.size()) groups.push_back(group), plot.series.push_back({series_name(axis, r.what), {}, {}});
    plot.series[at].x.push_back(axis.value(r.what));
    plot.series[at].y.push_back(r.best());
  }
  std::erase_if(plot.series, [](const report::Series& s) { return s.x.size() < 2; });
  return plot;
}

}  // namespace

std::string bench_name(const BenchCase& what) {
  return fmt::format("{}{}", what.kind == Kind::kPrefill ? "pp" : "tg", what.tokens);
}

std::string bench_heading(const BenchReport& r) {
  const ModelConfig& config = r.model->config();
  const ParameterCount parameters = parameters_of(config);
  return fmt::format("{}: {}, {} parameters, {} for a token; {} on disk, loaded in {:.2f} s; {} kernels\n", r.model->path().string(), family_name(config.family),
                     report::format_count(parameters.total), report::format_count(parameters.active), report::format_bytes(r.model->file_bytes()),
                     r.load_seconds, probe_machine().target);
}

std::string limits_text(const BenchReport& r, int threads) {
  const MachineLimits& limits = r.limits.at(threads);
  return fmt::format("{} thread{}: reads {:.1f} GB/s over {} in small pages, {:.1f} in huge ones; multiply-adds {:.1f} GFLOP/s\n", threads,
                     threads == 1 ? "" : "s", limits.read_small_pages * 1e-9, report::format_bytes(r.buffer_bytes),
                     limits.read_huge_pages * 1e-9, limits.multiply_adds * 1e-9);
}

std::string row_heading() {
  return fmt::format(kRow, "test", "threads", "ubatch", "batch", "best t/s", "mean t/s", "spread", "cores", "MB/token", "GB/s", "of read", "GFLOP/s", "of FMA");
}

std::string row_text(const BenchReport& r, const BenchResult& result) {
  const BenchCase& what = result.what;
  const MachineLimits& limits = r.limits.at(what.threads);
  const double read = a_second(result.bytes, result), flops = a_second(result.flops, result);
  const auto number = [](double x) { return x < 100 ? fmt::format("{:.2f}", x) : fmt::format("{:.0f}", x); };
  return fmt::format(kRow, bench_name(what), what.threads, what.kind == Kind::kPrefill ? std::to_string(what.ubatch) : "-", what.sequences,
                     number(result.best()), number(result.mean()), "± " + number(result.spread()), fmt::format("{:.1f}", cores_had(result)), number(bytes_a_token(result) * 1e-6),
                     fmt::format("{:.1f}", read * 1e-9), percent(read, limits.read()), fmt::format("{:.1f}", flops * 1e-9),
                     percent(flops, limits.multiply_adds));
}

std::string profile_text(const BenchReport& r, const BenchResult& result) {
  const MachineLimits& limits = r.limits.at(result.what.threads);
  std::vector<OpProfile::Entry> entries = result.profile.entries();
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  using report::Align;
  report::Table table({{""}, {"", Align::kRight}, {"", Align::kRight}, {"", Align::kRight}, {"", Align::kRight}, {"", Align::kRight}, {"", Align::kRight}, {"", Align::kRight}});
  table.add_row({"op", "calls", "ms", "time", "rate", "of read", "rate", "of FMA"});
  const auto row = [&](std::string name, std::string calls, double seconds, double bytes, double flops) {
    table.add_row({std::move(name), std::move(calls), fmt::format("{:.2f}", seconds * 1e3), percent(seconds, result.profiled_seconds),
                   rate(bytes, seconds, "GB/s"), bytes > 0 ? percent(bytes / seconds, limits.read()) : "",
                   rate(flops, seconds, "GFLOP/s"), flops > 0 ? percent(flops / seconds, limits.multiply_adds) : ""});
  };
  for (const OpProfile::Entry& e : entries) {
    row(std::string(op_name(e.op)) + (e.form.empty() ? "" : " " + std::string(e.form)), report::format_grouped(e.calls), e.seconds, e.bytes, e.flops);
  }
  row("between ops", "", result.profiled_seconds - result.profile.seconds(), 0, 0);
  return table.to_string(4);
}

ordered_json to_json(const BenchReport& r) {
  const ModelConfig& config = r.model->config();
  const ParameterCount parameters = parameters_of(config);
  const MachineInfo machine = probe_machine();
  ordered_json limits = ordered_json::array(), rows = ordered_json::array();
  for (const auto& [threads, of] : r.limits) {
    limits.push_back({{"threads", threads}, {"read_small_pages", of.read_small_pages}, {"read_huge_pages", of.read_huge_pages}, {"multiply_adds", of.multiply_adds}});
  }
  for (const BenchResult& result : r.results) rows.push_back(row_json(result, r.limits.at(result.what.threads)));
  return {{"model",
           {{"path", r.model->path().string()},
            {"family", family_name(config.family)},
            {"parameters", parameters.total},
            {"active_parameters", parameters.active},
            {"file_bytes", r.model->file_bytes()},
            {"load_seconds", r.load_seconds}}},
          {"machine", {{"cores", machine.cores}, {"kernels", machine.target}, {"l2_bytes", machine.l2_bytes}, {"l3_bytes", machine.l3_bytes}, {"buffer_bytes", r.buffer_bytes}, {"limits", limits}}},
          {"rows", rows}};
}

bool varies(const std::vector<BenchCase>& cases) {
  for (const Axis& axis : axes()) {
    for (const BenchCase& a : cases) {
      for (const BenchCase& b : cases) {
        if (a.kind == axis.kind && axis.value(a) != axis.value(b) && axis.without(a) == axis.without(b)) return true;
      }
    }
  }
  return false;
}

std::string to_svg(const BenchReport& r) {
  std::vector<std::string> pictures;
  const report::LinePlot sizes;
  for (const Axis& axis : axes()) {
    const report::LinePlot plot = plot_along(axis, r.results);
    if (!plot.series.empty()) pictures.push_back(report::to_svg(plot));
  }
  return report::stack_svg(pictures, sizes.width, sizes.height);
}

}  // namespace palimpsest::cli
