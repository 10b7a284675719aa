#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/picture.h"
#include "server/backend.h"

// Pictures in chats.

namespace palimpsest::server {

/// What a message holds, in the form of /v1/chat/completions: texts that follow one another are one, and text alone is a string.
class ContentParts {
 public:
  void text(std::string_view more);
  /// `where`: what the client calls it, for errors.
  void image(std::string url, const std::string& where);
  bool empty() const { return parts_.empty(); }
  Json json() const;

 private:
  Json parts_ = Json::array();
};

/// Thrown for pictures where Request::may_take_long does not allow to read them: the request is to be handled again where it does.
struct PicturesNotRead {
  bool remote = false;  ///< one must be fetched
};
void require_time_for_pictures(const Request& request, const Conversation& conversation);

/// Reads the image parts of a conversation, which was read from `body`: decoded, counted, and set as ChatOptions::image_prompts; their URLs go, since they are
/// large. In the order of the messages. ApiError 400, or 413 for too many bytes of pixels, naming the part.
Pictures read_pictures(const Backend& backend, const Json& body, Conversation& conversation);

/// The ids of a rendered chat, with those of its pictures.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatSegment> segments, const Pictures& pictures);

}  // namespace palimpsest::server
