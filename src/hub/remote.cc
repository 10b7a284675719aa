#include "hub/remote.h"

#include <charconv>

#include "formats/quote.h"
#include "hub/checksum.h"
#include "hub/retries.h"

namespace palimpsest::hub {
namespace {

using formats::quote;

constexpr std::size_t kMaxTreePages = 1000;

/// An answer as text, and where its next page is (Link: <...>; rel="next"); "" where there is none.
struct Text {
  std::string body, next;
};

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

Text fetch_text(HttpClient& client, const Settings& settings, const ModelId& id,
                const std::string& url, std::string_view what) {
  Text text;
  HttpRequest request;
  request.url = url;
  request.on_start = [&](const HttpResponse&) { text.body.clear(); };
  request.on_body = [&](std::span<const std::byte> bytes) {
    if (bytes.size() > kMaxModelInfoBytes - text.body.size()) {
      throw make_error(ErrorCode::kInvalidFile, "{}: more than {} bytes", what, kMaxModelInfoBytes);
    }
    text.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (Retries retries(settings.patience, client.stop());;) {
    try {
      const HttpResponse response = client.perform(request);
      check_status(response, settings, id);
      if (const std::string next = next_page(HttpResponse::value(response.headers, "link"));
          !next.empty()) {
        const auto resolved = resolve_url(url, next);
        if (!resolved)
          throw make_error(ErrorCode::kInvalidFile, "{}: its next page, {}, is no address", what,
                           quote(next));
        text.next = *resolved;
      }
      return text;
    } catch (const TransientError& error) {
      retries.wait(error);
    }
  }
}

}  // namespace

std::string next_page(std::string_view link) {
  // RFC 8288: <target>; name=value; ..., <target>; ... Commas and semicolons inside <> are part of
  // the target.
  while (true) {
    const std::size_t begin = link.find('<'), end = link.find('>', begin);
    if (begin == link.npos || end == link.npos) return "";
    const std::string target(link.substr(begin + 1, end - begin - 1));
    link.remove_prefix(end + 1);
    const std::string_view parameters = link.substr(0, link.find('<'));
    if (parameters.find("rel=\"next\"") != link.npos || parameters.find("rel=next") != link.npos)
      return target;
  }
}

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
  const std::string model = fmt::format("{}/api/models/{}", settings.endpoint, id.repo());
  const std::string url =
      fmt::format("{}/revision/{}?blobs=true", model, escape_path(id.revision, false));
  ModelInfo info = value_or_throw(
      parse_model_info(fetch_text(client, settings, id, url, "model description").body));
  if (info.is_whole) return info;

  info.files.clear();
  std::string page = fmt::format("{}/tree/{}?recursive=true", model, info.commit);
  for (std::size_t pages = 0; !page.empty(); ++pages) {
    if (pages == kMaxTreePages)
      throw make_error(ErrorCode::kInvalidFile, "list of files: more than {} pages", kMaxTreePages);
    const Text text = fetch_text(client, settings, id, page, "list of files");
    value_or_throw(parse_tree_page(text.body, info.files));
    page = text.next;
  }
  value_or_throw(sort_files(info.files));
  info.is_whole = true;
  return info;
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
