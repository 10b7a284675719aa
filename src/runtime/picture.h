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

/// Each `placeholder` in ids becomes the ids of the next picture. Error (kInvalidRequest) when there are not as many of both.
Result<std::vector<std::int32_t>> expand_pictures(std::span<const std::int32_t> ids, std::int32_t placeholder, std::span<const std::shared_ptr<const Picture>> pictures);

/// The other way: the ids with one placeholder for each picture, and how many pictures there are. Nothing when the pictures in `ids` are not the first
/// of `pictures`, each whole.
struct ContractedIds {
  std::vector<std::int32_t> ids;
  std::size_t pictures = 0;
};
std::optional<ContractedIds> contract_pictures(std::span<const std::int32_t> ids, std::int32_t placeholder, std::span<const std::shared_ptr<const Picture>> pictures);

/// A file's bytes as a data: URL, and back. Error (kInvalidRequest) for other URLs and for what is not base64.
std::string data_url(std::span<const std::byte> file);
Result<std::vector<std::byte>> read_data_url(std::string_view url);

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

/// The pictures that sequences may name, and the rows that the tower makes of them. Rows are kept while a pass needs them and made again when they are
/// needed again. Belongs to the thread that runs forward.
class PictureRows {
 public:
  explicit PictureRows(std::shared_ptr<const VisionTower> tower) : tower_(std::move(tower)) {}

  /// Pictures that may occur from now on.
  void add(std::span<const std::shared_ptr<const Picture>> pictures);
  const VisionTower& tower() const { return *tower_; }

  /// Bytes of scratch that the largest picture takes, and of its rows.
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  std::int64_t row_bytes() const { return row_bytes_; }

  /// Checks that all negative ids are pictures that were added, each whole. Error (kInvalidRequest) with the position.
  Result<void> check(std::span<const std::int32_t> ids) const;

  /// What forward is given for rows [begin, begin + count) of a sequence that holds `ids`: valid until the next call.
  struct Pass {
    std::span<const std::int32_t> tokens;        ///< `count` ids of the vocabulary
    std::span<const std::int32_t> overlay_rows;  ///< of them, those of pictures
    const float* overlay = nullptr;
  };
  Pass prepare(ExecContext& ctx, std::span<const std::int32_t> ids, std::int64_t begin, std::int64_t count);

 private:
  const Picture* picture_at(std::span<const std::int32_t> ids, std::size_t begin) const;
  const std::vector<float>& rows_of(ExecContext& ctx, const Picture& picture);

  std::shared_ptr<const VisionTower> tower_;
  std::multimap<std::int32_t, std::shared_ptr<const Picture>> known_;  ///< by first id
  std::map<const Picture*, std::vector<float>> rows_;                  ///< those of the present pass
  std::int64_t workspace_bytes_ = 0, row_bytes_ = 0;
  std::vector<std::int32_t> tokens_, overlay_rows_;
  std::vector<float> overlay_;
};

}  // namespace palimpsest
