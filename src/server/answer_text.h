#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "palimpsest/chat.h"
#include "palimpsest/tokenizer.h"
#include "server/stop_finder.h"

namespace palimpsest::server {

/// What one or more tokens add to an answer.
struct AnswerDelta {
  std::string reasoning, content;
  std::vector<ChatEvent> calls;  ///< kToolCallBegin, kToolCallArguments
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

/// Token ids of one answer to what a client is shown. The deltas are all there is: a whole answer is
/// their sum, so it equals what a stream adds up to. Not thread-safe.
class AnswerText {
 public:
  /// Without `parser` the answer is plain text: control tokens do not show. `stops` look at content
  /// alone.
  AnswerText(Tokenizer tokenizer, std::unique_ptr<ChatParser> parser, std::vector<std::string> stops);

  /// False when the text has come to a stop string: nothing is to be pushed after that.
  bool push(TokenId id, AnswerDelta& delta);
  /// The answer has ended: what was held back.
  void finish(AnswerDelta& delta);

  const std::string& stop_text() const { return stops_.stop(); }  ///< that ended it; empty: none
  bool has_calls() const { return has_calls_; }
  std::int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  bool take(std::vector<ChatEvent>& events, AnswerDelta& delta);

  Tokenizer tokenizer_;
  std::unique_ptr<ChatParser> parser_;
  std::optional<StreamDecoder> decoder_;
  StopFinder stops_;
  bool has_calls_ = false;
  std::int64_t reasoning_tokens_ = 0;
};

}  // namespace palimpsest::server
