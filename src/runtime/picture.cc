#include "runtime/picture.h"

#include <xxhash.h>

#include <algorithm>
#include <array>

#include "base/base64.h"
#include "base/check.h"

namespace palimpsest {
namespace {

std::vector<std::int32_t> ids_of(const media::PatchImage& patches) {
  const media::Image& resized = patches.resized();
  const std::array<std::int64_t, 4> sizes = {patches.width(), patches.height(), resized.width, resized.height};
  const XXH128_hash_t pixels = XXH3_128bits(resized.pixels.data(), resized.pixels.size());
  struct {
    std::uint64_t low, high;
    std::array<std::int64_t, 4> sizes;
    std::int64_t token;
  } key{pixels.low64, pixels.high64, sizes, 0};
  std::vector<std::int32_t> ids(static_cast<std::size_t>(patches.tokens()));
  for (std::int32_t& id : ids) {
    id = static_cast<std::int32_t>(static_cast<std::uint32_t>(XXH3_64bits(&key, sizeof key)) | 0x80000000u);
    ++key.token;
  }
  return ids;
}

/// Whether the picture's ids stand at `begin`, all of them.
bool stands_at(const Picture& picture, std::span<const std::int32_t> ids, std::size_t begin) {
  return ids.size() - begin >= picture.ids.size() && std::equal(picture.ids.begin(), picture.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin));
}

}  // namespace

std::shared_ptr<const Picture> make_picture(const media::Image& image, const VisionConfig& config) {
  media::PatchImage patches(image, {.patch = config.patch_size, .merge = config.merge, .patch_limit = config.patch_limit, .side_patch_limit = config.side_patch_limit});
  std::vector<std::int32_t> ids = ids_of(patches);
  return std::make_shared<const Picture>(Picture{std::move(patches), std::move(ids)});
}

Result<std::shared_ptr<const Picture>> read_picture(std::span<const std::byte> file, const VisionConfig& config, const media::ImageLimits& limits) {
  const auto image = media::decode_image(file, limits);
  if (!image) return tl::make_unexpected(image.error());
  return make_picture(*image, config);
}

std::string picture_prompt(const Picture& picture) {
  return fmt::format("<|media_begin|>image {}x{}<|media_content|><|media_pad|><|media_end|>", picture.patches.width(), picture.patches.height());
}

Result<std::vector<std::int32_t>> expand_pictures(std::span<const std::int32_t> ids, std::int32_t placeholder, std::span<const std::shared_ptr<const Picture>> pictures) {
  std::vector<std::int32_t> out;
  std::size_t next = 0;
  for (const std::int32_t id : ids) {
    if (id != placeholder) {
      out.push_back(id);
      continue;
    }
    if (next < pictures.size()) out.insert(out.end(), pictures[next]->ids.begin(), pictures[next]->ids.end());
    ++next;
  }
  if (next != pictures.size()) return fail(ErrorCode::kInvalidRequest, "the prompt has places for {} pictures, but there are {}", next, pictures.size());
  return out;
}

std::optional<ContractedIds> contract_pictures(std::span<const std::int32_t> ids, std::int32_t placeholder, std::span<const std::shared_ptr<const Picture>> pictures) {
  ContractedIds out;
  for (std::size_t i = 0; i < ids.size();) {
    if (ids[i] >= 0) {
      out.ids.push_back(ids[i++]);
      continue;
    }
    if (out.pictures == pictures.size() || !stands_at(*pictures[out.pictures], ids, i)) return std::nullopt;
    out.ids.push_back(placeholder);
    i += pictures[out.pictures++]->ids.size();
  }
  return out;
}

void check_tower(const VisionTower& tower, const ModelConfig& config) {
  if (tower.config().text_hidden_size != config.hidden_size) {
    throw make_error(ErrorCode::kInvalidFile, "config.json: vision_config.text_hidden_size is {}, but text_config.hidden_size is {}", tower.config().text_hidden_size, config.hidden_size);
  }
  if (tower.config().placeholder_id >= config.vocab_size) {
    throw make_error(ErrorCode::kInvalidFile, "config.json: media_placeholder_token_id is {}, outside the vocabulary of {}", tower.config().placeholder_id, config.vocab_size);
  }
}

std::string data_url(std::span<const std::byte> file) {
  std::string out = "data:;base64,";
  out.reserve(out.size() + (file.size() + 2) / 3 * 4);
  base::append_base64(file, out);
  return out;
}

Result<std::vector<std::byte>> read_data_url(std::string_view url) {
  const std::size_t comma = url.find(',');
  if (!url.starts_with("data:") || comma == std::string_view::npos) {
    return fail(ErrorCode::kInvalidRequest, "a picture must be given as data:image/...;base64,... ; other URLs are not fetched");
  }
  if (!url.substr(0, comma).ends_with(";base64")) return fail(ErrorCode::kInvalidRequest, "a data: URL must be in base64");
  const std::string_view text = url.substr(comma + 1);
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3);
  if (!base::append_decoded_base64(text, base::Base64Rest::kAny, bytes)) return fail(ErrorCode::kInvalidRequest, "the data: URL is not base64");
  return bytes;
}

