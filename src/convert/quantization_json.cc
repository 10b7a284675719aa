#include "convert/quantization_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace palimpsest::convert {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kInt = "int-quantized", kMxfp4 = "mxfp4-pack-quantized";

/// A linear layer of the new checkpoint as compressed-tensors names it: without ".weight".
struct Module {
  std::string name;
  std::string pattern;  ///< matches it and its like in other layers
  std::string_view format;  ///< empty: dense
};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '.') out += '\\';
    out += c;
  }
  return out;
}

std::string_view without_weight(std::string_view name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

std::string_view new_format(const PlannedWeight& weight) {
  switch (weight.items[0].dtype) {
    case DType::kU8: return kMxfp4;
    case DType::kI8: return kInt;
    default: return {};
  }
}

std::vector<Module> modules_of(const ModelConfig& config, const Plan& plan) {
  std::vector<Module> modules;
  for (const PlannedWeight& weight : plan.weights) {
    if (!weight.spec || !may_be_quantised(*weight.spec)) continue;
    const std::string name = weight_name(config, *weight.spec);
    const std::string_view leaf = without_weight(weight_leaf(config, weight.spec->role));
    const std::string_view stem = weight.spec->expert >= 0 ? R"(experts\.[0-9]+\.)" : weight.spec->layer >= 0 ? R"(\.)" : "";
    modules.push_back({std::string(without_weight(name)), fmt::format("re:.*{}{}$", stem, escaped(leaf)), new_format(weight)});
  }
  return modules;
}

/// What names the modules of one format and none of the others: patterns, or names where a pattern would take too much.
std::vector<std::string> names_of(const std::vector<Module>& modules, std::string_view format) {
  std::map<std::string, std::set<std::string_view>> formats;
  for (const Module& module : modules) formats[module.pattern].insert(module.format);
  std::vector<std::string> names;
  std::set<std::string_view> seen;
  for (const Module& module : modules) {
    if (module.format != format) continue;
    const bool alike = formats[module.pattern].size() == 1;
    const std::string& name = alike ? module.pattern : module.name;
    if (seen.insert(name).second) names.push_back(name);
  }
  return names;
}

ordered_json weights_json(std::string_view format) {
  ordered_json weights = {{"actorder", nullptr}, {"block_structure", nullptr}, {"dynamic", false},    {"group_size", 32},
                          {"num_bits", format == kInt ? 8 : 4}, {"observer", "minmax"}, {"observer_kwargs", ordered_json::object()}};
  if (format == kMxfp4) weights["scale_dtype"] = "torch.uint8";
  weights["strategy"] = "group";
  weights["symmetric"] = true;
  weights["type"] = format == kInt ? "int" : "float";
  if (format == kMxfp4) weights["zp_dtype"] = nullptr;
  return weights;
}

/// Null when nothing is quantised.
ordered_json quantization_json(const std::vector<Module>& modules) {
  std::vector<std::string_view> formats;
  for (const std::string_view format : {kInt, kMxfp4}) {
    if (std::any_of(modules.begin(), modules.end(), [&](const Module& m) { return m.format == format; })) formats.push_back(format);
  }
  if (formats.empty()) return nullptr;
  ordered_json groups = ordered_json::object();
  for (std::size_t i = 0; i < formats.size(); ++i) {
    const ordered_json targets = formats.size() == 1 ? ordered_json{"Linear"} : ordered_json(names_of(modules, formats[i]));
    groups[fmt::format("group_{}", i)] = {{"format", formats[i]},          {"input_activations", nullptr}, {"output_activations", nullptr},
                                          {"targets", targets}, {"weights", weights_json(formats[i])}};
  }
  return {{"config_groups", groups},
          {"format", formats.size() == 1 ? formats[0] : std::string_view("mixed-precision")},
          {"global_compression_ratio", nullptr},
          {"ignore", names_of(modules, {})},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

}  // namespace

std::string new_config(std::string_view config_json, const ModelConfig& config, const Plan& plan, const Options& options) {
  ordered_json root = ordered_json::parse(config_json);
  const bool wrapped = root.contains("text_config") && root["text_config"].is_object();
  const auto each = [&](const auto& change) {
    change(root);
    if (wrapped) change(root["text_config"]);
  };
  each([](ordered_json& json) { json.erase("quantization_config"); });
  if (options.weights == Form::kBf16 || options.weights == Form::kF16) {
    const char* dtype = *options.weights == Form::kBf16 ? "bfloat16" : "float16";
    each([&](ordered_json& json) {
      for (const char* key : {"dtype", "torch_dtype"}) {
        if (json.contains(key)) json[key] = dtype;
      }
    });
  }
  if (ordered_json quantization = quantization_json(modules_of(config, plan)); !quantization.is_null()) {
    ordered_json& at = wrapped && config.family == Family::kKimiK3 ? root["text_config"] : root;
    at["quantization_config"] = std::move(quantization);
  }
  return root.dump(2) + "\n";
}

}  // namespace palimpsest::convert
