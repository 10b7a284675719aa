#pragma once

// What all parsers of answers share: ids to texts and markers.

#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/chat.h"
#include "text/event_writer.h"

namespace palimpsest::text {

/// Hands the text between control tokens to on_text and the control tokens to on_marker, until
/// end_message().
class MarkerParser : public ChatParser {
 public:
  void push(TokenId id, std::vector<ChatEvent>& events) final {
    if (done_ || !tokenizer_.is_valid(id)) return;
    writer_.set_output(&events);
    if (tokenizer_.is_control(id)) {
      on_text(decoder_.finish());
      on_marker(id);
    } else {
      on_text(decoder_.push(id));
    }
  }
  void finish(std::vector<ChatEvent>& events) final {
    if (done_) return;
    done_ = true;
    writer_.set_output(&events);
    on_text(decoder_.finish());
    on_cut();
  }

 protected:
  MarkerParser(Tokenizer tokenizer, std::vector<std::string> declared_tools)
      : tokenizer_(tokenizer), writer_(std::move(declared_tools)), decoder_(std::move(tokenizer)) {}

  /// Valid UTF-8; may be empty.
  virtual void on_text(std::string_view text) = 0;
  virtual void on_marker(TokenId id) = 0;
  /// The message is over: what was held back is written, and an open call closed.
  virtual void on_cut() = 0;

  /// The model ended its message.
  void end_message() {
    on_cut();
    writer_.message_end();
    done_ = true;
  }

  Tokenizer tokenizer_;
  EventWriter writer_;

 private:
  StreamDecoder decoder_;
  bool done_ = false;
};

}  // namespace palimpsest::text
