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

/// A job's memory is the context's while it computes, whatever happens.
class Lent {
 public:
  Lent(Arena& a, Arena& b) : a_(a), b_(b) { std::swap(a_, b_); }
  ~Lent() { std::swap(a_, b_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  Arena &a_, &b_;
};

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

std::int64_t picture_bytes(std::span<const std::shared_ptr<const Picture>> pictures) {
  std::int64_t bytes = 0;
  for (const auto& picture : pictures) bytes += static_cast<std::int64_t>(picture->patches.resized().pixels.size());
  return bytes;
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
    return fail(ErrorCode::kInvalidRequest, "a picture must be given as data:image/...;base64,...");
  }
  std::string_view type = url.substr(5, comma - 5);
  if (!type.ends_with(";base64")) return fail(ErrorCode::kInvalidRequest, "a data: URL must be in base64");
  type = type.substr(0, type.find(';'));
  if (!type.empty() && !type.starts_with("image/")) return fail(ErrorCode::kInvalidRequest, "the media type of a data: URL must be image/...");
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

Pictures in_order_of(std::span<const ChatSegment> segments, std::span<const std::shared_ptr<const Picture>> pictures) {
  Pictures ordered;
  for (const ChatSegment& segment : segments) {
    if (segment.image >= 0) ordered.push_back(pictures[static_cast<std::size_t>(segment.image)]);
  }
  return ordered;
}

// -- pictures by their ids ----------------------------------------------------------------------

PictureIndex::Entries::iterator PictureIndex::find(const Picture& picture) {
  const auto [first, last] = known_.equal_range(picture.ids.front());
  const auto found = std::find_if(first, last, [&](const auto& entry) { return entry.second.picture->ids == picture.ids; });
  return found == last ? known_.end() : found;
}

void PictureIndex::add(std::span<const std::shared_ptr<const Picture>> pictures) {
  for (const auto& picture : pictures) {
    auto at = find(*picture);
    if (at == known_.end()) at = known_.emplace(picture->ids.front(), Known{picture, 0});
    ++at->second.times;
  }
}

void PictureIndex::remove(std::span<const std::shared_ptr<const Picture>> pictures) {
  for (const auto& picture : pictures) {
    const auto at = find(*picture);
    PALIMPSEST_CHECK(at != known_.end(), "what is removed was added");
    if (--at->second.times == 0) known_.erase(at);
  }
}

std::shared_ptr<const Picture> PictureIndex::at(std::span<const std::int32_t> ids, std::size_t begin) const {
  const auto [first, last] = known_.equal_range(ids[begin]);
  const auto found = std::find_if(first, last, [&](const auto& entry) { return stands_at(*entry.second.picture, ids, begin); });
  return found == last ? nullptr : found->second.picture;
}

Result<void> PictureIndex::check(std::span<const std::int32_t> ids) const {
  for (std::size_t i = 0; i < ids.size();) {
    if (ids[i] >= 0) {
      ++i;
      continue;
    }
    const auto picture = at(ids, i);
    if (!picture) return fail(ErrorCode::kInvalidRequest, "the picture at position {} is not given: it must be given again", i);
    i += picture->ids.size();
  }
  return {};
}

// -- their rows ---------------------------------------------------------------------------------

template <class F>
void PictureRows::for_each_touched(std::span<const std::int32_t> ids, std::int64_t begin, std::int64_t end, F f) const {
  const auto range = ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  if (std::none_of(range.begin(), range.end(), [](std::int32_t id) { return id < 0; })) return;
  for (std::int64_t i = 0; i < end;) {  // where a picture begins is only known from the start
    const auto picture = ids[static_cast<std::size_t>(i)] < 0 ? known_.at(ids, static_cast<std::size_t>(i)) : nullptr;
    // Unknown ones are of a session file: computed, so nothing of them is needed.
    PALIMPSEST_CHECK(picture || ids[static_cast<std::size_t>(i)] >= 0 || i < begin, "pictures are checked before their rows are wanted");
    const std::int64_t tokens = picture ? static_cast<std::int64_t>(picture->ids.size()) : 1;
    if (picture && i + tokens > begin) f(i, picture);
    i += tokens;
  }
}

bool PictureRows::is_wanted(const Shared& picture) const { return std::find(wanted_.begin(), wanted_.end(), picture) != wanted_.end(); }

void PictureRows::begin_round() { wanted_.clear(); }

bool PictureRows::want(std::span<const std::int32_t> ids, std::int64_t begin, std::int64_t end) {
  Pictures touched;
  for_each_touched(ids, begin, end, [&](std::int64_t, const Shared& picture) { touched.push_back(picture); });
  if (wanted_.empty()) wanted_ = touched;
  return std::all_of(touched.begin(), touched.end(), [&](const Shared& picture) { return rows_.contains(picture) && is_wanted(picture); });
}

std::unique_ptr<PictureRows::Job> PictureRows::begin(ExecContext& ctx, const Shared& picture) const {
  const std::int64_t width = tower_->config().text_hidden_size, tokens = static_cast<std::int64_t>(picture->ids.size());
  auto job = std::make_unique<Job>(Job{picture, std::vector<float>(static_cast<std::size_t>(tokens * width)), {}, Arena(vision_workspace_bytes(*tower_, picture->grid()), ctx.device), {}});
  const auto bytes = tokens * width * static_cast<std::int64_t>(sizeof(float));
  if (ctx.on_device()) job->on_device = Buffer(bytes, ctx.device);
  void* const made = ctx.on_device() ? static_cast<void*>(job->on_device.data()) : job->rows.data();
  const Lent lent(ctx.workspace, job->memory);
  job->encoder.emplace(
      ctx, *tower_, picture->grid(), [picture](std::int64_t first, std::int64_t count, float* out) { picture->patches.write_patches(first, count, out); },
      Tensor::contiguous(made, DType::kF32, {tokens, width}, ctx.device.kind()));
  return job;
}

bool PictureRows::work(ExecContext& ctx) {
  std::erase_if(rows_, [&](const auto& entry) { return !is_wanted(entry.first); });
  if (job_ && !is_wanted(job_->picture)) job_.reset();
  if (!job_) {
    const auto missing = std::find_if(wanted_.begin(), wanted_.end(), [&](const Shared& picture) { return !rows_.contains(picture); });
    if (missing == wanted_.end()) return false;
    job_ = begin(ctx, *missing);
  }
  std::unique_ptr<Job> job = std::move(job_);  // gone if it throws
  bool more;
  {
    const Lent lent(ctx.workspace, job->memory);
    more = job->encoder->step();
    ctx.device.wait();  // so that a piece is done when its time is looked at
  }
  if (more) {
    job_ = std::move(job);
  } else {
    if (job->on_device.bytes() > 0) ctx.device.copy(job->rows.data(), job->on_device.data(), job->on_device.bytes());
    rows_.emplace(job->picture, std::move(job->rows));
    ++made_;
  }
  return true;
}

void PictureRows::fill(std::span<const std::int32_t> ids, std::int64_t begin, std::int64_t count, std::int64_t first_row, std::span<std::int32_t> tokens,
                       std::vector<std::int32_t>& overlay_rows, std::vector<float>& overlay) const {
  const std::int64_t end = begin + count, width = tower_->config().text_hidden_size;
  for_each_touched(ids, begin, end, [&](std::int64_t first, const Shared& picture) {
    const std::int64_t from = std::max(begin, first), to = std::min(end, first + static_cast<std::int64_t>(picture->ids.size()));
    for (std::int64_t t = from; t < to; ++t) {
      const std::int64_t row = first_row + t - begin;
      tokens[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(tower_->config().placeholder_id);
      overlay_rows.push_back(static_cast<std::int32_t>(row));
    }
    const std::vector<float>& rows = rows_.at(picture);
    overlay.insert(overlay.end(), rows.begin() + (from - first) * width, rows.begin() + (to - first) * width);
  });
}

}  // namespace palimpsest
