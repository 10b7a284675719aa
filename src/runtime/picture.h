#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "media/patches.h"
#include "model/vision/vision_tower.h"
#include "palimpsest/chat.h"
#include "palimpsest/model_config.h"

// Pictures in prompts. In a sequence of ids a picture stands as one negative id for each of its tokens. These are made from the content: equal
// pictures have equal ids and others differ, so whatever compares ids (the prefix tree, snapshots, session files) tells pictures apart without knowing
// what they are. No vocabulary has negative ids.

namespace palimpsest {

/// A picture made ready for the tower. Immutable.
struct Picture {
  media::PatchImage patches;
  std::vector<std::int32_t> ids;  ///< one a token; 31 bits each of a hash (XXH3) of all pixels and sizes and of the token's place

  PatchGridSize grid() const { return {1, patches.grid().rows, patches.grid().columns}; }
};

std::shared_ptr<const Picture> make_picture(const media::Image& image, const VisionConfig& config);
/// Decodes and resizes a file's bytes. Errors as media::decode_image.
Result<std::shared_ptr<const Picture>> read_picture(std::span<const std::byte> file, const VisionConfig& config, const media::ImageLimits& limits = {});

/// The text that stands for a picture in a chat of Kimi K3, to be encoded as control text. Its one <|media_pad|> becomes the picture's ids.
std::string picture_prompt(const Picture& picture);

/// A tower makes rows for the text model of its own checkpoint. Throws Error{kInvalidFile} where their sizes do not agree.
void check_tower(const VisionTower& tower, const ModelConfig& config);

using Pictures = std::vector<std::shared_ptr<const Picture>>;
/// Bytes of the pixels that these hold; one that is there twice counts twice.
std::int64_t picture_bytes(std::span<const std::shared_ptr<const Picture>> pictures);

/// Each `placeholder` in ids becomes the ids of the next picture. Error (kInvalidRequest) when there are not as many of both.
Result<std::vector<std::int32_t>> expand_pictures(std::span<const std::int32_t> ids, std::int32_t placeholder, std::span<const std::shared_ptr<const Picture>> pictures);

/// The other way: the ids with one placeholder for each picture, and how many pictures there are. Nothing when the pictures in `ids` are not the first
/// of `pictures`, each whole.
struct ContractedIds {
  std::vector<std::int32_t> ids;
  std::size_t pictures = 0;
};
std::optional<ContractedIds> contract_pictures(std::span<const std::int32_t> ids, std::int32_t placeholder, std::span<const std::shared_ptr<const Picture>> pictures);

/// A file's bytes as a data: URL, and back. Error (kInvalidRequest) for other URLs, for media types that are no pictures', and for what is not base64.
std::string data_url(std::span<const std::byte> file);
Result<std::vector<std::byte>> read_data_url(std::string_view url);

/// The pictures in the order in which a rendered chat has places for them, which is another than that of its messages where the format moves results of
/// tools. `pictures`: of the chat's image parts, in their order.
Pictures in_order_of(std::span<const ChatSegment> segments, std::span<const std::shared_ptr<const Picture>> pictures);

/// The pictures of a chat: what its image parts (ContentPart::text is a data: URL) are made into, each read once.
class ChatPictures {
 public:
  ChatPictures(const VisionConfig& config, std::int32_t placeholder, const media::ImageLimits& limits = {})
      : config_(config), placeholder_(placeholder), limits_(limits) {}
  /// For the model that this tokenizer belongs to. Throws Error{kUnsupported} for a vocabulary without
  /// <|media_pad|>.
  static std::shared_ptr<ChatPictures> create(const VisionConfig& config, const Tokenizer& tokenizer);

  /// Reads the image parts and sets ChatOptions::image_prompts; pictures in the order of the parts. Throws Error naming message and part.
  Pictures read(Conversation& conversation);
  /// The picture of one data: URL, read before or now.
  Result<std::shared_ptr<const Picture>> picture(const std::string& url);
  std::int32_t placeholder() const { return placeholder_; }

