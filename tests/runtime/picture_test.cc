// Pictures in sequences: their ids, and a whole model with eyes against recorded logits, reuse and session files.

#include "runtime/picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "palimpsest/session.h"
#include "support/golden.h"
#include "support/shared_data.h"
#include "support/temp_folder.h"
#include "support/test_model.h"

namespace palimpsest {
namespace {

VisionConfig small_config() {
  VisionConfig config;
  config.patch_size = 14;
  config.merge = 2;
  return config;
}

media::Image striped(std::int64_t width, std::int64_t height, std::uint8_t seed) {
  media::Image image{width, height, media::PixelMode::kRgb, {}};
  image.pixels.resize(static_cast<std::size_t>(width * height * 3));
  for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<std::uint8_t>(i * 7 + seed);
  return image;
}

TEST(PictureIds, NameTheContent) {
  const auto a = make_picture(striped(60, 30, 1), small_config()), again = make_picture(striped(60, 30, 1), small_config());
  EXPECT_EQ(a->ids.size(), 6u);
  EXPECT_EQ(a->ids, again->ids);
  for (const std::int32_t id : a->ids) EXPECT_LT(id, 0);
  media::Image other = striped(60, 30, 1);
  other.pixels.back() ^= 1;
  const auto b = make_picture(other, small_config());
  ASSERT_EQ(b->ids.size(), a->ids.size());
  for (std::size_t i = 0; i < a->ids.size(); ++i) EXPECT_NE(a->ids[i], b->ids[i]) << i;
}

TEST(PictureIds, ExpandAndContract) {
  const Pictures pictures = {make_picture(striped(28, 28, 1), small_config()), make_picture(striped(60, 30, 2), small_config())};
  const std::vector<std::int32_t> ids = {5, 9, 6, 9, 9 + 1};
  const auto expanded = value_or_throw(expand_pictures(ids, 9, pictures));
  EXPECT_EQ(expanded.size(), 3u + 1 + 6);
  const auto contracted = contract_pictures(expanded, 9, pictures);
  ASSERT_TRUE(contracted.has_value());
  EXPECT_EQ(contracted->ids, ids);
  EXPECT_EQ(contracted->pictures, 2u);
  EXPECT_FALSE(contract_pictures(expanded, 9, std::span(pictures).first(1)).has_value());
  EXPECT_FALSE(contract_pictures(std::span(expanded).first(expanded.size() - 2), 9, pictures).has_value()) << "half a picture";
  const auto few = expand_pictures(ids, 9, std::span(pictures).first(1));
  ASSERT_FALSE(few.has_value());
  EXPECT_NE(few.error().text().find("2 pictures, but there are 1"), std::string::npos);
  EXPECT_EQ(picture_prompt(*pictures[1]), "<|media_begin|>image 60x30<|media_content|><|media_pad|><|media_end|>");
}

TEST(DataUrl, RoundTripAndRefusals) {
  for (std::size_t size = 0; size < 9; ++size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(251 * i + 77);
    EXPECT_EQ(value_or_throw(read_data_url(data_url(bytes))), bytes);
  }
  EXPECT_EQ(value_or_throw(read_data_url("data:image/png;base64,AAECAw==")).size(), 4u);
  for (const char* bad : {"https://example.org/a.png", "data:image/png,abc", "data:;base64,abc", "data:;base64,ab*=", "data:;base64,a===", "data:;base64,====", "data:text/html;base64,AAAA", "data:image/png;base64", ""}) {
    const auto result = read_data_url(bad);
    EXPECT_FALSE(result.has_value()) << bad;
  }
}

TEST(PictureIndex, CountsAndTellsApart) {
  const Pictures pictures = {make_picture(striped(60, 30, 1), small_config()), make_picture(striped(60, 30, 2), small_config())};
  const Pictures again = {make_picture(striped(60, 30, 1), small_config())};
  PictureIndex index;
  index.add(pictures);
  index.add(again);
  std::vector<std::int32_t> ids = {3};
  for (const auto& picture : pictures) ids.insert(ids.end(), picture->ids.begin(), picture->ids.end());
  EXPECT_EQ(index.at(ids, 1), pictures[0]);
  EXPECT_EQ(index.at(ids, 7), pictures[1]);
  EXPECT_EQ(index.at(ids, 2), nullptr) << "not its first token";
  EXPECT_TRUE(index.check(ids).has_value());
  index.remove(pictures);
  EXPECT_EQ(index.at(ids, 1), pictures[0]) << "there is another like it";
  EXPECT_EQ(index.at(ids, 7), nullptr);
  EXPECT_NE(index.check(ids).error().text().find("position 7"), std::string::npos);
  index.remove(again);
  EXPECT_EQ(index.at(ids, 1), nullptr);
}

TEST(PictureOrder, IsThatOfTheRenderedPlaces) {
  const Pictures pictures = {make_picture(striped(28, 28, 1), small_config()), make_picture(striped(28, 28, 2), small_config())};
  const std::vector<ChatSegment> segments = {{"a", false}, {"<1>", true, 1}, {"b", true}, {"<0>", true, 0}};
  EXPECT_EQ(in_order_of(segments, pictures), (Pictures{pictures[1], pictures[0]}));
}

class GoldenPictures : public testing::Test {
 protected:
  void SetUp() override {
    folder = test::shared_path("golden/kimi_k3_vision");
    if (folder.empty()) GTEST_SKIP() << "shared data absent: golden/kimi_k3_vision";
    golden = std::make_unique<test::Golden>(folder / "golden.safetensors");
    model = test::load_model(folder);
    config = *load_vision_config(folder);
  }

