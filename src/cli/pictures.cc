#include "cli/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/vision/vision_tower.h"
#include "report/numbers.h"

namespace palimpsest::cli {

std::optional<PictureFacts> picture_facts(const std::filesystem::path& model) {
  const auto config = load_vision_config(model);
  if (!config) return std::nullopt;
  const auto tower = VisionTower::outline(*config);
  const auto side = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::sqrt(static_cast<double>(config->patch_limit))) / config->merge) * config->merge;
  const PatchGridSize grid{1, side, side};
  PictureFacts facts{.tensors = tower->tensors(), .parameters = tower->parameters(), .weights = tower->file_bytes(), .patches = grid.patches()};
  facts.tokens = vision_tokens(*config, grid);
  facts.workspace = vision_workspace_bytes(*tower, grid);
  facts.rows = facts.tokens * config->text_hidden_size * static_cast<std::int64_t>(sizeof(float));
  return facts;
}

std::string to_text(const PictureFacts& facts) {
  using report::format_bytes, report::format_grouped;
  return fmt::format(
      "\npictures\n"
      "  vision tower     {} tensors, {} parameters, {} as published\n"
      "  largest picture  {} patches become {} tokens; reading it takes {} of scratch memory and {} for its rows,\n"
      "                   only while it is read and not part of the totals above\n",
      format_grouped(facts.tensors), report::format_count(facts.parameters), format_bytes(facts.weights), format_grouped(facts.patches),
      format_grouped(facts.tokens), format_bytes(facts.workspace), format_bytes(facts.rows));
}

nlohmann::ordered_json to_json(const PictureFacts& facts) {
  return {{"tensors", facts.tensors}, {"parameters", facts.parameters}, {"weights_bytes", facts.weights},
          {"largest", {{"patches", facts.patches}, {"tokens", facts.tokens}, {"workspace_bytes", facts.workspace}, {"rows_bytes", facts.rows}}}};
}

}  // namespace palimpsest::cli
