#include "text/tokenizer_config.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/json_file.h"

namespace palimpsest::text {
namespace {

using Json = nlohmann::ordered_json;

/// A token name: a string, or an object with `content`; empty when absent or null.
std::string token_name(const Json& config, const char* key, const std::string& file) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object()) {
    const auto content = it->find("content");
    if (content != it->end() && content->is_string()) return content->get<std::string>();
  }
  throw make_error(ErrorCode::kInvalidFile, "{}: {} is neither a string nor an object with content",
                   file, key);
}

void add_eos_ids(const Json& config, const std::string& file, std::vector<std::int64_t>& ids) {
  const auto it = config.find("eos_token_id");
  if (it == config.end() || it->is_null()) return;
  const Json list = it->is_array() ? *it : Json::array({*it});
  for (const Json& id : list) {
    if (!id.is_number_integer()) {
      throw make_error(ErrorCode::kInvalidFile,
                       "{}: eos_token_id is neither an integer nor a list of them", file);
    }
    ids.push_back(id.get<std::int64_t>());
  }
}

}  // namespace

TokenizerConfig read_tokenizer_config(const std::filesystem::path& path) {
  const Json json = read_json_file(path);
  const std::string file = path.string();
  TokenizerConfig config;
  config.file = file;
  config.tokenizer_class = token_name(json, "tokenizer_class", file);
  config.bos_token = token_name(json, "bos_token", file);
  config.eos_token = token_name(json, "eos_token", file);
  config.pad_token = token_name(json, "pad_token", file);

  if (const auto it = json.find("add_bos_token"); it != json.end() && it->is_boolean()) {
    config.add_bos_token = it->get<bool>();
  }
  const auto added = json.find("added_tokens_decoder");
  if (added == json.end() || !added->is_object()) return config;
  config.has_added_tokens = true;
  for (const auto& [key, entry] : added->items()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const auto content = entry.is_object() ? entry.find("content") : entry.end();
    if (error != std::errc{} || end != key.data() + key.size() || !entry.is_object() ||
        content == entry.end() || !content->is_string()) {
      throw make_error(ErrorCode::kInvalidFile,
                       "{}: added_tokens_decoder \"{}\" is not an id with a content", file, key);
    }
    const auto special = entry.find("special");
    const bool is_special =
        special == entry.end() || !special->is_boolean() || special->get<bool>();
    if (!config.added_tokens.emplace(id, AddedToken{content->get<std::string>(), is_special})
             .second) {
      throw make_error(ErrorCode::kInvalidFile, "{}: added_tokens_decoder has id {} twice", file,
                       id);
    }
  }
  return config;
}

TokenizerConfig read_tokenizer_configs(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path path = folder / "tokenizer_config.json";
  TokenizerConfig config;
  if (std::filesystem::exists(path, ignored)) config = read_tokenizer_config(path);
  const std::filesystem::path map_path = folder / "special_tokens_map.json";
  if (!std::filesystem::exists(map_path, ignored)) return config;
  const Json map = read_json_file(map_path);
  if (config.file.empty()) config.file = map_path.string();
  for (const auto& [key, name] : {std::pair{"bos_token", &config.bos_token},
                                  {"eos_token", &config.eos_token},
                                  {"pad_token", &config.pad_token}}) {
    if (name->empty()) *name = token_name(map, key, map_path.string());
  }
  return config;
}

std::vector<std::int64_t> read_eos_ids(const std::filesystem::path& folder) {
  std::vector<std::int64_t> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = folder / name;
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    const Json config = read_json_file(path);
    add_eos_ids(config, path.string(), ids);
    const auto text = config.find("text_config");
    if (text != config.end() && text->is_object()) add_eos_ids(*text, path.string(), ids);
  }
  return ids;
}

}  // namespace palimpsest::text
