#include "runtime/chat_session.h"

#include "base/error.h"

namespace palimpsest {
namespace {

/// What follows the first `bytes` bytes of the segments' joined text. The segment that is cut keeps
/// its kind.
std::vector<ChatSegment> without_prefix(std::span<const ChatSegment> segments, std::size_t bytes) {
  std::vector<ChatSegment> rest;
  for (const ChatSegment& segment : segments) {
    if (bytes >= segment.text.size()) {
      bytes -= segment.text.size();
      continue;
    }
    rest.push_back({segment.text.substr(bytes), segment.is_control, segment.image});
    bytes = 0;
  }
  return rest;
}

}  // namespace

ChatSession::ChatSession(Session& session, Sampler& sampler, Tokenizer tokenizer,
                         std::shared_ptr<const ChatFormat> format, Conversation start,
                         std::vector<TokenId> pending, std::shared_ptr<ChatPictures> pictures)
    : session_(session),
      sampler_(sampler),
      tokenizer_(std::move(tokenizer)),
      format_(std::move(format)),
      conversation_(std::move(start)),
      picture_reader_(std::move(pictures)),
      held_(session.ids().begin(), session.ids().end()),
      tail_(std::move(pending)) {}

/// Whether the text of `known`, which begins with held_, begins the chat; then the ids that are
/// still to be computed.
bool ChatSession::extend(std::vector<TokenId> known, std::span<const ChatSegment> segments,
                         Prompt& prompt) const {
  const auto contracted = contract_pictures(known, picture_reader_ ? picture_reader_->placeholder() : -1, pictures_);
  if (!contracted) return false;
  const std::string text = tokenizer_.decode(contracted->ids);
  if (!join(segments).starts_with(text)) return false;
  prompt.ids.assign(known.begin() + static_cast<std::ptrdiff_t>(held_.size()), known.end());
  const std::vector<TokenId> rest = encode_from(without_prefix(segments, text.size()), contracted->pictures);
  prompt.ids.insert(prompt.ids.end(), rest.begin(), rest.end());
  return true;
}

/// The whole chat. Pictures of its image parts become known to the session.
std::vector<ChatSegment> ChatSession::render() {
  if (picture_reader_) {
    const Pictures pictures = picture_reader_->read(conversation_);
    session_.add_pictures(pictures);
    std::vector<ChatSegment> segments = format_->render(conversation_);
    pictures_ = in_order_of(segments, pictures);
    return segments;
  }
  for (const ChatMessage& message : conversation_.messages) {
    for (const ContentPart& part : message.content) {
      if (part.kind == ContentPart::Kind::kImage) throw make_error(ErrorCode::kUnsupported, "the model has no vision tower: it reads no pictures");
    }
  }
  return format_->render(conversation_);
}

/// The ids of segments whose pictures are those from `first_picture` on.
std::vector<TokenId> ChatSession::encode_from(std::span<const ChatSegment> segments, std::size_t first_picture) const {
  std::vector<TokenId> ids = encode(tokenizer_, segments);
  if (!picture_reader_) return ids;
  return value_or_throw(expand_pictures(ids, picture_reader_->placeholder(), std::span(pictures_).subspan(first_picture)));
}

ChatSession::Prompt ChatSession::prompt(std::span<const ChatSegment> segments) const {
  std::vector<TokenId> written = held_;
  written.insert(written.end(), tail_.begin(), tail_.end());
  Prompt prompt;
  if (!tail_.empty() && extend(written, segments, prompt)) return prompt;
  std::vector<TokenId> whole = encode_from(segments, 0);
  // A prompt that was not read to its end goes on as it would have.
  if (whole.size() > held_.size() && std::equal(held_.begin(), held_.end(), whole.begin())) {
    prompt.ids.assign(whole.begin() + static_cast<std::ptrdiff_t>(held_.size()), whole.end());
    return prompt;
  }
  // Without the tail: an answer may end with an id that the format does not write itself.
  if (extend(held_, segments, prompt)) return prompt;
  prompt.ids = std::move(whole);
  prompt.recompute = true;
  return prompt;
}

ChatTurn ChatSession::answer(const GenerateOptions& options, const OnEvent& on_event) {
  Prompt next = prompt(render());
  ChatTurn turn;
  const bool held_another = next.recompute && !held_.empty();
  if (next.recompute) {
    if (static_cast<std::int64_t>(next.ids.size()) > session_.context()) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "the prompt has {} tokens, but the context holds {}", next.ids.size(),
                       session_.context());
    }
    held_.clear();
  }
  tail_.clear();
  const std::unique_ptr<ChatParser> parser = format_->make_parser(conversation_);
  std::vector<ChatEvent> events;
  const auto deliver = [&] {
    turn.message.add(events);
    if (on_event) {
      for (const ChatEvent& event : events) on_event(event);
    }
    events.clear();
  };
  GenerateOptions parsing = options;
  std::vector<TokenId> whole = held_;
  whole.insert(whole.end(), next.ids.begin(), next.ids.end());
  parsing.borders = message_borders(tokenizer_, whole);
  parsing.on_token = [&](TokenId id) {
    if (options.on_token) options.on_token(id);
    parser->push(id, events);
    deliver();
  };
  turn.generated = generate(session_, sampler_, held_, next.ids, parsing);
  parser->finish(events);
  deliver();
  turn.recomputed = held_another && turn.generated.cached_tokens == 0;
  if (!turn.generated.ids.empty()) tail_.assign(1, turn.generated.ids.back());
  return turn;
}

ChatTurn ChatSession::say(std::string_view text, const GenerateOptions& options,
                          const OnEvent& on_event) {
  if (text.empty()) throw make_error(ErrorCode::kUsage, "the prompt is empty");
  return say(ChatMessage::of(Role::kUser, std::string(text)), options, on_event);
}

ChatTurn ChatSession::say(ChatMessage message, const GenerateOptions& options,
                          const OnEvent& on_event) {
  conversation_.messages.push_back(std::move(message));
  try {
    ChatTurn turn = answer(options, on_event);
    if (!turn.generated.ids.empty()) conversation_.messages.push_back(turn.message.to_message());
    return turn;
  } catch (...) {
    conversation_.messages.pop_back();
    throw;
  }
}

}  // namespace palimpsest
