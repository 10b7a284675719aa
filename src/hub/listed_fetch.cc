#include "hub/listed_fetch.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "formats/quote.h"
#include "hub/http.h"

namespace palimpsest::hub {
namespace {

using Clock = std::chrono::steady_clock;

struct Network {
  std::uint32_t address;
  int bits;
};
constexpr std::uint32_t ip(std::uint32_t a, std::uint32_t b = 0, std::uint32_t c = 0) { return a << 24 | b << 16 | c << 8; }
/// What is not the public Internet (IANA's registry of special addresses).
constexpr std::array<Network, 13> kPrivate = {{{ip(0), 8}, {ip(10), 8}, {ip(100, 64), 10}, {ip(127), 8}, {ip(169, 254), 16}, {ip(172, 16), 12}, {ip(192, 0, 0), 24},
                                               {ip(192, 0, 2), 24}, {ip(192, 168), 16}, {ip(198, 18), 15}, {ip(198, 51, 100), 24}, {ip(203, 0, 113), 24}, {ip(224), 3}}};

bool is_public(std::uint32_t v4) {
  return std::none_of(kPrivate.begin(), kPrivate.end(), [&](const Network& n) { return (v4 ^ n.address) >> (32 - n.bits) == 0; });
}

/// Of the global unicast addresses, without those that stand for others (6to4, Teredo) or are for documents.
bool is_public(const std::array<unsigned char, 16>& v6) {
  const bool special = v6[0] == 0x20 && ((v6[1] == 0x01 && (v6[2] < 2 || (v6[2] == 0x0d && v6[3] == 0xb8))) || v6[1] == 0x02);
  return v6[0] >> 5 == 1 && !special;
}

std::string numeric(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN + 2> text{};
  if (address.sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text.data(), text.size());
    return text.data();
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text.data(), text.size());
  return "[" + std::string(text.data()) + "]";
}

/// One of a number of places; none may be left.
class Place {
 public:
  Place(std::atomic<int>& taken, int most) : taken_(taken), there_(taken.fetch_add(1) < most) {}
  ~Place() { --taken_; }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  explicit operator bool() const { return there_; }

 private:
  std::atomic<int>& taken_;
  bool there_;
};

}  // namespace

ListedFetch::ListedFetch(std::string_view hosts, const Options& options) : options_(options) {
  while (true) {
    const std::size_t comma = hosts.find(',');
    const std::string text(hosts.substr(0, comma));
    const bool has_port = text.rfind(':') != text.npos && (text.rfind(']') == text.npos || text.rfind(':') > text.rfind(']'));
    const auto url = parse_url("http://" + (text == "*" ? "any" : text));
    if (!url || url->has_user || text.find_first_of("/?# ") != text.npos)
      throw make_error(ErrorCode::kUsage, "{} is neither HOST nor HOST:PORT nor *", formats::quote(text));
    entries_.push_back({text == "*" ? "*" : url->host, has_port ? std::optional(url->port) : std::nullopt});
    if (comma == hosts.npos) break;
    hosts.remove_prefix(comma + 1);
  }
}

bool ListedFetch::lists(const Url& url) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    const bool port = entry.port ? *entry.port == url.port : url.port == "80" || url.port == "443";
    return port && (entry.host == "*" || entry.host == url.host);
  });
}

bool ListedFetch::may_connect(const sockaddr& address) const {
  const std::string text = numeric(address);
  if (std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.host == text; })) return true;
  if (address.sa_family == AF_INET) return is_public(ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr));
  if (address.sa_family != AF_INET6) return false;
  std::array<unsigned char, 16> v6;
  std::memcpy(v6.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, v6.size());
  return is_public(v6);
}

Result<std::vector<std::byte>> ListedFetch::get(const std::string& url) const {
  const auto refuse = [](std::string reason) { return fail(ErrorCode::kInvalidRequest, "{}", std::move(reason)); };
  const auto parsed = parse_url(url);
  if (!parsed || parsed->has_user) return refuse("no http(s) address, or one with a user's name");
  if (!lists(*parsed)) return refuse(fmt::format("nothing is fetched from {}:{}", formats::quote(parsed->host), parsed->port));
  const Place place(running_, options_.at_once);
  if (!place) return refuse("others are having pictures fetched, as many as may: try again");

  Settings settings;
  settings.endpoint = url;
  const auto deadline = Clock::now() + options_.time;
  bool is_private = false;
  std::vector<std::byte> bytes;
  HttpClient client(settings, [&] { return Clock::now() > deadline; },
                    {.may_follow = [&](const Url& to) { return to.host == parsed->host && lists(to); },
                     .may_connect = [&](const sockaddr& address) {
                       const bool may = may_connect(address);
                       is_private |= !may;
                       return may;
                     }});
  try {
    HttpRequest request;
    request.url = url;
    request.on_body = [&](std::span<const std::byte> more) {
      bytes.insert(bytes.end(), more.begin(), more.end());
      if (static_cast<std::int64_t>(bytes.size()) > options_.bytes) throw make_error(ErrorCode::kIo, "it has more than {} bytes", options_.bytes);
    };
    const HttpResponse response = client.perform(request);
    if (!response.ok()) return refuse(fmt::format("the address was answered with status {}", response.status));
    return bytes;
  } catch (const Error& error) {
    if (is_private) return refuse("the address leads to one that is not public");
    if (error.code() == ErrorCode::kCancelled) return refuse(fmt::format("the address was not read within {} seconds", std::chrono::duration<double>(options_.time).count()));
    return refuse(error.text());
  }
}

}  // namespace palimpsest::hub
