#pragma once

#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "support/digest.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "text/template/template.h"

namespace palimpsest::test {

using Json = nlohmann::ordered_json;

/// A file of tests/data/templates, made by tools/record_templates.py.
inline std::string template_data(const std::string& name) {
  return read_file(project_path("tests/data/templates/" + name));
}
inline Json recorded(const std::string& name) {
  return Json::parse(template_data(name));
}

/// Sunday 2025-03-09 14:05:06, the clock of the recordings.
inline std::tm recorded_time() {
  std::tm now{};
  now.tm_year = 125, now.tm_mon = 2, now.tm_mday = 9;
  now.tm_hour = 14, now.tm_min = 5, now.tm_sec = 6;
  now.tm_wday = 0, now.tm_yday = 67;
  return now;
}

/// The text, or the error with a sign in front.
inline Result<std::string> render(std::string_view source, const Json& context = Json::object(),
                                  const text::TemplateLimits& limits = {}) {
  const auto parsed = text::Template::parse(source);
  if (!parsed) return tl::make_unexpected(parsed.error());
  return parsed->render(context, {.limits = limits, .now = recorded_time()});
}

/// What render() gives as one string: the text, or "error: ...".
inline std::string rendered(std::string_view source, const Json& context = Json::object(),
                            const text::TemplateLimits& limits = {}) {
  const auto result = render(source, context, limits);
  return result ? *result : "error: " + result.error().text();
}

}  // namespace palimpsest::test