std::shared_ptr<ChatPictures> ChatPictures::create(const VisionConfig& config, const Tokenizer& tokenizer) {
  const auto placeholder = tokenizer.control("<|media_pad|>");
  if (!placeholder) throw make_error(ErrorCode::kUnsupported, "the vocabulary has no <|media_pad|>: there is no place for pictures in its chats");
  return std::make_shared<ChatPictures>(config, *placeholder);
}

Result<std::shared_ptr<const Picture>> ChatPictures::picture(const std::string& url) {
  if (const auto known = read_.find(url); known != read_.end()) return known->second;
  const auto file = read_data_url(url);
  if (!file) return tl::make_unexpected(file.error());
  auto picture = read_picture(*file, config_, limits_);
  if (picture) read_.emplace(url, *picture);
  return picture;
}

Pictures ChatPictures::read(Conversation& conversation) {
  Pictures pictures;
  conversation.options.image_prompts.clear();
  for (std::size_t m = 0; m < conversation.messages.size(); ++m) {
    const auto& content = conversation.messages[m].content;
    for (std::size_t i = 0; i < content.size(); ++i) {
      if (content[i].kind != ContentPart::Kind::kImage) continue;
      pictures.push_back(value_or_throw(picture(content[i].text), fmt::format("messages[{}].content[{}]", m, i)));
      conversation.options.image_prompts.push_back(picture_prompt(*pictures.back()));
    }
  }
  return pictures;
}

void PictureRows::add(std::span<const std::shared_ptr<const Picture>> pictures) {
  for (const auto& picture : pictures) {
    const auto [first, last] = known_.equal_range(picture->ids.front());
    if (std::any_of(first, last, [&](const auto& known) { return known.second->ids == picture->ids; })) continue;
    known_.emplace(picture->ids.front(), picture);
    workspace_bytes_ = std::max(workspace_bytes_, vision_workspace_bytes(*tower_, picture->grid()));
    row_bytes_ = std::max<std::int64_t>(row_bytes_, static_cast<std::int64_t>(picture->ids.size()) * tower_->config().text_hidden_size * 4);
  }
}

const Picture* PictureRows::picture_at(std::span<const std::int32_t> ids, std::size_t begin) const {
  const auto [first, last] = known_.equal_range(ids[begin]);
  const auto found = std::find_if(first, last, [&](const auto& known) { return stands_at(*known.second, ids, begin); });
  return found == last ? nullptr : found->second.get();
}

Result<void> PictureRows::check(std::span<const std::int32_t> ids) const {
  for (std::size_t i = 0; i < ids.size();) {
    if (ids[i] >= 0) {
      ++i;
      continue;
    }
    const Picture* picture = picture_at(ids, i);
    if (picture == nullptr) return fail(ErrorCode::kInvalidRequest, "the picture at position {} is not given: it must be given again", i);
    i += picture->ids.size();
  }
  return {};
}

const std::vector<float>& PictureRows::rows_of(ExecContext& ctx, const Picture& picture) {
  const auto [at, made] = rows_.try_emplace(&picture);
  if (!made) return at->second;
  const std::int64_t width = tower_->config().text_hidden_size, tokens = static_cast<std::int64_t>(picture.ids.size());
  at->second.resize(static_cast<std::size_t>(tokens * width));
  ctx.workspace.reset_to(0);
  encode_picture(
      ctx, *tower_, picture.grid(), [&](std::int64_t first, std::int64_t count, float* out) { picture.patches.write_patches(first, count, out); },
      Tensor::contiguous(at->second.data(), DType::kF32, {tokens, width}));
  return at->second;
}

PictureRows::Pass PictureRows::prepare(ExecContext& ctx, std::span<const std::int32_t> ids, std::int64_t begin, std::int64_t count) {
  const std::int64_t end = begin + count, width = tower_->config().text_hidden_size;
  tokens_.clear();
  overlay_rows_.clear();
  overlay_.clear();
  const Picture* cut = nullptr;  // the picture that the pass ends within
  for (std::int64_t i = 0; i < end;) {
    const std::int32_t id = ids[static_cast<std::size_t>(i)];
    if (id >= 0) {
      if (i >= begin) tokens_.push_back(id);
      ++i;
      continue;
    }
    const Picture* picture = picture_at(ids, static_cast<std::size_t>(i));
    if (picture == nullptr) {  // of a session file; computed, so nothing of it is needed
      PALIMPSEST_CHECK(i < begin, "pictures are checked before their rows are wanted");
      ++i;
      continue;
    }
    const std::int64_t tokens = static_cast<std::int64_t>(picture->ids.size()), from = std::max(begin, i), to = std::min(end, i + tokens);
    if (from < to) {
      const std::vector<float>& rows = rows_of(ctx, *picture);
      for (std::int64_t t = from; t < to; ++t) {
        overlay_rows_.push_back(static_cast<std::int32_t>(tokens_.size()));
        tokens_.push_back(static_cast<std::int32_t>(tower_->config().placeholder_id));
      }
      overlay_.insert(overlay_.end(), rows.begin() + (from - i) * width, rows.begin() + (to - i) * width);
    }
    i += tokens;
    if (i > end) cut = picture;
  }
  // Rows that the next pass goes on with stay.
  std::erase_if(rows_, [&](const auto& entry) { return entry.first != cut; });
  return {tokens_, overlay_rows_, overlay_.data()};
}

}  // namespace palimpsest
