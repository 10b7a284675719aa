// --image through the program: a recorded picture gives the recorded token; errors name the file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/bitmap.h"
#include "support/child.h"
#include "support/golden.h"
#include "support/seeing_model.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"

namespace palimpsest {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kPlaceholder = 253;

TEST(ImageFlag, RecordedPicturesGiveTheRecordedToken) {
  const auto model = test::shared_path("golden/kimi_k3_vision");
  if (model.empty()) GTEST_SKIP() << "shared data absent: golden/kimi_k3_vision";
  const test::Golden golden(model / "golden.safetensors");
  for (int number = 0; number < 3; ++number) {
    const test::TempFolder folder;
    const std::string prefix = "case" + std::to_string(number) + ".";
    const auto values = golden.floats(prefix + "pixel_values");
    const auto thw = golden.ids(prefix + "grid_thw");
    std::vector<std::string> arguments = {"run", "-m", model.string(), "-n", "1", "--temp", "0", "--print-ids", "--cache-type", "f32", "-c", "64", "-t", "1", "--ignore-eos"};
    std::size_t at = 0, tokens = 0;
    for (std::size_t i = 0; i < thw.size(); i += 3) {
      const std::int64_t width = thw[i + 2] * 14, height = thw[i + 1] * 14;
      std::vector<std::uint8_t> rgb(static_cast<std::size_t>(width * height * 3));
      for (std::int64_t p = 0; p < thw[i + 1] * thw[i + 2]; ++p) {
        for (std::int64_t c = 0; c < 3; ++c) {
          for (std::int64_t j = 0; j < 196; ++j) {
            const std::int64_t y = p / thw[i + 2] * 14 + j / 14, x = p % thw[i + 2] * 14 + j % 14;
            rgb[static_cast<std::size_t>((y * width + x) * 3 + c)] = static_cast<std::uint8_t>(std::lround((values[at++] + 1) / 2 * 255));
          }
        }
      }
      const std::string name = "picture" + std::to_string(i) + ".bmp";
      folder.write(name, test::bmp(width, height, rgb));
      arguments.insert(arguments.end(), {"--image", (folder / name).string()});
      tokens += static_cast<std::size_t>(thw[i + 1] * thw[i + 2] / 4);
    }
    // One placeholder for each picture: of a run, those behind the first token of a picture go.
    std::string ids;
    std::size_t picture = 0, run = 0, seen = 0;
    for (const std::int32_t id : golden.ids(prefix + "input_ids")) {
      if (id == kPlaceholder) {
        ++seen;
        if (run++ > 0) {
          if (run == static_cast<std::size_t>(thw[3 * picture + 1] * thw[3 * picture + 2] / 4)) run = 0, ++picture;
          continue;
        }
      }
      ids += (ids.empty() ? "" : ",") + std::to_string(id);
    }
    ASSERT_EQ(seen, tokens);
    arguments.insert(arguments.end(), {"--ids", ids});
    const auto logits = golden.floats(prefix + "eps_f32.logits");
    const auto last = logits.end() - 256;
    const auto result = test::run_child(PALIMPSEST_BINARY, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(std::stol(result.out), std::max_element(last, logits.end()) - last) << "case " << number;
  }
}

TEST(ImageFlag, ErrorsNameTheFile) {
  const test::TempFolder folder;
  folder.write("broken.png", "\x89PNG\r\n\x1a\nand nothing more");
  const std::string file = (folder / "broken.png").string(), demo = test::project_path("models/demo").string();
  const auto blind = test::run_child(PALIMPSEST_BINARY, {"run", "-m", demo, "--image", file, "-p", "x"});
  EXPECT_EQ(blind.exit_code, 1);
  EXPECT_THAT(blind.err, HasSubstr("reads no pictures"));
  const auto raw = test::run_child(PALIMPSEST_BINARY, {"run", "-m", demo, "--image", file, "--raw", "-p", "x"});
  EXPECT_EQ(raw.exit_code, 2);
  EXPECT_THAT(raw.err, HasSubstr("--image"));
  const auto model = test::shared_path("golden/kimi_k3_vision");
  if (model.empty()) return;
  const auto broken = test::run_child(PALIMPSEST_BINARY, {"run", "-m", model.string(), "--image", file, "--ids", "1,253,2", "--print-ids"});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.err, HasSubstr(file));
  const auto inspected = test::run_child(PALIMPSEST_BINARY, {"inspect", "-m", model.string()});
  EXPECT_THAT(inspected.out, HasSubstr("vision tower"));
}

/// A device has no end, and a file or pipe may be larger than any picture: no more is read than is taken.
TEST(ImageFlag, WhatCannotBeAPictureIsNotReadToItsEnd) {
  const test::TempFolder folder;
  test::write_seeing_model(folder / "model");
  const std::string large = (folder / "large.png").string(), model = (folder / "model").string();
  folder.write("large.png", "");
  std::filesystem::resize_file(large, (64 << 20) + 1);
  const auto refused = [&](const std::string& file, const std::string& input, const std::string& why) {
    const auto result = test::run_child(PALIMPSEST_BINARY, {"run", "-m", model, "--image", file, "-p", "x"}, input);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr(file + ": " + why));
  };
  refused("/dev/zero", "", "has more than 67108864 bytes");
  refused(large, "", "has 67108865 bytes, at most 67108864 are read");
  refused("-", std::string((64 << 20) + 1, 'x'), "has more than 67108864 bytes");
  refused("-", "no picture", "not a picture");
  const auto line = test::run_child(PALIMPSEST_BINARY, {"run", "-m", model}, "/image /dev/zero\n");
  EXPECT_THAT(line.err, HasSubstr("/dev/zero: has more than"));
}

