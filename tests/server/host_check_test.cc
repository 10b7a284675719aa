// Which Host headers a server answers to (DNS rebinding), and what pages of other sites are told, through raw sockets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "running_server.h"

namespace palimpsest::server {
namespace {

using test::Answer;
using test::RawClient;
using ::testing::HasSubstr;

Answer say(const test::Running& running, const std::string& text) {
  RawClient client(running.port);
  client.send(text);
  return client.read();
}

TEST(HostCheck, NamesAndAddressesInAnySpelling) {
  const HostCheck check("192.0.2.7", {"Alder.example,fd00::1", "[fd00:0::2]"});
  for (const char* host : {"localhost", "LOCALHOST:8080", "127.9.8.7:1", "[::1]", "[0:0::1]:8080", "192.0.2.7:80", "ALDER.example:443", "[fd00::1]:80", "[fd00:0:0::2]", "localhost:", ""})
    EXPECT_TRUE(check.allows(host)) << host;
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:127.0.0.1", "127.1", "128.0.0.1", "127.0.0.1@evil.example", "xalder.example",
                           "[::2]", "[::1", "::1", "[localhost]", "[::1]evil", "localhost:80:80", "localhost:8o", "local host", "localhost,evil.example", "0.0.0.0", "."})
    EXPECT_FALSE(check.allows(host)) << host;
  for (const char* list : {"", "a.example,", "http://a.example", "a.example:80", "[::1]:80", "a b", "a/b", "::1::", "*"}) EXPECT_THROW(HostCheck("127.0.0.1", {list}), Error) << list;
}

TEST(HostCheck, AServerAnswersToItsOwnNamesAlone) {
  test::ServerSetup setup;
  setup.http.hosts = HostCheck("127.0.0.1", {"ok.example"});
  const test::Running running(setup);
  const auto post = [&](const std::string& path, const std::string& hosts) {
    return say(running, "POST " + path + " HTTP/1.1\r\n" + hosts + "Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"content\":\"a\"}");
  };
  for (const char* path : {"/v1/models", "/health", "/", "/nowhere"}) {
    const Answer answer = say(running, std::string("GET ") + path + " HTTP/1.1\r\nHost: evil.example:" + std::to_string(running.port) + "\r\n\r\n");
    EXPECT_EQ(answer.status, 403) << path;
    EXPECT_EQ(answer.json()["error"]["type"], "permission_error") << path;
    EXPECT_THAT(answer.json()["error"]["message"].get<std::string>(), HasSubstr("evil.example"));
  }
  EXPECT_EQ(post("/tokenize", "Host: evil.example\r\n").status, 403);
  EXPECT_EQ(post("/v1/messages", "Host: evil.example\r\n").json()["type"], "error");
  EXPECT_EQ(post("/tokenize", "Host: ok.example\r\n").status, 200);
  EXPECT_EQ(say(running, "GET /v1/models HTTP/1.0\r\n\r\n").status, 200) << "no browser leaves it out";
  // Of two, who comes behind may look at the other one.
  for (const char* two : {"Host: localhost\r\nHost: evil.example\r\n", "Host: evil.example\r\nhost: localhost\r\n"}) EXPECT_EQ(post("/tokenize", two).status, 400);
  // What was let in before says nothing of the next one of a connection, which a refusal ends.
  RawClient client(running.port);
  client.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.read().status, 200);
  client.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(client.read().status, 403);
  EXPECT_TRUE(client.closed());
}

/// Another site's page may send such requests, but no header lets it read an answer.
TEST(HostCheck, PagesOfOtherSitesReadNothing) {
  for (const char* method : {"GET", "OPTIONS"}) {
    const Answer answer = say(test::shared(), std::string(method) + " /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: GET\r\n\r\n");
    EXPECT_EQ(answer.status, method == std::string("GET") ? 200 : 405);
    for (const char* name : {"access-control-allow-origin", "access-control-allow-credentials"}) EXPECT_EQ(answer.header(name), "") << method;
  }
}

}  // namespace
}  // namespace palimpsest::server
