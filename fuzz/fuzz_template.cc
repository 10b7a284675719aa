// A chat template out of arbitrary bytes, rendered with a small chat: refused with an Error, or a
// text within the limits. What follows the first zero byte, if it is a JSON object, replaces that
// chat.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/template/template.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace palimpsest;
  static const auto kChat =
      nlohmann::ordered_json::parse(R"({"messages": [{"role": "user", "content": "Grüße 😀\n"},
      {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "A": [1.5, true]}}}]},
      {"role": "tool", "content": [{"type": "text", "text": "x"}]}], "tools": [{"a": {}}], "add_generation_prompt": true, "n": -3})");
  std::string_view source(reinterpret_cast<const char*>(data), size);
  nlohmann::ordered_json context = kChat;
  if (const std::size_t zero = source.find('\0'); zero != source.npos) {
    auto given = nlohmann::ordered_json::parse(source.substr(zero + 1), nullptr, false);
    if (given.is_object()) context = std::move(given);
    source = source.substr(0, zero);
  }
  const auto parsed = text::Template::parse(source);
  if (!parsed) {
    if (parsed.error().text().empty()) __builtin_trap();
    return 0;
  }
  text::TemplateOptions options;
  options.limits = {.steps = 200'000,
                    .depth = 400,
                    .output_bytes = 1 << 20,
                    .value_bytes = 8 << 20,
                    .wall_time = std::chrono::milliseconds(2000)};
  options.now.tm_mday = 1;
  const auto text = parsed->render(context, options);
  if (text && (text->size() > (1 << 20) || !text::is_valid_utf8(*text))) __builtin_trap();
  return 0;
}