  /// The pictures of a recorded case, from their pixel values.
  Pictures pictures(int number) const {
    const std::string prefix = "case" + std::to_string(number) + ".";
    const auto values = golden->floats(prefix + "pixel_values");
    const auto thw = golden->ids(prefix + "grid_thw");
    Pictures out;
    std::size_t at = 0;
    for (std::size_t i = 0; i < thw.size(); i += 3) {
      media::Image image{thw[i + 2] * 14, thw[i + 1] * 14, media::PixelMode::kRgb, {}};
      image.pixels.resize(static_cast<std::size_t>(image.width * image.height * 3));
      for (std::int64_t p = 0; p < thw[i + 1] * thw[i + 2]; ++p) {
        for (std::int64_t c = 0; c < 3; ++c) {
          for (std::int64_t j = 0; j < 196; ++j) {
            const std::int64_t y = p / thw[i + 2] * 14 + j / 14, x = p % thw[i + 2] * 14 + j % 14;
            image.pixels[static_cast<std::size_t>((y * image.width + x) * 3 + c)] = static_cast<std::uint8_t>(std::lround((values[at++] + 1) / 2 * 255));
          }
        }
      }
      out.push_back(make_picture(image, config));
    }
    return out;
  }
  /// The recorded ids with these pictures in the place of the runs of placeholders.
  std::vector<std::int32_t> ids(int number, const Pictures& all) const {
    std::vector<std::int32_t> single;
    std::size_t run = 0, picture = 0;
    for (const std::int32_t id : golden->ids("case" + std::to_string(number) + ".input_ids")) {
      if (id != config.placeholder_id) {
        single.push_back(id);
        continue;
      }
      if (run++ == 0) single.push_back(id);
      if (run == all[picture]->ids.size()) {
        run = 0;
        ++picture;
      }
    }
    return value_or_throw(expand_pictures(single, static_cast<std::int32_t>(config.placeholder_id), all));
  }

