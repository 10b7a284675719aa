#include "lineage/experiments.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "formats/atomic_file.h"
#include "lineage/figures.h"

namespace palimpsest::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kWidthStep = 16;

lineage::Choices choices(const Options& options) {
  lineage::Choices chosen;
  if (options.width % kWidthStep != 0) {
    throw make_error(ErrorCode::kUsage, "--width: {} is not a multiple of {}", options.width, kWidthStep);
  }
  chosen.key_dim = options.width;
  if (options.seed >= 0) chosen.seed = static_cast<std::uint64_t>(options.seed);
  chosen.max_pairs = options.pairs.value_or(3 * options.width);
  return chosen;
}

std::string_view recall_name(lineage::Recall recall) {
  switch (recall) {
    case lineage::Recall::kRight: return "right";
    case lineage::Recall::kNothing: return "nothing";
    case lineage::Recall::kStale: return "stale";
    case lineage::Recall::kBlurred: return "blurred";
  }
  return {};
}

ordered_json story_json(const lineage::Story& story) {
  ordered_json keys = ordered_json::array();
  for (const lineage::KeyReads& key : story.keys) {
    ordered_json reads = ordered_json::object();
    for (std::size_t m = 0; m < lineage::kLine.size(); ++m) {
      reads[std::string(lineage::kLine[m].name)] = {{"error", key.error[m]}, {"recall", recall_name(key.recall[m])}, {"returned", key.returned[m]}};
    }
    keys.push_back({{"act", lineage::act_name(key.act)}, {"number", key.number}, {"value", key.value}, {"reads", reads}});
  }
  return {{"writes", story.writes}, {"switch_log_decay", lineage::kSwitchDecay}, {"keys", keys}};
}

ordered_json capacity_json(const lineage::Capacity& capacity) {
  ordered_json json = {{"pairs", capacity.pairs}};
  for (std::size_t m = 0; m < lineage::kLine.size(); ++m) {
    json["memories"][std::string(lineage::kLine[m].name)] = {
        {"error", capacity.all[m]}, {"error_of_newest", capacity.newest[m]}, {"bytes", capacity.bytes[m]}};
  }
  return json;
}

}  // namespace

int lineage(const Options& options) {
  const lineage::Choices chosen = choices(options);
  if (options.svg) require_writable(*options.svg);
  ExecContext ctx(1);
  const lineage::Story story = lineage::tell_story(ctx, chosen);
  const lineage::Capacity capacity = lineage::measure_capacity(ctx, chosen);
  if (options.svg) {
    const std::string picture = lineage::to_svg(chosen, story, capacity);
    formats::AtomicFile file(*options.svg);
    file.write(picture.data(), picture.size());
    file.commit();
  }
  if (options.json) {
    const ordered_json json = {{"width", chosen.key_dim}, {"seed", chosen.seed}, {"story", story_json(story)}, {"capacity", capacity_json(capacity)}};
    print(json.dump(1) + "\n");
  } else {
    print(lineage::to_text(chosen, story, capacity));
  }
  return 0;
}

}  // namespace palimpsest::cli
