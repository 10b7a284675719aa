#include "cli/pictures.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/setup.h"
#include "model/vision/vision_tower.h"
#include "report/numbers.h"

namespace palimpsest::cli {
namespace {

PictureFacts facts_of(const VisionConfig& config) {
  const auto tower = VisionTower::outline(config);
  const PatchGridSize grid = grid_of(config, config.most_patches());
  PictureFacts facts;
  facts.tensors = tower->tensors();
  facts.parameters = tower->parameters();
  facts.weights = tower->file_bytes();
  facts.limit = config.patch_limit / config.cell_patches();
  facts.patches = config.most_patches();
  facts.tokens = vision_tokens(config, grid);
  facts.workspace = vision_workspace_bytes(*tower, grid);
  facts.rows = facts.tokens * config.text_hidden_size * static_cast<std::int64_t>(sizeof(float));
  return facts;
}

}  // namespace

std::optional<PictureFacts> picture_facts(const Options& options) {
  // A text model runs whatever its checkpoint says about eyes.
  try {
    const auto config = vision_config(options);
    if (!config) return std::nullopt;
    return facts_of(*config);
  } catch (const Error& error) {
    return PictureFacts{.refused = error.text()};
  }
}

std::string to_text(const PictureFacts& facts) {
  using report::format_bytes, report::format_grouped;
  if (!facts.refused.empty()) return fmt::format("\npictures\n  the vision tower cannot be run: {}\n", facts.refused);
  return fmt::format(
      "\npictures\n"
      "  vision tower     {} tensors, {} parameters, {} as published\n"
      "  largest picture  {} tokens, with padding at most {} ({} patches); reading one takes {} of scratch memory,\n"
      "                   only while it is read, and {} for its rows until the text model has read them\n",
      format_grouped(facts.tensors), report::format_count(facts.parameters), format_bytes(facts.weights), format_grouped(facts.limit), format_grouped(facts.tokens),
      format_grouped(facts.patches), format_bytes(facts.workspace), format_bytes(facts.rows));
}

nlohmann::ordered_json to_json(const PictureFacts& facts) {
  if (!facts.refused.empty()) return {{"refused", facts.refused}};
  return {{"tensors", facts.tensors}, {"parameters", facts.parameters}, {"weights_bytes", facts.weights},
          {"largest", {{"limit_tokens", facts.limit}, {"patches", facts.patches}, {"tokens", facts.tokens}, {"workspace_bytes", facts.workspace}, {"rows_bytes", facts.rows}}}};
}

}  // namespace palimpsest::cli