  std::filesystem::path folder;
  std::unique_ptr<test::Golden> golden;
  std::shared_ptr<const Model> model;
  VisionConfig config;
};

std::size_t best(std::span<const float> logits) { return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()); }

/// Every row's logits, whatever the rows of a pass; the most likely token is the recorded one everywhere.
TEST_F(GoldenPictures, LogitsAndGreedyTokens) {
  for (int number = 0; number < 3; ++number) {
    const Pictures all = pictures(number);
    const std::vector<std::int32_t> sequence = ids(number, all);
    const auto want = golden->floats("case" + std::to_string(number) + ".eps_f32.logits");
    const auto vocab = static_cast<std::size_t>(model->config().vocab_size);
    ASSERT_EQ(want.size(), sequence.size() * vocab);
    for (const std::int64_t ubatch : {3, 7, 512}) {
      Session session(model, {.threads = 2, .context = 64, .ubatch = ubatch, .cache_type = DType::kF32, .activations = Activations::kF32});
      session.add_pictures(all);
      std::vector<float> got;
      session.score(sequence, [&](std::int64_t, std::int64_t rows, const float* logits) { got.insert(got.end(), logits, logits + rows * model->config().vocab_size); });
      const auto worst = test::worst_difference(got, want);
      // The bound of forward_test.cc for text.
      EXPECT_LE(worst.value, 1e-4 * worst.largest) << "case " << number << ", passes of " << ubatch << ", element " << worst.index;
      for (std::size_t row = 0; row < sequence.size(); ++row) {
        EXPECT_EQ(best(std::span(got).subspan(row * vocab, vocab)), best(std::span(want).subspan(row * vocab, vocab))) << "case " << number << ", row " << row;
      }
    }
  }
}

TEST_F(GoldenPictures, TakePartInReuse) {
  const Pictures all = pictures(0);
  const std::vector<std::int32_t> first = ids(0, all);
  media::Image changed = all[0]->patches.resized();
  changed.pixels[0] ^= 1;
  const Pictures others = {make_picture(changed, config)};
  const std::vector<std::int32_t> second = ids(0, others);
  Session session(model, {.threads = 1, .context = 64, .cache_bytes = 16 << 20});
  session.add_pictures(all);
  session.add_pictures(others);
  EXPECT_EQ(session.resume(first).cached_tokens, 0);
  const std::vector<float> logits(session.logits().begin(), session.logits().end());
  const PromptCounts other = session.resume(second);
  const auto border = std::find_if(first.begin(), first.end(), [](std::int32_t id) { return id < 0; }) - first.begin();
  EXPECT_LE(other.cached_tokens, border) << "another picture of the same size shares nothing from its first token on";
  EXPECT_FALSE(std::equal(logits.begin(), logits.end(), session.logits().begin()));
  EXPECT_EQ(session.resume(first).cached_tokens, static_cast<std::int64_t>(first.size()));
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), session.logits().begin()));
}

/// A picture is made in pieces; who stops between two has computed nothing of it, and can go on.
TEST_F(GoldenPictures, CanBeInterrupted) {
  const Pictures all = pictures(0);
  const std::vector<std::int32_t> sequence = ids(0, all);
  Session whole(model, {.threads = 1, .context = 64}), stopped(model, {.threads = 1, .context = 64});
  whole.add_pictures(all);
  whole.resume(sequence);
  stopped.add_pictures(all);
  for (int pieces = 0; pieces < 4; ++pieces) {
    int asked = 0;
    stopped.resume(sequence, {}, [&](std::int64_t) { return asked++ < pieces; });
    EXPECT_EQ(asked, pieces + 1);
    EXPECT_EQ(stopped.length(), 0);
  }
  stopped.resume(sequence);
  EXPECT_TRUE(std::equal(whole.logits().begin(), whole.logits().end(), stopped.logits().begin()));
}

