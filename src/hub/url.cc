#include "hub/url.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <memory>

namespace palimpsest::hub {
namespace {

struct Free {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
  void operator()(char* text) const { curl_free(text); }
};

std::optional<std::string> part(CURLU* url, CURLUPart which) {
  char* text = nullptr;
  if (curl_url_get(url, which, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return std::nullopt;
  std::string copy = std::unique_ptr<char, Free>(text).get();
  return copy;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

bool Url::is_loopback() const {
  const bool numeric = host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "[::1]" || (numeric && host.starts_with("127."));
}

std::optional<Url> parse_url(const std::string& text) {
  const std::unique_ptr<CURLU, Free> url(curl_url());
  if (!url || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK)
    return std::nullopt;
  const auto scheme = part(url.get(), CURLUPART_SCHEME), host = part(url.get(), CURLUPART_HOST),
             port = part(url.get(), CURLUPART_PORT);
  if (!scheme || !host || !port) return std::nullopt;
  Url parsed{.scheme = lower(*scheme), .host = lower(*host), .port = *port};
  parsed.has_user = part(url.get(), CURLUPART_USER).has_value();
  if (parsed.scheme != "http" && parsed.scheme != "https") return std::nullopt;
  return parsed;
}

std::optional<std::string> resolve_url(const std::string& base, const std::string& reference) {
  const std::unique_ptr<CURLU, Free> url(curl_url());
  for (const std::string& step : {base, reference}) {  // the second is taken relative to the first
    if (!url || curl_url_set(url.get(), CURLUPART_URL, step.c_str(), 0) != CURLUE_OK)
      return std::nullopt;
  }
  char* text = nullptr;
  if (curl_url_get(url.get(), CURLUPART_URL, &text, 0) != CURLUE_OK) return std::nullopt;
  return std::string(std::unique_ptr<char, Free>(text).get());
}

std::string escape_path(std::string_view text, bool keep_slashes) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        (byte < 0x80 && std::isalnum(byte) != 0) || c == '-' || c == '.' || c == '_' || c == '~';
    if (plain || (c == '/' && keep_slashes)) {
      escaped += c;
    } else {
      fmt::format_to(std::back_inserter(escaped), "%{:02X}", byte);
    }
  }
  return escaped;
}

}  // namespace palimpsest::hub
