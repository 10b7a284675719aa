#include "hub/settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "formats/quote.h"
#include "hub/url.h"

namespace palimpsest::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultEndpoint = "https://huggingface.co";
constexpr std::size_t kLongestToken = 4096;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_true(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

/// "~/x" as the shell reads it.
fs::path expand_home(const std::string& path) {
  if (path.starts_with("~/")) return fs::path(variable("HOME")) / path.substr(2);
  return path;
}

fs::path home_folder() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return expand_home(home);
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return expand_home(cache) / "huggingface";
  const std::string home = variable("HOME");
  if (home.empty()) {
    throw make_error(ErrorCode::kUsage,
                     "no folder to keep models in: HF_HUB_CACHE, HF_HOME and HOME are not set");
  }
  return fs::path(home) / ".cache" / "huggingface";
}

fs::path cache_folder() {
  const std::string cache = variable("HF_HUB_CACHE");
  return cache.empty() ? home_folder() / "hub" : expand_home(cache);
}

/// Without the blanks and line ends around it.
std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

std::string read_token() {
  std::string token = trimmed(variable("HF_TOKEN")), source = "HF_TOKEN";
  if (token.empty() && (!variable("HF_HOME").empty() || !variable("XDG_CACHE_HOME").empty() ||
                        !variable("HOME").empty())) {
    source = (home_folder() / "token").string();
    std::ifstream file(source, std::ios::binary);
    std::string text(kLongestToken + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
    token = trimmed(text);
  }
  const bool sound =
      token.size() <= kLongestToken &&
      std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!sound) {
    throw make_error(ErrorCode::kUsage,
                     "{}: not a token: {} bytes, only printable ASCII without blanks is one",
                     source, token.size());
  }
  return token;
}

std::string read_endpoint() {
  std::string endpoint = variable("HF_ENDPOINT");
  if (endpoint.empty()) return kDefaultEndpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const auto url = parse_url(endpoint);
  if (!url || url->has_user || endpoint.find_first_of("?#") != endpoint.npos) {
    throw make_error(ErrorCode::kUsage,
                     "HF_ENDPOINT: {} is not an address: expected https://HOST[:PORT][/PATH]",
                     formats::quote(endpoint));
  }
  return endpoint;
}

}  // namespace

Settings settings_from_environment() {
  Settings settings;
  settings.endpoint = read_endpoint();
  settings.token = read_token();
  settings.cache = cache_folder();
  settings.offline = is_true(variable("HF_HUB_OFFLINE"));
  return settings;
}

}  // namespace palimpsest::hub
