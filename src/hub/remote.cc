#include "hub/remote.h"

#include <charconv>

#include "formats/quote.h"
#include "hub/checksum.h"
#include "hub/retries.h"

namespace palimpsest::hub {
namespace {

using formats::quote;

/// ": 'what the server says'", or nothing.
std::string server_message(const HttpResponse& response) {
  const std::string_view message = HttpResponse::value(response.headers, "x-error-message");
  return message.empty() ? "" : ": " + quote(message);
}

std::string advice(long status, const Settings& settings, const ModelId& id) {
  const std::string page = settings.endpoint + "/" + id.repo();
  switch (status) {
    case 401:
      return settings.token.empty()
                 ? fmt::format(
                       "{} is private, gated or not there; no token was found in HF_TOKEN or in "
                       "HF_HOME/token",
                       page)
                 : fmt::format("{} is not there, or the token gives no access to it", page);
    case 403:
      return fmt::format("access to {} is refused; a gated model asks to accept its terms there",
                         page);
    case 404:
      return fmt::format("{} has no revision '{}', or not this file", page, id.revision);
    default:
      return page;
  }
}

}  // namespace

void check_status(const HttpResponse& response, const Settings& settings, const ModelId& id) {
  if (response.ok()) return;
  const long status = response.status;
  Error error = make_error(ErrorCode::kIo, "HTTP {}: {}{}", status, advice(status, settings, id),
                           server_message(response));
  if (status == 408 || status == 429 || status >= 500)
    throw TransientError(std::move(error), response.retry_after);
  throw error;
}

std::string file_url(const Settings& settings, const ModelId& id, const std::string& commit,
                     const std::string& name) {
  return fmt::format("{}/{}/resolve/{}/{}", settings.endpoint, id.repo(), commit,
                     escape_path(name, true));
}

std::string linked_checksum(const HttpResponse& response) {
  std::string_view tag = HttpResponse::value(response.first_headers, "x-linked-etag");
  if (tag.empty()) tag = HttpResponse::value(response.first_headers, "etag");
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"')
    tag = tag.substr(1, tag.size() - 2);
  return Checksum::is_name(tag) ? std::string(tag) : "";
}

std::optional<std::uint64_t> byte_count(const Headers& headers, std::string_view name) {
  const std::string_view text = HttpResponse::value(headers, name);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

ModelInfo fetch_model_info(HttpClient& client, const Settings& settings, const ModelId& id) {
  std::string body;
  HttpRequest request;
  request.url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", settings.endpoint, id.repo(),
                            escape_path(id.revision, false));
  request.on_start = [&](const HttpResponse&) { body.clear(); };
  request.on_body = [&](std::span<const std::byte> bytes) {
    if (bytes.size() > kMaxModelInfoBytes - body.size()) {
      throw make_error(ErrorCode::kInvalidFile, "model description: more than {} bytes",
                       kMaxModelInfoBytes);
    }
    body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (Retries retries(settings.patience, client.stop());;) {
    try {
      check_status(client.perform(request), settings, id);
      return value_or_throw(parse_model_info(body));
    } catch (const TransientError& error) {
      retries.wait(error);
    }
  }
}

void complete_file(HttpClient& client, const Settings& settings, const ModelId& id,
                   const std::string& commit, RemoteFile& file) {
  HttpRequest request;
  request.url = file_url(settings, id, commit, file.name);
  request.head = true;
  HttpResponse response;
  for (Retries retries(settings.patience, client.stop());;) {
    try {
      response = client.perform(request);
      if (response.status < 300 || response.status >= 400) check_status(response, settings, id);
      break;
    } catch (const TransientError& error) {
      retries.wait(error);
    }
  }
  file.checksum = linked_checksum(response);
  file.size = byte_count(response.first_headers, "x-linked-size");
  if (!file.size && response.ok()) file.size = byte_count(response.headers, "content-length");
  if (file.checksum.empty() || !file.size) {
    throw make_error(
        ErrorCode::kInvalidFile, "the server tells no {} of it",
        file.checksum.empty() ? "SHA-256 or git checksum (X-Linked-Etag, ETag)" : "size");
  }
}

}  // namespace palimpsest::hub
