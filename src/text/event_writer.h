#pragma once

// What the parsers of chat formats share: a place that turns "more text of a call's argument" into
// events that always join to a valid message.

#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/chat.h"

namespace palimpsest::text {

/// `text` without white space (space, tab, line ends) at both ends.
std::string_view trimmed(std::string_view text);

class EventWriter {
 public:
  /// Calls of other tools than these become content.
  explicit EventWriter(std::vector<std::string> declared) : declared_(std::move(declared)) {}

  /// Where events go until the next call of set_output.
  void set_output(std::vector<ChatEvent>* events) { events_ = events; }

  void reasoning(std::string_view text);
  void content(std::string_view text);
  /// Text where the format has none: content, except white space in front of and behind it.
  void stray(std::string_view text);
  /// A marker follows: stray white space is forgotten.
  void end_stray() { stray_.clear(); }
  void message_end();

  bool in_call() const { return in_call_; }
  /// An empty `id` is replaced by "functions.NAME:INDEX". Ends a call that is still open.
  void begin_call(std::string_view name, std::string_view id = {});
  /// A string member in pieces.
  void begin_string(std::string_view key);
  void add_string(std::string_view text);
  void end_string();
  /// A member from JSON source; what is not JSON becomes a string.
  void value(std::string_view key, std::string_view source);
  /// All members of an object from its JSON source. Blank source has none; what is not an object
  /// becomes the string "json".
  void object(std::string_view source);
  /// Does nothing when no call is open.
  void end_call();

 private:
  void emit(ChatEvent event) { events_->push_back(std::move(event)); }
  void arguments(std::string text);
  /// "{" before the first member, "," before the others.
  std::string next_member();

  std::vector<std::string> declared_;
  std::vector<ChatEvent>* events_ = nullptr;
  std::string stray_;

  std::int32_t calls_ = 0;  ///< declared ones so far
  bool in_call_ = false;
  bool has_members_ = false;
  bool is_declared_ = false;
  std::string undeclared_;  ///< content in the making, where the tool is not declared
};

}  // namespace palimpsest::text
