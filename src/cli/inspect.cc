#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/io.h"
#include "cli/pictures.h"
#include "cli/setup.h"
#include "model/state_spec.h"
#include "model/weight_spec.h"
#include "model/weight_source.h"
#include "model/weights_check.h"
#include "report/numbers.h"
#include "report/table.h"

namespace palimpsest::cli {
namespace {

/// What config.json and the tensor headers say; no weight is read.
struct Facts {
  ModelConfig config;
  ParameterCount parameters;
  Census census;
  std::size_t files = 0;
  std::uint64_t file_bytes = 0;
  std::map<std::string, WeightSource::Amount> by_type;  ///< as stored
  StateSpec state;
  std::int64_t kv_cache_per_token = 0;
  std::optional<PictureFacts> pictures;  ///< nothing without a vision tower
};

Facts read_facts(const Options& options) {
  const auto opened = open_model(options.model);
  Facts facts;
  facts.config = *opened.config;
  facts.parameters = count_parameters(facts.config, weight_spec(facts.config));
  facts.census = value_or_throw(opened.source->census(), options.model);
  facts.files = opened.source->file_count();
  facts.file_bytes = opened.source->file_bytes();
  facts.by_type = opened.source->stored_types();
  facts.state = state_spec(facts.config);
  facts.kv_cache_per_token = kv_cache_bytes_per_token(facts.config);
  facts.pictures = picture_facts(options);
  return facts;
}

nlohmann::ordered_json to_json(const Facts& facts) {
  const ModelConfig& config = facts.config;
  nlohmann::ordered_json json = {{"family", family_name(config.family)},
                                 {"vocab_size", config.vocab_size},
                                 {"hidden_size", config.hidden_size},
                                 {"max_position_embeddings", config.max_position_embeddings},
                                 {"num_layers", config.num_layers()}};
  for (const LayerSpec& layer : config.layers) {
    json["layers"].push_back({{"mixer", mixer_name(layer.mixer)},
                              {"ffn", ffn_name(layer.ffn)},
                              {"residual", residual_name(layer.residual)}});
  }
  json["parameters"] = {{"total", facts.parameters.total},
                        {"active", facts.parameters.active},
                        {"routed_experts", facts.parameters.routed_experts}};
  json["tensors"] = {{"text", facts.census.text_tensors},
                     {"text_bytes", facts.census.text_bytes},
                     {"unused", facts.census.unused_tensors},
                     {"unused_bytes", facts.census.unused_bytes}};
  for (const auto& [type, amount] : facts.by_type) {
    json["dtypes"][type] = {{"tensors", amount.tensors}, {"bytes", amount.bytes}};
  }
  json["files"] = {{"count", facts.files}, {"bytes", facts.file_bytes}};
  json["state"] = {{"bytes_per_sequence", facts.state.bytes_per_sequence()},
                   {"bytes_per_token", facts.state.bytes_per_token()},
                   {"kv_cache_bytes_per_token", facts.kv_cache_per_token}};
  if (facts.pictures) json["pictures"] = to_json(*facts.pictures);
  return json;
}

std::string layers_text(const ModelConfig& config) {
  report::Table table({{"layer", report::Align::kRight}, {"mixer"}, {"ffn"}, {"residual"}});
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const LayerSpec& layer = config.layers[i];
    table.add_row({fmt::format("{}", i), std::string(mixer_name(layer.mixer)),
                   std::string(ffn_name(layer.ffn)), std::string(residual_name(layer.residual))});
  }
  return table.to_string(2);
}

std::string tensors_text(const Facts& facts) {
  using report::Align;
  report::Table table(
      {{"type"}, {"tensors", Align::kRight}, {"bytes", Align::kRight}, {"", Align::kRight}});
  for (const auto& [type, amount] : facts.by_type) {
    const auto bytes = static_cast<std::int64_t>(amount.bytes);
    table.add_row({type, report::format_grouped(amount.tensors), report::format_grouped(bytes),
                   report::format_bytes(bytes)});
  }
  return table.to_string(2);
}

std::string state_text(const Facts& facts) {
  report::Table table({{""}, {"", report::Align::kRight}});
  const auto row = [&](const char* name, std::int64_t bytes) {
    table.add_row({name, report::format_bytes(bytes)});
  };
  row("pages of a sequence, whatever its length", facts.state.bytes_per_sequence());
  row("latent list, each token (bf16)", facts.state.bytes_per_token());
  row("for comparison: a KV cache of all layers, each token", facts.kv_cache_per_token);
  return table.to_string(2);
}

std::string to_text(const Facts& facts) {
  const ParameterCount& parameters = facts.parameters;
  std::string text = to_string(facts.config);
  if (!text.ends_with('\n')) text += '\n';
  text += "\nlayers\n" + layers_text(facts.config);
  text += fmt::format(
      "\nparameters\n  total   {:>20}  {}\n  active  {:>20}  {}\n  experts {:>20}  {}\n",
      report::format_grouped(parameters.total), report::format_count(parameters.total),
      report::format_grouped(parameters.active), report::format_count(parameters.active),
      report::format_grouped(parameters.routed_experts),
      report::format_count(parameters.routed_experts));
  text +=
      fmt::format("\ntensors: {} in {} file(s), {}\n",
                  report::format_grouped(facts.census.text_tensors + facts.census.unused_tensors),
                  facts.files, report::format_bytes(static_cast<std::int64_t>(facts.file_bytes)));
  text += tensors_text(facts);
  if (facts.census.unused_tensors > 0) {
    text += fmt::format("  {} tensors ({}) are not of the text model: a vision tower, multi-token prediction or the copy of a tied head\n",
                        report::format_grouped(facts.census.unused_tensors),
                        report::format_bytes(static_cast<std::int64_t>(facts.census.unused_bytes)));
  }
  text += "\nstate\n" + state_text(facts);
  if (facts.pictures) text += to_text(*facts.pictures);
  return text;
}

}  // namespace

int inspect(const Options& options) {
  const Facts facts = read_facts(options);
  print(options.json ? to_json(facts).dump(1) + "\n" : to_text(facts));
  return 0;
}

}  // namespace palimpsest::cli
