#include "base/base64.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace palimpsest::base {
namespace {

std::string encoded(std::string_view text) {
  std::string out;
  append_base64(std::as_bytes(std::span(text)), out);
  return out;
}

TEST(Base64, GivesTheAnswersOfRfc4648BothWays) {
  for (const auto& [plain, code] : {std::pair{"", ""},
                                    {"f", "Zg=="},
                                    {"fo", "Zm8="},
                                    {"foo", "Zm9v"},
                                    {"foob", "Zm9vYg=="},
                                    {"fooba", "Zm9vYmE="},
                                    {"foobar", "Zm9vYmFy"},
                                    {"\xfb\xff\xfe", "+//+"}}) {
    EXPECT_EQ(encoded(plain), code);
    std::string decoded;
    EXPECT_TRUE(append_decoded_base64(code, Base64Rest::kZero, decoded)) << code;
    EXPECT_EQ(decoded, plain);
  }
}

TEST(Base64, RefusesWhatIsNone) {
  for (const char* text : {"Z", "Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm=v", "Zm9-", "Zm9 "}) {
    std::vector<std::byte> bytes;
    EXPECT_FALSE(append_decoded_base64(text, Base64Rest::kAny, bytes)) << text;
  }
}

TEST(Base64, BitsLeftOverMayHaveToBeZero) {
  for (const char* text : {"Zh==", "Zm9="}) {
    std::string decoded;
    EXPECT_FALSE(append_decoded_base64(text, Base64Rest::kZero, decoded)) << text;
    EXPECT_TRUE(append_decoded_base64(text, Base64Rest::kAny, decoded)) << text;
    EXPECT_EQ(decoded.front(), 'f');
  }
}

}  // namespace
}  // namespace palimpsest::base
