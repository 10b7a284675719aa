#include "grammar/json_formats.h"

#include <string_view>
#include <utility>

namespace palimpsest::grammar {
namespace {

// Each is narrower than its standard where that keeps it simple (no 29th of February, no leap
// seconds): all that is written is valid.
const std::string kDate =
    "[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-"
    "9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))";
const std::string kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-"
    "5][0-9])";
const std::string kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?";
const std::string kByte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

const std::pair<std::string_view, std::string> kFormats[] = {
    {"date", kDate},
    {"time", kTime},
    {"date-time", kDate + "T" + kTime},
    {"email",
     "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32})?@(?:" + kLabel + "\\.){1,3}[A-Za-z]{2,12}"},
    {"hostname", "(?:" + kLabel + "\\.){0,3}[A-Za-z](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"},
    {"ipv4", "(?:" + kByte + "\\.){3}" + kByte},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", "[a-z][a-z0-9+.-]{0,15}://(?:" + kLabel + "\\.){0,3}" + kLabel +
                "(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]{0,60}){0,20}"},
};

}  // namespace

std::string format_regex(const SchemaJson& schema) {
  if (!schema.contains("format") || !schema["format"].is_string()) return {};
  for (const auto& [name, regex] : kFormats) {
    if (schema["format"] == name) return regex;
  }
  return {};
}

}  // namespace palimpsest::grammar