std::string after(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  return at == std::string::npos ? "" : text.substr(at + word.size());
}

/// A chat with two pictures goes on in another process: the pictures are in the session, are not computed again, and the answer is that of one process.
/// Another picture in their place changes the answer's prompt from there on.
TEST(ImageFlag, ChatsGoOnWithTheirPictures) {
  const test::TempFolder folder;
  test::write_seeing_model(folder / "model");
  const auto image = [](const char* name) { return test::project_path("tests/data/images/" + std::string(name)).string(); };
  const std::vector<std::string> common = {"run", "-m", (folder / "model").string(), "-t", "1", "-n", "3", "--temp", "0", "-c", "400", "--print-ids"};
  const auto run = [&](std::vector<std::string> more, const std::string& input = "") {
    std::vector<std::string> all = common;
    all.insert(all.end(), more.begin(), more.end());
    const auto result = test::run_child(PALIMPSEST_BINARY, all, input);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  };
  const auto whole = run({"--image", image("rgb.png"), "--image", image("photo_shrunk.jpg")}, "What is this?\nAnd now?\n");
  const std::string session = (folder / "s").string();
  const auto first = run({"--session", session, "--image", image("rgb.png"), "--image", image("photo_shrunk.jpg"), "-p", "What is this?"});
  const auto second = run({"--session", session, "-p", "And now?"});
  EXPECT_EQ(after(whole.out, first.out.substr(0, first.out.find('\n'))).substr(1), second.out.substr(0, second.out.find('\n')) + "\n");
  // The first prompt with 4 and 6 tokens of pictures, and all of the answer but its last token.
  EXPECT_THAT(first.err, HasSubstr("prompt 57 tokens: 0 cached"));
  EXPECT_THAT(second.err, HasSubstr("tokens: 59 cached, 0 replayed"));
  const auto other = run({"--image", image("rgba.png"), "--image", image("photo_shrunk.jpg"), "-p", "What is this?"});
  EXPECT_EQ(after(other.err, "prompt ").substr(0, 2), after(first.err, "prompt ").substr(0, 2)) << "as many tokens";

  // A picture in a later turn, between lines of a chat.
  const std::string path = image("rgb.png");
  const auto later = run({}, "Hello\n/image " + path + "\nWhat is this?\n"), text = run({}, "Hello\nWhat is this?\n");
  EXPECT_EQ(later.out.substr(0, later.out.find('\n')), text.out.substr(0, text.out.find('\n')));
  EXPECT_EQ(std::stol(after(later.err.substr(later.err.rfind("prompt ")), "prompt ")) - std::stol(after(text.err.substr(text.err.rfind("prompt ")), "prompt ")),
            std::stol(after(first.err, "prompt ")) - std::stol(after(run({"--image", image("photo_shrunk.jpg"), "-p", "What is this?"}).err, "prompt ")))
      << "as many tokens more as in a first turn";
  const auto missing = test::run_child(PALIMPSEST_BINARY, common, "/image nowhere.png\n");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("nowhere.png"));
  const auto unnamed = test::run_child(PALIMPSEST_BINARY, common, "/image\n");
  EXPECT_EQ(unnamed.exit_code, 1);
  EXPECT_THAT(unnamed.err, HasSubstr("/image: no file is named"));
  std::vector<std::string> shrunk = common;
  shrunk.insert(shrunk.end(), {"--image", path, "--image-tokens", "1", "-p", "What is this?"});
  EXPECT_LT(std::stol(after(test::run_child(PALIMPSEST_BINARY, shrunk).err, "prompt ")), std::stol(after(first.err, "prompt ")));

  const auto blind = test::run_child(PALIMPSEST_BINARY, {"run", "-m", test::project_path("models/demo").string(), "--session", session, "-p", "And now?"});
  EXPECT_NE(blind.exit_code, 0) << "the session is another model's";
}

}  // namespace
}  // namespace palimpsest
