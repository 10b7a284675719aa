#include "server/picture_fields.h"

#include <fmt/format.h>

#include <map>

#include "server/api_error.h"

namespace palimpsest::server {
namespace {

/// The client's names of the image parts of `body`, in their order.
std::vector<std::string> names_of_images(const Json& body) {
  std::vector<std::string> names;
  const Json& messages = body.at("messages");
  for (std::size_t m = 0; m < messages.size(); ++m) {
    const Json* content = field(messages[m], "content");
    for (std::size_t i = 0; content && content->is_array() && i < content->size(); ++i) {
      const Json& part = (*content)[i];
      if (part.at("type") == "text") continue;  // parse_chat() has seen that all have a type
      const Json* where = field(part, "where");
      names.push_back(where && where->is_string() ? where->get<std::string>() : fmt::format("messages[{}].content[{}]", m, i));
    }
  }
  return names;
}

bool is_remote(const std::string& url) { return url.starts_with("http://") || url.starts_with("https://"); }

Result<std::vector<std::byte>> file_of(const Backend& backend, const std::string& url) {
  if (!is_remote(url)) return read_data_url(url);
  if (!backend.options.fetch) return fail(ErrorCode::kInvalidRequest, "this server fetches no addresses: give the picture as data:image/...;base64,...");
  return backend.options.fetch(url);
}

std::shared_ptr<const Picture> read_one(const Backend& backend, const std::string& url, const std::string& name) {
  const auto file = file_of(backend, url);
  if (!file) refuse(name, file.error().text());
  const std::lock_guard lock(backend.decoding);  // a picture may take 256 MiB while it is decoded
  auto picture = read_picture(*file, *backend.options.vision);
  if (!picture) refuse(name, picture.error().text());
  return *picture;
}

}  // namespace

void ContentParts::text(std::string_view more) {
  if (parts_.empty() || parts_.back()["type"] != "text") parts_.push_back({{"type", "text"}, {"text", ""}});
  parts_.back()["text"].get_ref<std::string&>() += more;
}

void ContentParts::image(std::string url, const std::string& where) {
  parts_.push_back({{"type", "image_url"}, {"image_url", std::move(url)}, {"where", where}});
}

Json ContentParts::json() const {
  if (parts_.empty()) return "";
  return parts_.size() == 1 && parts_[0]["type"] == "text" ? parts_[0]["text"] : parts_;
}

void require_time_for_pictures(const Request& request, const Conversation& conversation) {
  if (request.may_take_long) return;
  bool any = false;
  PicturesNotRead not_read;
  for (const ChatMessage& message : conversation.messages) {
    for (const ContentPart& part : message.content) {
      if (part.kind != ContentPart::Kind::kImage) continue;
      any = true;
      not_read.remote |= is_remote(part.text);
    }
  }
  if (any) throw not_read;
}

Pictures read_pictures(const Backend& backend, const Json& body, Conversation& conversation) {
  std::vector<ContentPart*> parts;
  for (ChatMessage& message : conversation.messages) {
    for (ContentPart& part : message.content) {
      if (part.kind == ContentPart::Kind::kImage) parts.push_back(&part);
    }
  }
  if (parts.empty()) return {};
  const std::vector<std::string> names = names_of_images(body);
  if (!backend.options.vision) refuse(names.at(0), "the model reads no pictures");
  if (parts.size() > backend.options.most_pictures) {
    refuse(names.at(backend.options.most_pictures), fmt::format("{} pictures, at most {} are taken", parts.size(), backend.options.most_pictures));
  }
  Pictures pictures;
  std::map<std::string, std::shared_ptr<const Picture>> read;  // by URL
  std::int64_t held = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto& picture = read[parts[i]->text];
    if (!picture) {
      picture = read_one(backend, parts[i]->text, names.at(i));
      held += picture_bytes(std::span(&picture, 1));
    }
    if (const std::int64_t most = backend.engine.options().picture_bytes; held > most)
      throw ApiError(413, fmt::format("{}: the pictures up to here have {} bytes of pixels, at most {} are taken", names[i], held, most), names[i]);
    pictures.push_back(picture);
    conversation.options.image_prompts.push_back(picture_prompt(*picture));
    parts[i]->text.clear();
  }
  return pictures;
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatSegment> segments, const Pictures& pictures) {
  std::vector<std::int32_t> ids = encode(tokenizer, segments);
  if (pictures.empty()) return ids;
  return value_or_throw(expand_pictures(ids, *tokenizer.control("<|media_pad|>"), in_order_of(segments, pictures)));
}

}  // namespace palimpsest::server
