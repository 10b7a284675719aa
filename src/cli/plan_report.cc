#include "cli/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "model/state_spec.h"
#include "report/bars.h"
#include "report/numbers.h"
#include "report/svg.h"
#include "report/table.h"

namespace palimpsest::cli {
namespace {

using report::Align;
using report::format_bytes;
using report::format_grouped;

std::string_view origin_name(WeightOrigin origin) {
  switch (origin) {
    case WeightOrigin::kFiles:
      return "files";
    case WeightOrigin::kIndex:
      return "index";
    case WeightOrigin::kConfig:
      return "config";
  }
  return "";
}

std::string gigabytes_a_second(double bandwidth) {
  return bandwidth < 100e9 ? fmt::format("{:.3g} GB/s", bandwidth / 1e9)
                           : fmt::format("{:.0f} GB/s", bandwidth / 1e9);
}
std::string tokens_a_second(double rate) {
  return fmt::format("{:.3g} tokens/s", rate);
}

std::string heading(const PlanReport& r) {
  std::string text = fmt::format(
      "{} of {} layers, {}", family_name(r.model->config().family), r.model->config().num_layers(),
      r.plan.memory.sequences == 1 ? "one sequence"
                                   : fmt::format("{} sequences", r.plan.memory.sequences));
  text += fmt::format(
      " of {} tokens{}\n", format_grouped(r.plan.memory.context),
      r.request.session.context == 0 ? " (as much as half of the free memory holds)" : "");
  if (r.model->origin() == WeightOrigin::kIndex)
    text += "Not all shards are here: sizes from config.json and the index.\n";
  if (r.model->origin() == WeightOrigin::kConfig)
    text += "No weights are here: sizes from config.json, types as published.\n";
  return text;
}

std::string memory_text(const PlanReport& r) {
  const ModelPlan& plan = r.plan;
  const MemoryPlan& m = plan.memory;
  report::Table table({{""}, {"", Align::kRight}, {""}});
  const auto row = [&](std::string_view name, std::int64_t bytes, std::string note = "") {
    if (bytes != 0) table.add_row({std::string(name), format_bytes(bytes), std::move(note)});
  };
  for (std::size_t k = 0; k < kWeightKinds; ++k)
    row(weight_kind_name(static_cast<WeightKind>(k)), plan.stored[k]);
  row("file headers", plan.headers);
  if (plan.on_host()) {
    row("copies made while loading", plan.copies, "vectors as F32, matrices stored in another order");
  } else {
    row("more than stored", plan.copies, "vectors as F32, heads that are repeated; everything else as stored");
    row("padding", plan.device.padding);
    row("tables of experts", plan.device.expert_tables);
    row("buffers", plan.device.buffers, "for layers that stay with the host, two at a time");
    if (plan.device.host > 0) table.add_row({"less those that stay with the host", "-" + format_bytes(plan.device.host), ""});
  }
  table.add_row({"weights", format_bytes(m.weights), ""});
  row("pages", m.pages - plan.tails, "whatever the length");
  row("convolution tails", plan.tails, "whatever the length");
  row("lists", m.lists, fmt::format("{} for each token", format_bytes(m.list_per_token)));
  row("logits", m.logits);
  row("workspace", m.workspace, fmt::format("passes of {} rows", r.request.session.ubatch));
  row("snapshots", m.cache,
      fmt::format("{} of {} each{}", plan.snapshots.count, format_bytes(plan.snapshots.bytes),
                  plan.snapshots.bytes_at_end == plan.snapshots.bytes
                      ? ""
                      : ", one of them " + format_bytes(plan.snapshots.bytes_at_end)));
  row("pictures", m.pictures, "the vision tower, a picture while it is read, and rows of pictures");
  if (plan.on_host()) row("the program itself", plan.process);
  table.add_row({"total", format_bytes(plan.total()),
                 fmt::format("{} {}", format_bytes(plan.limit),
                             r.has_budget ? "is the budget" : "are available")});
  std::string text = (plan.on_host() ? "\nmemory\n" : "\nthe device's memory\n") + table.to_string(2);
  if (!r.model->unused_tensors().empty() && m.pictures == 0) {
    text += fmt::format(
        "  not counted: {} tensors of the vision tower{}, which the text model does not use\n",
        r.model->unused_tensors().size(),
        r.model->unused_bytes() > 0 ? " (" + format_bytes(r.model->unused_bytes()) + ")" : "");
  }
  return text;
}

std::string host_text(const PlanReport& r) {
  if (r.plan.on_host()) return "";
  const HostShare& h = r.plan.host;
  report::Table table({{""}, {"", Align::kRight}, {""}});
  const auto row = [&](std::string_view name, std::int64_t bytes, std::string note = "") {
    if (bytes != 0) table.add_row({std::string(name), format_bytes(bytes), std::move(note)});
  };
  row("the program itself", r.plan.process, "without the driver's part");
  row("weights", h.weights, "pinned: layers or experts that stay there");
  row("experts", h.experts, "rows and workspace of those that are computed there");
  row("staging", h.staging, "while weights are loaded");
  row("copies", h.copies, "while weights are loaded");
  row("logits", h.logits, "kept for every sequence");
  row("results", h.results, "logits of a pass");
  row("pictures", h.pictures, "rows that the vision tower has made");
  row("at most", r.plan.host_total());
  return "\nthe host's memory beside it\n" + table.to_string(2);
}

std::string fit_text(const PlanReport& r) {
  const ModelPlan& plan = r.plan;
  const std::string each = plan.memory.sequences == 1 ? "" : " for each sequence";
  std::string text = plan.fits() ? "\nIt fits." : "\nIt does not fit.";
  if (!r.would_fit.empty()) text += fmt::format(" What would: {}.", fmt::join(r.would_fit, "; or "));
  const bool unlimited = plan.memory.list_per_token == 0;
  if (plan.longest > 0 && !unlimited)
    text += fmt::format(" The longest context that fits is {} tokens{}.",
                        format_grouped(plan.longest), each);
  if (r.most_sequences > 1)
    text += fmt::format(" As many as {} sequences of {} tokens fit.", r.most_sequences, format_grouped(plan.memory.context));
  if (plan.longest == 0 && plan.longest_from_disk > 0) {
    text += fmt::format(
        " Weights must be read from disk again and again; beside them the longest context is {} "
        "tokens{}.",
        format_grouped(plan.longest_from_disk), each);
  }
  return text + "\n";
}

std::string replay_text(const PlanReport& r) {
  if (r.plan.comparison.fixed == 0) return "";
  std::string text = "\nafter an edit of a prompt as long as the context\n";
  report::Table table({{"tokens that follow", Align::kRight},
                       {"computed again before it, at most", Align::kRight}});
  for (const Replay& replay : r.replays)
    table.add_row({format_grouped(replay.following), format_grouped(replay.at_most)});
  text += table.to_string(2);
  if (r.plan.snapshots.count == 0) text += "  without snapshots everything from the start is\n";
  if (r.spacing > 1)
    text += fmt::format(
        "  {} of snapshots (--cache-ram) would make it 64 tokens, or a quarter of those that "
        "follow\n",
        format_bytes(r.densest_bytes));
  return text;
}

std::string speed_text(const PlanReport& r) {
  const DecodeCost& cost = r.plan.decode;
  report::Table table({{""}, {"", Align::kRight}, {""}});
  table.add_row({"bytes a token touches", format_bytes(cost.total()),
                 fmt::format("weights {}, of which chosen experts {}; pages and tails {}, lists {}",
                             format_bytes(cost.weights), format_bytes(cost.experts),
                             format_bytes(cost.states), format_bytes(cost.lists))});
  if (r.memory_bandwidth > 0)
    table.add_row({"memory reads", gigabytes_a_second(r.memory_bandwidth), "measured now"});
  if (r.disk_bandwidth > 0)
    table.add_row({"disk reads", gigabytes_a_second(r.disk_bandwidth),
                   "measured now, past the system's cache"});
  if (r.speed) {
    table.add_row({"here at most", tokens_a_second(r.speed->tokens_per_second),
                   r.speed->from_disk > 0
                       ? format_bytes(r.speed->from_disk) + " of each token from disk"
                       : "all in memory"});
  }
  const auto bytes = [](double n) { return format_bytes(static_cast<std::int64_t>(n)); };
  const bool computes = r.request.offload.compute && r.host_experts;
  if (r.host_experts) {
    const HostExpertsSpeed& speed = r.host_experts->speed;
    table.add_row({"experts of a token with the host", bytes(r.plan.bus_step.experts),
                   fmt::format("--host-experts compute: at most {}, stream: {}; {} is taken", speed.compute > 0 ? tokens_a_second(speed.compute) : "(reads not measured)",
                               tokens_a_second(speed.stream), computes ? "compute" : "stream")});
    if (r.host_experts->reads > 0) table.add_row({"the host's cores read", gigabytes_a_second(r.host_experts->reads), "measured now"});
  }
  if (r.plan.bus_pass.total() > 0) {
    const double rows = static_cast<double>(r.request.session.ubatch), step = computes ? r.plan.bus_step.dense : r.plan.bus_step.total();
    if (step > 0) table.add_row({"weights over the bus, a token", bytes(step), fmt::format("at an assumed {}", gigabytes_a_second(kBusBandwidth))});
    table.add_row({fmt::format("a pass of {} rows", r.request.session.ubatch), bytes(r.plan.bus_pass.total()),
                   fmt::format("over the bus at an assumed {}: prompts at most {}", gigabytes_a_second(kBusBandwidth), tokens_a_second(rows * kBusBandwidth / r.plan.bus_pass.total()))});
  }
  if (r.on_device) {
    table.add_row({fmt::format("{} x {} at most", r.on_device->count, r.device->name),
                   tokens_a_second(r.on_device->tokens_per_second),
                   fmt::format("{}by its data sheet: {:.0f} GB at {}", r.plan.bus_pass.total() > 0 ? "waiting for the host's weights as above, else " : "",
                               static_cast<double>(r.device->memory) / 1e9,
                               gigabytes_a_second(r.device->bandwidth))});
  }
  return "\nspeed of one sequence, if nothing but moving bytes took time\n" + table.to_string(2);
}

std::vector<std::int64_t> chart_contexts(const PlanReport& r) {
  std::vector<std::int64_t> contexts;
  for (std::int64_t n = 1024;
       n <= std::max<std::int64_t>(r.model->config().max_position_embeddings, 1024) &&
       contexts.size() < 8;
       n *= 4)
    contexts.push_back(n);
  return contexts;
}

std::string comparison_text(const PlanReport& r, int width) {
  const AttentionComparison& c = r.plan.comparison;
  const std::int64_t context = r.plan.memory.context;
  if (c.fixed == 0) return "";
  std::string text =
      "\na sequence's memory, against a model of the same depth in which every layer attends\n";
  const auto contexts = chart_contexts(r);
  // Bars are logarithms: a factor of ten is as long everywhere.
  const double least = std::log10(static_cast<double>(std::min(
                           c.bytes(contexts.front()), c.all_attention_bytes(contexts.front())))) -
                       0.5;
  std::vector<report::BarRow> rows;
  for (const std::int64_t n : contexts) {
    const auto row = [&](std::string label, std::int64_t bytes) {
      rows.push_back(
          {std::move(label), std::log10(static_cast<double>(bytes)) - least, format_bytes(bytes)});
    };
    row(fmt::format("  {:>9} tokens  this model", format_grouped(n)), c.bytes(n));
    row("                    attention", c.all_attention_bytes(n));
  }
  text += report::bar_chart(rows, width);
  text += "  (the scale of the bars is logarithmic)\n";
  if (const auto crossover = c.crossover())
    text += fmt::format("  from {} tokens on this model takes less", format_grouped(*crossover));
  text += fmt::format("; with {} tokens it takes {} instead of {}", format_grouped(context),
                      format_bytes(c.bytes(context)), format_bytes(c.all_attention_bytes(context)));
  if (c.reduction(context) > 0) text += fmt::format(", {:.1f}% less", 100 * c.reduction(context));
  return text + "\n";
}

}  // namespace

std::string to_text(const PlanReport& report, int width) {
  return heading(report) + memory_text(report) + host_text(report) + fit_text(report) + replay_text(report) +
         speed_text(report) + comparison_text(report, width);
}

nlohmann::ordered_json to_json(const PlanReport& r) {
  using nlohmann::ordered_json;
  const ModelPlan& plan = r.plan;
  const MemoryPlan& m = plan.memory;
  const AttentionComparison& c = plan.comparison;
  ordered_json weights;
  for (std::size_t k = 0; k < kWeightKinds; ++k)
    weights[std::string(weight_kind_key(static_cast<WeightKind>(k)))] = plan.stored[k];
  weights["headers"] = plan.headers;
  weights["copies"] = plan.copies;
  weights["padding"] = plan.device.padding;
  weights["expert_tables"] = plan.device.expert_tables;
  weights["buffers"] = plan.device.buffers;
  weights["with_host"] = -plan.device.host;  // so that all add up to the total
  weights["total"] = m.weights;
  const auto number = [](double value) {
    return value > 0 ? ordered_json(value) : ordered_json(nullptr);
  };
  ordered_json replays = ordered_json::array();
  for (const Replay& replay : r.replays)
    replays.push_back({{"following", replay.following}, {"at_most", replay.at_most}});
  ordered_json json = {
      {"family", family_name(r.model->config().family)},
      {"sizes_from", origin_name(r.model->origin())},
      {"context", m.context},
      {"sequences", m.sequences},
      {"ubatch", r.request.session.ubatch},
      {"cache_type", list_type_name(r.request.session.cache_type)},
      {"page_type", list_type_name(r.request.session.page_type)},
      {"weights", weights},
      {"unused",
       {{"tensors", r.model->unused_tensors().size()}, {"bytes", r.model->unused_bytes()}}},
      {"memory",
       {{"weights", m.weights},
        {"pages", m.pages - plan.tails},
        {"tails", plan.tails},
        {"list_per_token", m.list_per_token},
        {"lists", m.lists},
        {"logits", m.logits},
        {"workspace", m.workspace},
        {"snapshots", m.cache},
        {"pictures", m.pictures},
        {"process", plan.on_host() ? plan.process : 0},
        {"total", plan.total()}}},
      {"where", plan.on_host() ? "cpu" : "cuda"},
      {"limit", {{"bytes", plan.limit}, {"is_budget", r.has_budget}}},
      {"fits", plan.fits()},
      {"longest_context", plan.longest},
      {"most_sequences", r.most_sequences},
      {"longest_context_from_disk", plan.longest_from_disk},
      {"snapshots",
       {{"bytes_each", plan.snapshots.bytes},
        {"bytes_at_end", plan.snapshots.bytes_at_end},
        {"count", plan.snapshots.count},
        {"spacing", r.spacing},
        {"densest_bytes", r.densest_bytes},
        {"replay", replays}}},
      {"token",
       {{"weights", plan.decode.weights},
        {"experts", plan.decode.experts},
        {"states", plan.decode.states},
        {"lists", plan.decode.lists},
        {"total", plan.decode.total()}}},
      {"speed",
       {{"memory_bandwidth", number(r.memory_bandwidth)},
        {"disk_bandwidth", number(r.disk_bandwidth)},
        {"tokens_per_second", r.speed ? number(r.speed->tokens_per_second) : nullptr},
        {"from_disk", r.speed ? ordered_json(r.speed->from_disk) : ordered_json(nullptr)}}},
      {"comparison",
       {{"fixed", c.fixed},
        {"per_token", c.per_token},
        {"attention_per_token", c.all_attention_per_token},
        {"crossover", c.crossover() ? ordered_json(*c.crossover()) : ordered_json(nullptr)},
        {"bytes", c.bytes(m.context)},
        {"attention_bytes", c.all_attention_bytes(m.context)},
        {"reduction", c.reduction(m.context)}}}};
  if (const HostShare& h = plan.host; !plan.on_host()) {
    json["host"] = {{"process", plan.process}, {"weights", h.weights}, {"staging", h.staging},   {"copies", h.copies},         {"logits", h.logits}, {"experts", h.experts},
                    {"results", h.results},    {"pictures", h.pictures}, {"total", plan.host_total()}};
  }
  if (!plan.fits() && !plan.on_host()) json["would_fit"] = r.would_fit;
  if (plan.bus_pass.total() > 0) json["speed"]["bus"] = {{"bandwidth", kBusBandwidth}, {"step", plan.bus_step.total()}, {"pass", plan.bus_pass.total()}};
  if (r.host_experts) {
    json["speed"]["host_experts"] = {{"bytes", plan.bus_step.experts},
                                     {"reads", number(r.host_experts->reads)},
                                     {"compute", number(r.host_experts->speed.compute)},
                                     {"stream", r.host_experts->speed.stream},
                                     {"taken", r.request.offload.compute ? "compute" : "stream"}};
  }
  if (r.on_device) {
    json["speed"]["device"] = {{"name", r.device->name},
                               {"count", r.on_device->count},
                               {"memory", r.device->memory},
                               {"bandwidth", r.device->bandwidth},
                               {"tokens_per_second", r.on_device->tokens_per_second}};
  }
  return json;
}

std::string to_svg(const PlanReport& r) {
  const AttentionComparison& c = r.plan.comparison;
  report::Series model{"this model", {}, {}}, attention{"every layer attends", {}, {}};
  const double most =
      static_cast<double>(std::max<std::int64_t>(r.model->config().max_position_embeddings, 1024));
  constexpr int kPoints = 64;
  for (int i = 0; i <= kPoints; ++i) {
    const double tokens = 64 * std::pow(most / 64, static_cast<double>(i) / kPoints);
    const auto n = static_cast<std::int64_t>(std::llround(tokens));
    model.x.push_back(static_cast<double>(n));
    model.y.push_back(static_cast<double>(c.bytes(n)) / 1e9);
    attention.x.push_back(static_cast<double>(n));
    attention.y.push_back(static_cast<double>(c.all_attention_bytes(n)) / 1e9);
  }
  return report::to_svg(report::LinePlot{.title = "Memory of one sequence",
                                         .x_label = "tokens",
                                         .y_label = "GB",
                                         .series = {model, attention},
                                         .log_x = true,
                                         .log_y = true});
}

}  // namespace palimpsest::cli
