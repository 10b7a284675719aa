// A hub that cuts, stalls, lies, redirects and refuses: one clear error each, and never a partial
// file under its final name.

#include <gmock/gmock.h>

#include "base/error.h"
#include "fake_hub.h"
#include "hub/http.h"
#include "hub/pull.h"

namespace palimpsest::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

const hub::ModelId kModel{.owner = "owner", .name = "model"};
const std::string kShard = "model.safetensors";

bool is_shard(const HttpCall& call) {
  return call.target.find("/resolve/") != std::string::npos && call.target.ends_with(kShard);
}

class Faults : public testing::Test {
 protected:
  Faults() {
    hub_.add("config.json", "{}");
    hub_.add(kShard, some_bytes(400'000, 5), true);
  }

  /// What the pull says when it fails; nothing may be there under a final name.
  Error failure(const hub::Settings& settings, const hub::PullOptions& options = {}) {
    try {
      hub::pull(settings, kModel, options);
    } catch (const Error& error) {
      EXPECT_FALSE(fs::exists(hub_.blob(kShard)));
      EXPECT_FALSE(fs::exists(hub_.snapshot()));
      EXPECT_FALSE(fs::exists(hub_.model_folder() / "refs"));
      return error;
    }
    ADD_FAILURE() << "the pull went well";
    return Error(ErrorCode::kInternal, "");
  }
  std::string failure_text(ErrorCode code = ErrorCode::kIo) {
    const Error error = failure(hub_.settings());
    EXPECT_EQ(error.code(), code) << error.text();
    EXPECT_THAT(error.text(), testing::StartsWith("owner/model: "));
    return error.text();
  }
  void expect_success() {
    hub::pull(hub_.settings(), kModel, {});
    EXPECT_EQ(read_file(hub_.snapshot() / kShard), hub_.bytes(kShard));
  }
  /// The first bytes of the shard, under headers that promise all.
  void send_part(HttpReply& reply, std::size_t from, std::size_t count) {
    const std::size_t size = hub_.bytes(kShard).size();
    std::map<std::string, std::string> headers = {{"Content-Length", std::to_string(size - from)}};
    if (from > 0) headers["Content-Range"] = fmt::format("bytes {}-{}/{}", from, size - 1, size);
    reply.answer(from > 0 ? 206 : 200, headers, hub_.bytes(kShard).substr(from, count));
  }
  /// A fault of the storage: every call gets `count` bytes more of the shard.
  FakeHub::Fault cuts(std::size_t count) {
    return [this, count](const HttpCall& call, HttpReply& reply) {
      const std::string range = call.header("range");
      send_part(reply, range.empty() ? 0 : std::stoull(range.substr(6)), count);
      return true;
    };
  }

  FakeHub hub_;
};

TEST_F(Faults, ACutConnectionIsResumed) {
  hub_.set_storage_fault(cuts(150'000));
  expect_success();
  const auto calls = hub_.storage.calls();
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[1].header("range"), "bytes=150000-");
  EXPECT_EQ(calls[2].header("range"), "bytes=300000-");
}

TEST_F(Faults, ManyCutsGiveUpAndTheNextPullGoesOn) {
  hub_.set_storage_fault(cuts(1'000));
  EXPECT_THAT(failure_text(), AllOf(HasSubstr("'model.safetensors'"), HasSubstr("4 attempts")));
  EXPECT_EQ(fs::file_size(hub_.partial(kShard)), 4'000u);
  hub_.set_storage_fault({});
  expect_success();
  EXPECT_EQ(hub_.storage.calls().back().header("range"), "bytes=4000-");
}

TEST_F(Faults, AStallIsCutAndResumed) {
  std::atomic<int> calls = 0;
  hub_.set_storage_fault([&](const HttpCall&, HttpReply& reply) {
    if (calls++ > 0) return false;
    send_part(reply, 0, 500);
    reply.stall();
    return true;
  });
  expect_success();
  EXPECT_EQ(hub_.storage.calls().at(1).header("range"), "bytes=500-");
}

TEST_F(Faults, AServerThatIgnoresRangesSendsAllAgain) {
  std::atomic<int> calls = 0;
  hub_.set_storage_fault([&](const HttpCall&, HttpReply& reply) {
    if (calls++ == 0) {
      send_part(reply, 0, 100'000);
    } else {
      reply.answer(200, {}, hub_.bytes(kShard));
    }
    return true;
  });
  expect_success();
}

TEST_F(Faults, AnotherRangeThanAskedFor) {
  std::atomic<int> calls = 0;
  hub_.set_storage_fault([&](const HttpCall&, HttpReply& reply) {
    calls++ == 0 ? send_part(reply, 0, 100'000) : send_part(reply, 50'000, 350'000);
    return true;
  });
  EXPECT_THAT(failure_text(ErrorCode::kInvalidFile),
              AllOf(HasSubstr("'model.safetensors'"), HasSubstr("100000"),
                    HasSubstr("50000-399999/400000")));
}

TEST_F(Faults, SizesThatAreLies) {
  const auto sends = [&](std::map<std::string, std::string> headers, std::string body) {
    hub_.set_storage_fault([=](const HttpCall&, HttpReply& reply) {
      reply.answer(200, headers, body);
      return true;
    });
    return failure_text(ErrorCode::kInvalidFile);
  };
  EXPECT_THAT(sends({{"Content-Length", "5"}}, "12345"),
              AllOf(HasSubstr("'model.safetensors'"), HasSubstr("400000"), HasSubstr("sends 5")));
  EXPECT_THAT(sends({{"Content-Length", "400001"}}, "1"), HasSubstr("sends 400001"));
  // Without a length: more than was listed.
  const std::string chunk =
      fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", 500'000, std::string(500'000, 'x'));
  EXPECT_THAT(sends({{"Transfer-Encoding", "chunked"}}, chunk),
              HasSubstr("listed with 400000 bytes, the server sends more"));
}

TEST_F(Faults, ABodyThatEndsEarlyWithoutALength) {
  hub_.set_storage_fault([](const HttpCall&, HttpReply& reply) {
    reply.answer(200, {{"Transfer-Encoding", "chunked"}}, "3\r\nabc\r\n0\r\n\r\n");
    return true;
  });
  EXPECT_THAT(failure_text(), HasSubstr("the connection ended after 3 of 400000 bytes"));
}

TEST_F(Faults, AWrongChecksum) {
  hub_.set_storage_fault([&](const HttpCall&, HttpReply& reply) {
    std::string bytes = hub_.bytes(kShard);
    bytes[200'000] = static_cast<char>(bytes[200'000] ^ 1);
    reply.answer(200, {}, bytes);
    return true;
  });
  EXPECT_THAT(failure_text(ErrorCode::kInvalidFile),
              AllOf(HasSubstr("'model.safetensors'"), HasSubstr("wrong checksum"),
                    HasSubstr(hub_.sum(kShard)), HasSubstr("400000")));
  EXPECT_FALSE(fs::exists(hub_.partial(kShard)));
}

TEST_F(Faults, AnotherFileAfterACut) {
  std::atomic<int> calls = 0;
  hub_.set_storage_fault(cuts(100'000));
  hub_.set_fault([&](const HttpCall& call, HttpReply& reply) {
    if (!is_shard(call) || calls++ == 0) return false;
    reply.answer(302, {{"Location", hub_.storage.url() + "/x"},
                       {"X-Linked-Etag", '"' + std::string(64, 'a') + '"'}});
    return true;
  });
  // The redirection itself is harmless; the storage's answer is not looked at before the tag.
  EXPECT_THAT(failure_text(ErrorCode::kInvalidFile),
              AllOf(HasSubstr("'model.safetensors'"), HasSubstr("changed while it was fetched"),
                    HasSubstr(std::string(64, 'a'))));
}

TEST_F(Faults, RefusedRanges) {
  std::atomic<int> calls = 0;
  hub_.set_storage_fault([&](const HttpCall& call, HttpReply& reply) {
    if (calls++ == 0) {
      send_part(reply, 0, 100'000);
      return true;
    }
    if (call.header("range").empty()) return false;
    reply.answer(416, {});
    return true;
  });
  expect_success();
}

TEST_F(Faults, RedirectionsThatNeverEnd) {
  hub_.set_fault([&](const HttpCall& call, HttpReply& reply) {
    if (!is_shard(call)) return false;
    reply.answer(302, {{"Location", call.target}});
    return true;
  });
  EXPECT_THAT(failure_text(),
              AllOf(HasSubstr("'model.safetensors'"), HasSubstr("more than 8 redirections")));
  EXPECT_EQ(hub_.server.calls().size(), 1 + 1 + 9u);  // the list, config.json, and nine times the shard
}

TEST_F(Faults, RedirectionsToOtherKindsOfAddress) {
  for (const std::string target :
       {"file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", ""}) {
    hub_.set_fault([=](const HttpCall& call, HttpReply& reply) {
      if (!is_shard(call)) return false;
      reply.answer(302, target.empty() ? std::map<std::string, std::string>{}
                                       : std::map<std::string, std::string>{{"Location", target}});
      return true;
    });
    EXPECT_THAT(failure_text(),
                AllOf(HasSubstr("'model.safetensors'"), HasSubstr("no http(s) address")))
        << target;
  }
}

TEST_F(Faults, TheTokenDoesNotComeBackFromAnotherHost) {
  // hub -> storage -> hub: whoever controls the storage's answer chooses the last address.
  hub::Settings settings = hub_.settings();
  settings.token = "hf_secret";
  hub_.set_storage_fault([&](const HttpCall&, HttpReply& reply) {
    reply.answer(302, {{"Location", hub_.server.url() + "/owner/model/resolve/x"}});
    return true;
  });
  failure(settings);
  for (const HttpCall& call : hub_.storage.calls()) EXPECT_EQ(call.header("authorization"), "");
  int came_back = 0;  // files are fetched beside each other: in any order with other calls
  for (const HttpCall& call : hub_.server.calls()) {
    if (call.target != "/owner/model/resolve/x") continue;
    EXPECT_EQ(call.header("authorization"), "");
    ++came_back;
  }
  EXPECT_GT(came_back, 0);
}

TEST_F(Faults, StatusesSayWhatMayBeDone) {
  const auto status = [&](int code) {
    hub_.set_fault([=](const HttpCall&, HttpReply& reply) {
      reply.answer(code, {{"X-Error-Message", "what the hub says"}}, "<html>");
      return true;
    });
    const std::string text = failure_text();
    EXPECT_THAT(text,
                AllOf(HasSubstr(fmt::format("HTTP {}", code)), HasSubstr("'what the hub says'")));
    return text;
  };
  EXPECT_THAT(status(401), HasSubstr("HF_TOKEN"));
  EXPECT_THAT(status(403), HasSubstr("terms"));
  EXPECT_THAT(status(404), HasSubstr("no revision 'main'"));
  EXPECT_THAT(status(400), HasSubstr(hub_.server.url() + "/owner/model"));
  const std::size_t before = hub_.server.calls().size();
  EXPECT_THAT(status(500), HasSubstr("4 attempts"));
  EXPECT_EQ(hub_.server.calls().size(), before + 4);
}

TEST_F(Faults, AMissingFileIsNamed) {
  hub_.set_fault([](const HttpCall& call, HttpReply& reply) {
    if (is_shard(call)) reply.answer(404, {});
    return is_shard(call);
  });
  EXPECT_THAT(failure_text(), AllOf(HasSubstr("'model.safetensors'"), HasSubstr("HTTP 404")));
}

TEST_F(Faults, BusyServersAreAskedAgainWhenTheySay) {
  std::atomic<int> calls = 0;
  hub_.set_fault([&](const HttpCall& call, HttpReply& reply) {
    if (!is_shard(call) || calls++ >= 2) return false;
    reply.answer(calls == 1 ? 429 : 503, {{"Retry-After", "1"}});
    return true;
  });
  const auto begin = std::chrono::steady_clock::now();
  expect_success();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST_F(Faults, AServerThatAsksForTooLongAWait) {
  hub_.set_fault([](const HttpCall&, HttpReply& reply) {
    reply.answer(429, {{"Retry-After", "3600"}});
    return true;
  });
  EXPECT_THAT(failure_text(), AllOf(HasSubstr("HTTP 429"), HasSubstr("asks to wait 3600 s")));
}

TEST_F(Faults, NobodyAnswers) {
  hub::Settings settings = hub_.settings();
  settings.patience.attempts = 1;
  settings.endpoint = "http://127.0.0.1:1";
  EXPECT_THAT(failure(settings).text(),
              AllOf(HasSubstr("owner/model: 127.0.0.1"), HasSubstr("port 1")));
}

TEST_F(Faults, AnswersThatAreNoList) {
  const auto answers = [&](std::string body) {
    hub_.set_fault([=](const HttpCall&, HttpReply& reply) {
      reply.answer(200, {}, body);
      return true;
    });
    return failure_text(ErrorCode::kInvalidFile);
  };
  EXPECT_THAT(answers("{\"sha\": \"0123"), HasSubstr("model description of 13 bytes"));
  EXPECT_THAT(answers("<html>"), HasSubstr("model description"));
  EXPECT_THAT(answers("[]"), HasSubstr("model description"));
  EXPECT_THAT(answers(std::string(20'000'000, ' ')), HasSubstr("more than 16777216 bytes"));
}

TEST_F(Faults, HostileNames) {
  for (const std::string& name :
       std::vector<std::string>{"../../x", "/etc/x", "a/../../x", "a\\b", "a\nb", "a//b", ".", "a/",
                                std::string(300, 'a'), ""}) {
    hub_.set_list([&](nlohmann::json& list) { list["siblings"][0]["rfilename"] = name; });
    EXPECT_THAT(failure_text(ErrorCode::kInvalidFile), HasSubstr("name '")) << name;
    EXPECT_FALSE(fs::exists(hub_.settings().cache));
  }
}

TEST_F(Faults, ALinkInTheSnapshotLeadsNowhere) {
  const TempFolder elsewhere;
  hub_.add("sub/x.json", "x");
  fs::create_directories(hub_.snapshot());
  fs::create_directory_symlink(elsewhere.path(), hub_.snapshot() / "sub");
  try {
    hub::pull(hub_.settings(), kModel, {.include = {"sub/*"}});
    ADD_FAILURE() << "a link was followed";
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("sub/x.json"), HasSubstr("not through a link")));
  }
  EXPECT_TRUE(fs::is_empty(elsewhere.path()));
}

TEST_F(Faults, APartialThatIsALinkIsNotWrittenThrough) {
  const TempFolder elsewhere;
  elsewhere.write("victim", "untouched");
  fs::create_directories(hub_.model_folder() / "blobs");
  fs::create_symlink(elsewhere / "victim", hub_.partial(kShard));
  failure_text();
  EXPECT_EQ(read_file(elsewhere / "victim"), "untouched");
}

TEST_F(Faults, ADiskThatIsTooSmallIsKnownBeforeTheFirstByte) {
  hub_.set_list([](nlohmann::json& list) {
    for (auto& sibling : list["siblings"]) sibling["size"] = std::int64_t{1} << 60;
  });
  EXPECT_THAT(failure_text(),
              AllOf(HasSubstr("2305843009213693952 bytes are to come"), HasSubstr("bytes free")));
  EXPECT_EQ(hub_.server.calls().size(), 1u);
  EXPECT_FALSE(fs::exists(hub_.settings().cache));
}

TEST_F(Faults, NothingTellsAChecksum) {
  hub_.set_list([](nlohmann::json& list) {
    for (auto& sibling : list["siblings"]) sibling = {{"rfilename", sibling["rfilename"]}};
  });
  hub_.set_fault([](const HttpCall& call, HttpReply& reply) {
    if (call.method == "HEAD")
      reply.answer(200, {{"ETag", "\"12-ab\""}, {"Content-Length", "2"}}, "", true);
    return call.method == "HEAD";
  });
  EXPECT_THAT(failure_text(ErrorCode::kInvalidFile),
              AllOf(HasSubstr("'config.json'"), HasSubstr("tells no SHA-256")));
}

TEST_F(Faults, ACancelledPullKeepsWhatCame) {
  std::atomic<bool> cancel{false};
  hub_.set_storage_fault([&](const HttpCall&, HttpReply& reply) {
    send_part(reply, 0, 100'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    cancel = true;
    reply.stall();
    return true;
  });
  hub::Settings settings = hub_.settings();
  settings.patience.stall = std::chrono::seconds(60);
  EXPECT_EQ(failure(settings, {.cancel = &cancel}).code(), ErrorCode::kCancelled);
  EXPECT_EQ(fs::file_size(hub_.partial(kShard)), 100'000u);
  hub_.set_storage_fault({});
  expect_success();
  EXPECT_EQ(hub_.storage.calls().back().header("range"), "bytes=100000-");
}

TEST(HttpsEndpoint, NeverLeadsToPlainHttp) {
  HttpServer server([](const HttpCall&, HttpReply& reply) { reply.answer(200, {}); });
  hub::Settings settings;
  settings.endpoint = "https://127.0.0.1:" + std::to_string(server.port());
  hub::HttpClient client(settings, [] { return false; });
  try {
    client.perform({.url = server.url() + "/x"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("'127.0.0.1' would be reached by plain http"));
  }
  EXPECT_TRUE(server.calls().empty());
}

}  // namespace
}  // namespace palimpsest::test
