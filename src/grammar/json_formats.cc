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
const std::string kHex = "[0-9a-fA-F]{1,4}";
const std::string kUri = "[a-z][a-z0-9+.-]{0,15}://(?:" + kLabel + "\\.){0,3}" + kLabel +
                         "(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]{0,60}){0,20}";
const std::string kByte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

const std::string kDays = "(?:[0-9]{1,4}D|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?)";
const std::string kHours = "(?:[0-9]{1,4}S|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?)";

/// Eight groups, or up to seven around a "::".
std::string ipv6() {
  std::string out = "(?:" + kHex + ":){7}" + kHex + "|:(?::" + kHex + "){1,7}|(?:" + kHex + ":){1,7}:|::";
  for (int left = 1; left < 7; ++left)
    out += "|(?:" + kHex + ":){" + std::to_string(left) + "}(?::" + kHex + "){1," + std::to_string(7 - left) + "}";
  return "(?:" + out + ")";
}

const std::pair<std::string_view, std::string> kFormats[] = {
    {"date", kDate},
    {"time", kTime},
    {"date-time", kDate + "T" + kTime},
    {"email",
     "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32})?@(?:" + kLabel + "\\.){1,3}[A-Za-z]{2,12}"},
    {"hostname", "(?:" + kLabel + "\\.){0,3}[A-Za-z](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"},
    {"ipv4", "(?:" + kByte + "\\.){3}" + kByte},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"ipv6", ipv6()},
    {"duration", "P(?:[0-9]{1,4}W|" + kDays + "(?:T" + kHours + ")?|T" + kHours + ")"},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"uri", kUri},
    {"uri-reference", kUri},
    {"iri", kUri},
    {"iri-reference", kUri},
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