/// The first that wants has the tower; what it does not want is forgotten, and made again.
TEST_F(GoldenPictures, RowsAreThoseOfTheMostUrgent) {
  const Pictures a = pictures(0), b = pictures(1);
  const std::vector<std::int32_t> first = ids(0, a), second = ids(1, b);
  const auto length = [](const auto& ids) { return static_cast<std::int64_t>(ids.size()); };
  PictureRows rows(VisionTower::load(folder, std::nullopt, model->device()));
  rows.known().add(a);
  rows.known().add(b);
  ExecContext ctx(1, model->device());
  const auto round = [&](bool a_first) {
    rows.begin_round();
    bool ready[2];
    for (const bool of_a : {a_first, !a_first}) ready[of_a ? 0 : 1] = of_a ? rows.want(first, 0, length(first)) : rows.want(second, 0, length(second));
    return std::pair(ready[0], ready[1]);
  };
  const auto finish = [&] {
    while (rows.work(ctx)) {
    }
  };
  EXPECT_EQ(round(true), std::pair(false, false));
  finish();
  EXPECT_EQ(rows.made(), 1);
  EXPECT_EQ(round(true), std::pair(true, false));
  EXPECT_FALSE(rows.work(ctx));
  EXPECT_EQ(round(false), std::pair(false, false)) << "the second has the tower now";
  EXPECT_TRUE(rows.work(ctx));
  EXPECT_EQ(round(true), std::pair(false, false)) << "so the first's are gone";
  finish();
  EXPECT_EQ(rows.made(), 2) << "what was begun of the second has been dropped";
  std::vector<std::int32_t> tokens(first.begin(), first.end()), overlay_rows;
  std::vector<float> overlay;
  ASSERT_EQ(round(true).first, true);
  const auto border = std::find_if(first.begin(), first.end(), [](std::int32_t id) { return id < 0; }) - first.begin();
  rows.fill(first, border, 2, border, tokens, overlay_rows, overlay);
  EXPECT_EQ(tokens[static_cast<std::size_t>(border)], config.placeholder_id);
  EXPECT_LT(tokens[static_cast<std::size_t>(border + 2)], 0) << "beyond the pass";
  EXPECT_EQ(overlay_rows, (std::vector<std::int32_t>{static_cast<std::int32_t>(border), static_cast<std::int32_t>(border) + 1}));
  EXPECT_EQ(overlay.size(), 2 * static_cast<std::size_t>(config.text_hidden_size));
  EXPECT_TRUE(rows.want(first, border + length(a[0]->ids), length(first))) << "behind the picture nothing is needed";
}

TEST_F(GoldenPictures, SessionFilesHoldThem) {
  const test::TempFolder temp;
  const Pictures all = pictures(1);
  const std::vector<std::int32_t> sequence = ids(1, all);
  const std::vector<std::int32_t> more = {7, 8, 9};
  Session session(model, {.threads = 1, .context = 64});
  session.add_pictures(all);
  session.resume(sequence);
  session.save(temp.path() / "s");
  session.append(more);

  Session restored(model, {.threads = 1, .context = 64});
  restored.restore(temp.path() / "s");
  EXPECT_TRUE(std::equal(sequence.begin(), sequence.end(), restored.ids().begin(), restored.ids().end()));
  restored.append(more);  // needs no picture
  EXPECT_TRUE(std::equal(session.logits().begin(), session.logits().end(), restored.logits().begin()));
}

TEST_F(GoldenPictures, UnknownPicturesAreRefused) {
  const Pictures all = pictures(1);
  const std::vector<std::int32_t> sequence = ids(1, all);
  Session session(model, {.threads = 1, .context = 64});
  EXPECT_THROW(session.resume(sequence), Error);
  session.add_pictures(all);
  std::vector<std::int32_t> cut = sequence;
  const auto at = std::find_if(cut.begin(), cut.end(), [](std::int32_t id) { return id < 0; });
  cut.erase(at);
  try {
    session.resume(cut);
    FAIL() << "a picture without its first token";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("picture at position"), std::string::npos) << error.text();
  }
  EXPECT_NO_THROW(session.resume(sequence));

  const auto blind = test::project_path("tests/golden/kimi_k3_text");
  Session text(Model::load(blind), {.threads = 1, .context = 64});
  EXPECT_THROW(text.add_pictures(all), Error);
}

}  // namespace
}  // namespace palimpsest
