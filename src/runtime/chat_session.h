#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "palimpsest/chat.h"
#include "palimpsest/generate.h"
#include "palimpsest/session.h"
#include "palimpsest/tokenizer.h"
#include "runtime/picture.h"

namespace palimpsest {

/// What one turn of a chat came to.
struct ChatTurn {
  GenerateResult generated;
  ParsedMessage message;
  /// The session held something else than the beginning of this prompt. A page cannot be cut back
  /// to what they share, and there was no snapshot, so all of the prompt was computed anew.
  bool recomputed = false;
};

/// A chat of several turns over one session, in which a turn computes only what is new.
///
/// Every turn renders the whole chat. Where that text begins with what the session has read and
/// written so far, those ids are kept as they are (a model need not write the ids that its own text
/// would encode to) and only the rest is encoded and computed: the end of a message that was cut
/// off, the user's new message, the opening of the answer. Formats that leave out parts of earlier
/// turns, and answers that do not re-render to the same text, lead to ChatTurn::recomputed instead.
/// Snapshots lie where messages begin, so that a chat in which one was changed is computed from
/// about there.
///
/// Not thread-safe. Session and sampler are the caller's and must outlive it.
class ChatSession {
 public:
  using OnEvent = std::function<void(const ChatEvent&)>;

  /// `start`: system message, tools and options; may hold earlier turns. The session may hold what
  /// was read and written of those, and `pending` what was written after that (SessionNote). `pictures`: reads image parts; null for a model that sees
  /// none, whose chats may have none.
  ChatSession(Session& session, Sampler& sampler, Tokenizer tokenizer,
              std::shared_ptr<const ChatFormat> format, Conversation start,
              std::vector<TokenId> pending = {}, std::shared_ptr<ChatPictures> pictures = nullptr);

  /// Adds a user's message and writes the answer. Errors as generate(); then the message is not
  /// part of the chat, and the next turn starts from what the session holds.
  ChatTurn say(std::string_view text, const GenerateOptions& options, const OnEvent& on_event = {});
  /// The same with a message of several parts. Errors also of its pictures, naming the part (ChatPictures::read).
  ChatTurn say(ChatMessage message, const GenerateOptions& options, const OnEvent& on_event = {});

  const Conversation& conversation() const { return conversation_; }
  /// Ids behind what the session holds: the last one of an answer, or nothing.
  const std::vector<TokenId>& pending() const { return tail_; }

 private:
  struct Prompt {
    std::vector<TokenId> ids;  ///< beyond held_
    bool recompute = false;
  };
  std::vector<ChatSegment> render();
  std::vector<TokenId> encode_from(std::span<const ChatSegment> segments, std::size_t first_picture) const;
  Prompt prompt(std::span<const ChatSegment> segments) const;
  bool extend(std::vector<TokenId> known, std::span<const ChatSegment> segments,
              Prompt& prompt) const;
  ChatTurn answer(const GenerateOptions& options, const OnEvent& on_event);

  Session& session_;
  Sampler& sampler_;
  Tokenizer tokenizer_;
  std::shared_ptr<const ChatFormat> format_;
  Conversation conversation_;
  std::shared_ptr<ChatPictures> picture_reader_;
  Pictures pictures_;          ///< of the conversation, in the order in which it is rendered
  std::vector<TokenId> held_;  ///< what the session holds
  std::vector<TokenId>
      tail_;  ///< written after that, not computed: the last id of an answer, or nothing
};

}  // namespace palimpsest
