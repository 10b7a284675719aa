// Addresses that others name, against a server on this machine, which is reached because its address is in the list.

#include "hub/listed_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/http_server.h"

namespace palimpsest::hub {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

struct Pages {
  test::HttpServer server{[](const test::HttpCall& call, test::HttpReply& reply) {
    if (call.target == "/a") reply.answer(200, {}, "bytes");
    else if (call.target == "/large") reply.answer(200, {}, std::string(5000, 'x'));
    else if (call.target == "/slow") reply.stall();
    else if (call.target == "/here") reply.answer(302, {{"Location", "/a"}});
    else if (call.target == "/there") reply.answer(302, {{"Location", "http://localhost:1/a"}});
    else if (call.target == "/elsewhere") reply.answer(302, {{"Location", "http://example.org/a"}});
    else if (call.target == "/round") reply.answer(302, {{"Location", "/round"}});
    else reply.answer(404, {}, "no");
  }};
  std::string address = "127.0.0.1:" + std::to_string(server.port());
  std::string url(const std::string& path) const { return server.url() + path; }
};

std::string text_of(const Result<std::vector<std::byte>>& result) {
  if (!result) return "error: " + result.error().text();
  std::string text;
  for (const std::byte b : *result) text += static_cast<char>(b);
  return text;
}

TEST(ListedFetch, FetchesWhatIsListed) {
  const Pages pages;
  const ListedFetch fetch(pages.address + ",other.example", {.bytes = 4000, .time = 1500ms});
  EXPECT_EQ(text_of(fetch.get(pages.url("/a"))), "bytes");
  EXPECT_EQ(text_of(fetch.get(pages.url("/here"))), "bytes");
  EXPECT_THAT(text_of(fetch.get(pages.url("/none"))), HasSubstr("status 404"));
  EXPECT_THAT(text_of(fetch.get(pages.url("/large"))), HasSubstr("more than 4000 bytes"));
  EXPECT_THAT(text_of(fetch.get(pages.url("/slow"))), HasSubstr("not read within 1.5 seconds"));
  EXPECT_THAT(text_of(fetch.get(pages.url("/round"))), HasSubstr("redirections"));
  for (const char* path : {"/there", "/elsewhere"}) EXPECT_THAT(text_of(fetch.get(pages.url(path))), HasSubstr("not followed")) << path;
}

TEST(ListedFetch, RefusesOtherHostsAndPorts) {
  const Pages pages;
  const ListedFetch fetch("images.example,127.0.0.1");
  for (const char* url : {"http://example.org/a", "https://images.example.org/a", "http://images.example:8080/a", "ftp://images.example/a", "images.example/a",
                          "file:///etc/passwd", "http://user@images.example/a", "http://user:pw@images.example/a", "http://images.example@example.org/a", "", "http://", "data:,x"}) {
    EXPECT_THAT(text_of(fetch.get(url)), HasSubstr("error: no")) << url;
  }
  EXPECT_THAT(text_of(fetch.get(pages.url("/a"))), HasSubstr("nothing is fetched")) << "without a port 80 and 443 are meant";
  EXPECT_TRUE(pages.server.calls().empty());
}

TEST(ListedFetch, NamesOfPrivateAddressesAreNotEnough) {
  const Pages pages;
  const std::string port = std::to_string(pages.server.port());
  const ListedFetch by_name("localhost:" + port), both("localhost:" + port + ",127.0.0.1,[::1]");
  EXPECT_THAT(text_of(by_name.get("http://localhost:" + port + "/a")), HasSubstr("not public"));
  EXPECT_TRUE(pages.server.calls().empty());
  EXPECT_EQ(text_of(both.get("http://localhost:" + port + "/a")), "bytes");
  const ListedFetch all("*", {.bytes = 10, .time = 3000ms});
  for (const char* host : {"127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "[fe80::1]", "[fc00::1]", "10.1.2.3", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "[2002:7f00:1::]"}) {
    EXPECT_THAT(text_of(all.get("http://" + std::string(host) + "/a")), HasSubstr("not public")) << host;
  }
}

TEST(ListedFetch, BadListsAreNamed) {
  for (const char* hosts : {"", "a,", "a/b", "a b", "http://a", "a:x", "u@a", "a,*:80:90"}) {
    try {
      const ListedFetch fetch(hosts);
      FAIL() << hosts;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.text(), HasSubstr("HOST:PORT"));
    }
  }
}

}  // namespace
}  // namespace palimpsest::hub
