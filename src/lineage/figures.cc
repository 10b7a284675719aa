#include "lineage/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/bars.h"
#include "report/numbers.h"
#include "report/svg.h"
#include "report/table.h"

namespace palimpsest::lineage {
namespace {

using report::Align;
using report::Table;

constexpr double kLargestError = 1.5;  // end of the scale of bars in text

std::vector<Table::Column> columns_of_memories(std::string first, Align align) {
  std::vector<Table::Column> columns = {{std::move(first)}};
  for (const MemoryKind& kind : kLine) columns.push_back({std::string(kind.name), align});
  return columns;
}

std::string word(const KeyReads& key, std::size_t memory) {
  switch (key.recall[memory]) {
    case Recall::kRight: return key.act == Act::kOldTopic ? "gone" : "right";
    case Recall::kNothing: return "NOTHING";
    case Recall::kStale: return fmt::format("{:.0f}% left", 100 * key.error[memory]);
    case Recall::kBlurred: return fmt::format("off by {:.2f}", key.error[memory]);
  }
  return {};
}

std::string returns_table(const Story& story) {
  Table table(columns_of_memories("key", Align::kLeft));
  for (const KeyReads& key : story.keys) {
    std::vector<std::string> cells = {fmt::format("{} {}", act_name(key.act), key.number)};
    for (std::size_t m = 0; m < kLine.size(); ++m) cells.push_back(word(key, m));
    table.add_row(std::move(cells));
  }
  return table.to_string(2);
}

std::string errors_by_act(const Story& story) {
  std::vector<Table::Column> columns = {{"memory"}};
  for (int act = 0; act < kActs; ++act) columns.push_back({std::string(act_name(static_cast<Act>(act)))});
  Table table(std::move(columns));
  for (int m = 0; m < kMemories; ++m) {
    std::vector<std::string> cells = {std::string(kLine[static_cast<std::size_t>(m)].name)};
    for (int act = 0; act < kActs; ++act) {
      const double error = story.error(static_cast<Act>(act), m);
      cells.push_back(fmt::format("{} {:.2f}", report::bar(error < 0.005 ? 0 : error / kLargestError, 6), error));
    }
    table.add_row(std::move(cells));
  }
  return table.to_string(2);
}

/// The stop at which a number of pairs is stored, or the last before it.
std::size_t stop_of(const Capacity& capacity, std::int64_t pairs) {
  const auto at = std::upper_bound(capacity.pairs.begin(), capacity.pairs.end(), pairs);
  return at == capacity.pairs.begin() ? 0 : static_cast<std::size_t>(at - capacity.pairs.begin()) - 1;
}

std::string errors_by_pairs(const Choices& choices, const Capacity& capacity) {
  std::vector<std::size_t> shown;
  for (const std::int64_t quarters : {2, 4, 6, 8, 12}) {
    const std::size_t stop = stop_of(capacity, quarters * choices.key_dim / 4);
    if (shown.empty() || shown.back() != stop) shown.push_back(stop);
  }
  if (shown.back() + 1 != capacity.pairs.size()) shown.push_back(capacity.pairs.size() - 1);
  std::vector<Table::Column> columns = {{"memory"}, {fmt::format("{} to {} pairs", capacity.pairs.front(), capacity.pairs.back())}};
  for (const std::size_t stop : shown) columns.push_back({fmt::format("{}", capacity.pairs[stop]), Align::kRight});
  Table table(std::move(columns));
  const auto add = [&](std::string name, const std::vector<double>& errors) {
    std::vector<std::string> cells = {std::move(name), report::sparkline(errors, 0, kLargestError)};
    for (const std::size_t stop : shown) cells.push_back(fmt::format("{:.2f}", errors[stop]));
    table.add_row(std::move(cells));
  };
  for (std::size_t m = 0; m < kLine.size(); ++m) add(std::string(kLine[m].name), capacity.all[m]);
  add(fmt::format("delta rule, newest {}", choices.key_dim / 4), capacity.newest.back());
  return table.to_string(2);
}

std::int64_t page_bytes(const Story& story) { return story.bytes.back(); }
std::int64_t list_bytes_per_pair(const Story& story) { return story.bytes.front() / story.writes; }

std::string state_bytes(const Story& story) {
  Table table({{"pairs", Align::kRight}, {"KV list", Align::kRight}, {"any page", Align::kRight}});
  for (const std::int64_t pairs : {std::int64_t{1}, std::int64_t{16}, std::int64_t{100}, std::int64_t{1000}, std::int64_t{1000000}}) {
    table.add_row({report::format_grouped(pairs), report::format_bytes(pairs * list_bytes_per_pair(story)), report::format_bytes(page_bytes(story))});
  }
  return table.to_string(2);
}

report::LinePlot capacity_plot(const Choices& choices, const Capacity& capacity) {
  report::LinePlot plot;
  plot.title = fmt::format("Error as pairs are stored (key width {}, gates open)", choices.key_dim);
  plot.x_label = "stored pairs";
  plot.y_label = "mean error";
  plot.y_from_zero = true;
  const std::vector<double> x(capacity.pairs.begin(), capacity.pairs.end());
  plot.series = {{"KV list", x, capacity.all[0]},
                 {"linear attention", x, capacity.all[1]},
                 {"delta rule (all three)", x, capacity.all[4]},
                 {fmt::format("delta rule, newest {} pairs", choices.key_dim / 4), x, capacity.newest[4]}};
  return plot;
}

report::LinePlot bytes_plot(const Story& story) {
  report::LinePlot plot{.title = "State of one head (F32)", .x_label = "stored pairs", .y_label = "bytes", .series = {}, .log_x = true, .log_y = true};
  report::Series list{"KV list", {}, {}}, page{"page, whichever rule", {}, {}};
  for (const double pairs : {1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6}) {
    list.x.push_back(pairs);
    list.y.push_back(pairs * static_cast<double>(list_bytes_per_pair(story)));
    page.x.push_back(pairs);
    page.y.push_back(static_cast<double>(page_bytes(story)));
  }
  plot.series = {list, page};
  return plot;
}

report::BarPlot story_plot(const Story& story) {
  report::BarPlot plot;
  plot.title = "One stream of writes, five memories: error of every answer at its end";
  plot.y_label = "mean error (old topic: what is left)";
  plot.groups = {"distinct", "overlapping", "overwritten", "old topic, closed", "new topic"};
  for (int m = 0; m < kMemories; ++m) {
    report::Series series{std::string(kLine[static_cast<std::size_t>(m)].name), {}, {}};
    for (int act = 0; act < kActs; ++act) series.y.push_back(story.error(static_cast<Act>(act), m));
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace

std::string to_text(const Choices& choices, const Story& story, const Capacity& capacity) {
  return fmt::format(
      "What each memory returns at the end of {} writes (keys and values of {} numbers, seed {}).\n"
      "The old topic is closed: nothing of it should be left.\n\n{}\n"
      "Mean error (0: the newest value; 1: as bad as no memory; old topic: how much of it is left)\n\n{}\n"
      "Mean error over all pairs, as more are stored than keys have channels ({}); gates open\n\n{}\n"
      "Bytes of one head\n\n{}",
      story.writes, choices.key_dim, choices.seed, returns_table(story), errors_by_act(story), choices.key_dim, errors_by_pairs(choices, capacity),
      state_bytes(story));
}

std::string to_svg(const Choices& choices, const Story& story, const Capacity& capacity) {
  const report::BarPlot story_picture = story_plot(story);
  return report::stack_svg({report::to_svg(story_picture), report::to_svg(capacity_plot(choices, capacity)), report::to_svg(bytes_plot(story))},
                           story_picture.width, story_picture.height);
}

}  // namespace palimpsest::lineage
