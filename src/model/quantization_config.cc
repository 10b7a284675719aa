#include "model/quantization_config.h"

#include "model/families/config_reading.h"

namespace palimpsest {
namespace {

using namespace config_reading;

constexpr std::string_view kMxfp4 = "mxfp4-pack-quantized", kInt = "int-quantized", kMixed = "mixed-precision";

void require_integer(const JsonObject& json, std::string_view key, std::int64_t expected) {
  if (const std::int64_t found = json.integer(key); found != expected) {
    throw make_error(ErrorCode::kUnsupported, "{}: {} is not supported, only {}", json.where(key), found, expected);
  }
}

/// One of config_groups. `format`: of the group, else of the whole.
void check_group(const JsonObject& group, std::string_view format) {
  if (group.has("input_activations")) {
    throw make_error(ErrorCode::kUnsupported, "{}: quantised activations are not supported", group.where("input_activations"));
  }
  if (format != kInt) return;
  const JsonObject weights = group.object("weights");
  require_string(weights, "type", "int");
  require_string(weights, "strategy", "group");
  require_integer(weights, "num_bits", 8);
  require_integer(weights, "group_size", 32);
  require_boolean(weights, "symmetric", true);
}

void check_one(const JsonObject& quantization) {
  require_string(quantization, "quant_method", "compressed-tensors");
  const std::string format = quantization.string("format");
  if (format != kMxfp4 && format != kInt && format != kMixed) {
    throw make_error(ErrorCode::kUnsupported, "{}: '{}' is not supported, only {}, {} and {}", quantization.where("format"), format, kMxfp4,
                     kInt, kMixed);
  }
  if (format == kMxfp4) return;  // it says all
  const JsonObject groups = quantization.object("config_groups");
  for (int i = 0; i == 0 || groups.has(fmt::format("group_{}", i)); ++i) {
    const JsonObject group = groups.object(fmt::format("group_{}", i));
    const std::string own = group.find_string("format").value_or(format);
    if (format == kMixed && own != kMxfp4 && own != kInt) {
      throw make_error(ErrorCode::kUnsupported, "{}: '{}' is not supported, only {} and {}", group.where("format"), own, kMxfp4, kInt);
    }
    check_group(group, own);
  }
}

}  // namespace

void check_quantization(const JsonObject& root, const JsonObject& text) {
  for (const JsonObject& json : {root, text}) {
    if (const auto quantization = json.find_object("quantization_config")) check_one(*quantization);
  }
}

bool promises_mxfp4_experts(const JsonObject& root, const JsonObject& text) {
  for (const JsonObject& json : {root, text}) {
    const auto quantization = json.find_object("quantization_config");
    if (!quantization) continue;
    const std::string format = quantization->string("format");
    if (format == kMxfp4) return true;
    throw make_error(ErrorCode::kUnsupported, "{}: which weights are '{}' is told by the tensors alone, and neither they nor an index are here",
                     quantization->where("format"), format);
  }
  return false;
}

}  // namespace palimpsest
