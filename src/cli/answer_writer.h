#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "palimpsest/chat.h"
#include "palimpsest/generate.h"
#include "palimpsest/tokenizer.h"
#include "report/terminal.h"

namespace palimpsest::cli {

/// Puts an answer on standard output as it is written: text, or ids with --print-ids. Thoughts go
/// to standard error, and only with --show-thinking.
class AnswerWriter {
 public:
  /// `stop_ids` are not part of a text. Without a tokenizer only ids can be shown.
  AnswerWriter(const Options& options, std::optional<Tokenizer> tokenizer,
               std::vector<std::int32_t> stop_ids);

  void token(std::int32_t id);         ///< --print-ids, or a text without chat format
  void event(const ChatEvent& event);  ///< a chat
  /// Ends the answer: what was held back, tool calls (null: none) as one line of JSON each, and a
  /// line break where one is due.
  void finish(const ParsedMessage* message, bool end_line);

 private:
  void show(std::string_view text);
  void leave_thinking();

  const Options& options_;
  std::vector<std::int32_t> stop_ids_;
  std::optional<StreamDecoder> decoder_;
  report::Terminal out_, err_;
  bool wrote_ = false, at_line_start_ = true, thinking_ = false;
};

}  // namespace palimpsest::cli