 private:
  VisionConfig config_;
  std::int32_t placeholder_;
  media::ImageLimits limits_;
  std::map<std::string, std::shared_ptr<const Picture>> read_;  ///< by URL
};

/// Pictures by their ids.
class PictureIndex {
 public:
  /// Each counts as often as it was added.
  void add(std::span<const std::shared_ptr<const Picture>> pictures);
  void remove(std::span<const std::shared_ptr<const Picture>> pictures);
  /// The picture whose ids stand at `begin`, all of them; null if there is none.
  std::shared_ptr<const Picture> at(std::span<const std::int32_t> ids, std::size_t begin) const;
  /// Checks that all negative ids are pictures that are here, each whole. Error (kInvalidRequest) with the position.
  Result<void> check(std::span<const std::int32_t> ids) const;

 private:
  struct Known {
    std::shared_ptr<const Picture> picture;
    std::int64_t times;
  };
  using Entries = std::multimap<std::int32_t, Known>;
  Entries::iterator find(const Picture& picture);

  Entries known_;  ///< by first id
};

/// The rows that the tower makes of the pictures in running sequences. In each round, which comes before a pass, sequences say what their next rows touch,
/// the most urgent first. The first that touches a picture has the tower: what it wants and misses is made, a piece at a time; rows that it does not want
/// are forgotten, and made again when they are wanted again. So memory is bounded by what one pass of one sequence touches (at most two pictures that it
/// holds in part, and the rows of a pass), and the tower's for one picture. Belongs to the thread that runs forward.
class PictureRows {
 public:
  /// Rows lie on the host, wherever the tower does.
  explicit PictureRows(std::shared_ptr<const VisionTower> tower) : tower_(std::move(tower)) {}

  PictureIndex& known() { return known_; }
  const PictureIndex& known() const { return known_; }
  const VisionTower& tower() const { return *tower_; }

  void begin_round();
  /// Wants what tokens [begin, end) of a sequence touch. True: all of it is there, until the next work().
  bool want(std::span<const std::int32_t> ids, std::int64_t begin, std::int64_t end);
  /// Forgets what the round does not want, and makes a piece of what it misses; false: it misses nothing. The context is of the tower's device, which is
  /// waited for. Throws what memory and devices throw; the picture is then begun anew.
  bool work(ExecContext& ctx);

  /// For tokens [begin, begin + count) of a sequence, in rows of a pass from `first_row` on: puts ids of the vocabulary in the place of those of
  /// pictures, and appends these rows and their numbers. The round found all that they touch.
  void fill(std::span<const std::int32_t> ids, std::int64_t begin, std::int64_t count, std::int64_t first_row, std::span<std::int32_t> tokens,
            std::vector<std::int32_t>& overlay_rows, std::vector<float>& overlay) const;

  std::int64_t made() const { return made_; }  ///< pictures so far

 private:
  using Shared = std::shared_ptr<const Picture>;
  /// The picture that the tower is at.
  struct Job {
    Shared picture;
    std::vector<float> rows;
    Buffer on_device;  ///< the rows while they are made, where the tower lies on a device
    Arena memory;
    std::optional<PictureEncoder> encoder;
  };
  /// f(position of its first token, picture) for each that tokens [begin, end) touch.
  template <class F>
  void for_each_touched(std::span<const std::int32_t> ids, std::int64_t begin, std::int64_t end, F f) const;
  bool is_wanted(const Shared& picture) const;
  std::unique_ptr<Job> begin(ExecContext& ctx, const Shared& picture) const;

  std::shared_ptr<const VisionTower> tower_;
  PictureIndex known_;
  Pictures wanted_;  ///< in this round
  std::map<Shared, std::vector<float>> rows_;
  std::unique_ptr<Job> job_;
  std::int64_t made_ = 0;
};

}  // namespace palimpsest
