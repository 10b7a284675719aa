#include "hub/http.h"

#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <new>
#include <utility>

#include "formats/quote.h"

namespace palimpsest::hub {
namespace {

constexpr std::size_t kMaxHeaderBytes = 256 << 10;
constexpr long kStallBytesPerSecond = 1024;

void start_library() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code != CURLE_OK)
    throw make_error(ErrorCode::kIo, "libcurl does not start: {}", curl_easy_strerror(code));
}

struct HeaderList {
  curl_slist* list = nullptr;
  HeaderList() = default;
  ~HeaderList() { curl_slist_free_all(list); }
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;
  void add(const std::string& line) {
    curl_slist* longer = curl_slist_append(list, line.c_str());
    if (!longer) throw std::bad_alloc();
    list = longer;
  }
};

bool may_pass(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/// Asks before it connects: a name may lead anywhere.
curl_socket_t open_socket(void* may_connect, curlsocktype, curl_sockaddr* address) {
  const auto& may = *static_cast<const std::function<bool(const sockaddr&)>*>(may_connect);
  return may(address->addr) ? ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol) : CURL_SOCKET_BAD;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

std::string_view HttpResponse::value(const Headers& headers, std::string_view name) {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view{} : std::string_view(found->second);
}

/// One request and its answer, as libcurl's callbacks see it. Exceptions may not pass through
/// libcurl: they wait in `thrown`.
struct HttpClient::Hop {
  const HttpRequest& request;
  const Stop& stop;
  CURL* curl;
  HttpResponse response{};
  std::size_t header_bytes = 0;
  bool started = false;
  std::exception_ptr thrown{};

  template <class F>
  bool guarded(F&& work) noexcept {
    try {
      work();
      return true;
    } catch (...) {
      thrown = std::current_exception();
      return false;
    }
  }

  void header(std::string_view line) {
    if (line.starts_with("HTTP/"))
      response.headers.clear();  // an interim answer or a proxy's came before
    header_bytes += line.size();
    if (header_bytes > kMaxHeaderBytes) {
      throw make_error(ErrorCode::kIo, "the server's headers exceed {} bytes", kMaxHeaderBytes);
    }
    const std::size_t colon = line.find(':');
    if (colon == line.npos) return;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    response.headers[std::move(name)] = trimmed(line.substr(colon + 1));
  }

  /// Reports the status before any byte; true when it is one whose body is wanted.
  bool start() {
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response.status);
    if (response.ok() && !std::exchange(started, true) && request.on_start)
      request.on_start(response);
    return response.ok();
  }

  static std::size_t on_header(char* data, std::size_t, std::size_t size, void* self) {
    auto& hop = *static_cast<Hop*>(self);
    return hop.guarded([&] { hop.header({data, size}); }) ? size : 0;
  }
  static std::size_t on_body(char* data, std::size_t, std::size_t size, void* self) {
    auto& hop = *static_cast<Hop*>(self);
    const bool going = hop.guarded([&] {
      if (hop.start() && hop.request.on_body)
        hop.request.on_body(std::as_bytes(std::span(data, size)));
    });
    return going ? size : CURL_WRITEFUNC_ERROR;
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Hop*>(self)->stop() ? 1 : 0;
  }
};

HttpClient::HttpClient(const Settings& settings, Stop stop, HttpRestrictions restrictions)
    : settings_(settings),
      endpoint_(parse_url(settings.endpoint).value_or(Url{})),
      stop_(std::move(stop)),
      restrictions_(std::move(restrictions)) {
  start_library();
  curl_ = curl_easy_init();
  if (!curl_) throw make_error(ErrorCode::kIo, "libcurl gives no handle");
}

HttpClient::~HttpClient() {
  curl_easy_cleanup(curl_);
}

