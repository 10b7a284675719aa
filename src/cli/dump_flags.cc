#include <nlohmann/json.hpp>

#include "cli/flags.h"

namespace palimpsest::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* type_name(const Flag& flag) {
  struct Visitor {
    const char* operator()(bool Options::*) const { return "switch"; }
    const char* operator()(std::int64_t Options::*) const { return "integer"; }
    const char* operator()(std::optional<std::int64_t> Options::*) const { return "integer"; }
    const char* operator()(std::optional<double> Options::*) const { return "number"; }
    const char* operator()(std::string Options::*) const { return "string"; }
    const char* operator()(std::optional<std::string> Options::*) const { return "string"; }
    const char* operator()(std::vector<std::string> Options::*) const { return "strings"; }
  };
  return std::visit(Visitor{}, flag.target);
}

Json to_json(const Flag& flag) {
  const std::string_view type = type_name(flag);
  Json json = {{"names", flag.names}, {"type", type}, {"help", flag.help}};
  if (!flag.value.empty()) json["value"] = flag.value;
  if (!flag.default_text.empty()) json["default"] = flag.default_text;
  if (type == "integer" || type == "number") json["min"] = flag.min, json["max"] = flag.max;
  if (!flag.choices.empty()) json["choices"] = flag.choices;
  if (flag.required) json["required"] = true;
  Json& commands = json["commands"] = Json::array();
  for (const Command command : flag.commands) commands.push_back(info(command).name);
  return json;
}

}  // namespace

std::string dump_flags() {
  Json json;
  for (const CommandInfo& command : command_table()) {
    Json entry = {
        {"name", command.name}, {"summary", command.summary}, {"examples", command.examples}};
    if (!command.operand.empty()) entry["operand"] = command.operand;
    json["commands"].push_back(std::move(entry));
  }
  for (const Flag& flag : flag_table()) json["flags"].push_back(to_json(flag));
  return json.dump(1) + "\n";
}

}  // namespace palimpsest::cli