HttpResponse HttpClient::perform_hop(const HttpRequest& request, const std::string& url,
                                     bool trusted) {
  CURL* curl = curl_;
  Hop hop{.request = request, .stop = stop_, .curl = curl};
  const auto set = [curl](CURLoption option, auto value) { curl_easy_setopt(curl, option, value); };
  curl_easy_reset(curl);
  std::array<char, CURL_ERROR_SIZE> reason{};
  set(CURLOPT_ERRORBUFFER, reason.data());
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  set(CURLOPT_USERAGENT, "palimpsest");
  set(CURLOPT_NOBODY, request.head ? 1L : 0L);
  set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(settings_.patience.connect.count()));
  set(CURLOPT_LOW_SPEED_LIMIT, kStallBytesPerSecond);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings_.patience.stall.count()));
  set(CURLOPT_HEADERFUNCTION, &Hop::on_header);
  set(CURLOPT_HEADERDATA, &hop);
  set(CURLOPT_WRITEFUNCTION, &Hop::on_body);
  set(CURLOPT_WRITEDATA, &hop);
  set(CURLOPT_XFERINFOFUNCTION, &Hop::on_progress);
  set(CURLOPT_XFERINFODATA, &hop);
  set(CURLOPT_NOPROGRESS, 0L);
  if (restrictions_.may_connect) {
    set(CURLOPT_PROXY, "");
    set(CURLOPT_OPENSOCKETFUNCTION, &open_socket);
    set(CURLOPT_OPENSOCKETDATA, &restrictions_.may_connect);
  }
  const std::string range = fmt::format("{}-", request.from);
  if (request.from > 0) set(CURLOPT_RANGE, range.c_str());
  HeaderList headers;
  if (trusted) {
    const bool safe = endpoint_.scheme == "https" || endpoint_.is_loopback();
    if (!settings_.token.empty() && safe) headers.add("Authorization: Bearer " + settings_.token);
    if (!request.if_range.empty() && request.from > 0) headers.add("If-Range: " + request.if_range);
  }
  set(CURLOPT_HTTPHEADER, headers.list);

  const CURLcode code = curl_easy_perform(curl);
  if (hop.thrown) std::rethrow_exception(hop.thrown);
  if (code == CURLE_ABORTED_BY_CALLBACK) throw make_error(ErrorCode::kCancelled, "cancelled");
  if (code != CURLE_OK) {
    Error error = make_error(ErrorCode::kIo, "{}: {}", parse_url(url).value_or(Url{}).host,
                             reason[0] != '\0' ? reason.data() : curl_easy_strerror(code));
    if (may_pass(code)) throw TransientError(std::move(error));
    throw error;
  }
  hop.start();  // for answers without a body
  curl_off_t wait = 0;
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait);
  hop.response.retry_after = std::chrono::seconds(std::clamp<curl_off_t>(wait, 0, 1 << 30));
  char* target = nullptr;
  if (is_redirect(hop.response.status)) curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &target);
  redirect_ = target ? target : "";
  return std::move(hop.response);
}

Url HttpClient::checked(const std::string& address) const {
  auto url = parse_url(address);
  if (!url) throw make_error(ErrorCode::kIo, "{} is no http(s) address", formats::quote(address));
  if (endpoint_.scheme == "https" && url->scheme != "https") {
    throw make_error(ErrorCode::kIo, "{} would be reached by plain http, the endpoint is https",
                     formats::quote(url->host));
  }
  return *std::move(url);
}

HttpResponse HttpClient::perform(const HttpRequest& request) {
  std::string address = request.url;
  Url url = checked(address);
  bool trusted = true;  // still on the endpoint's own server
  Headers first_headers;
  HttpRequest hop = request;
  for (int redirects = 0;; ++redirects) {
    trusted = trusted && url.same_origin(endpoint_);
    // A model that was renamed is redirected inside the hub before the answer that tells its
    // checksum.
    const bool hubs_words = trusted && !first_headers.contains("x-linked-etag");
    if (request.on_start) {
      hop.on_start = [&](HttpResponse response) {
        response.first_headers = hubs_words ? response.headers : first_headers;
        request.on_start(response);
      };
    }
    HttpResponse response = perform_hop(hop, address, trusted);
    if (hubs_words) first_headers = response.headers;
    response.first_headers = first_headers;
    if (!is_redirect(response.status)) return response;

    address = redirect_;
    url = checked(address);
    if (restrictions_.may_follow && !restrictions_.may_follow(url)) {
      throw make_error(ErrorCode::kIo, "redirects to {}, which is not followed", formats::quote(url.host));
    }
    if (request.head && !url.same_origin(endpoint_)) return response;
    if (redirects == kRedirects) {
      throw make_error(ErrorCode::kIo, "more than {} redirections, the last to {}", kRedirects,
                       formats::quote(url.host));
    }
  }
}

}  // namespace palimpsest::hub
