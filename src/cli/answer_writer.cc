#include "cli/answer_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/io.h"

namespace palimpsest::cli {

AnswerWriter::AnswerWriter(const Options& options, std::optional<Tokenizer> tokenizer,
                           std::vector<std::int32_t> stop_ids)
    : options_(options),
      stop_ids_(std::move(stop_ids)),
      out_(report::inspect_terminal(stdout)),
      err_(report::inspect_terminal(stderr)) {
  if (tokenizer) decoder_.emplace(*tokenizer);
}

void AnswerWriter::show(std::string_view text) {
  if (text.empty()) return;
  leave_thinking();
  print(text);
  wrote_ = true;
  at_line_start_ = text.back() == '\n';
}

void AnswerWriter::leave_thinking() {
  if (thinking_) std::fputs(err_.color ? "\x1b[0m\n" : "\n", stderr);
  thinking_ = false;
}

void AnswerWriter::token(std::int32_t id) {
  if (options_.print_ids) {
    show(fmt::format("{}{}", wrote_ ? "," : "", id));
  } else if (decoder_ && std::find(stop_ids_.begin(), stop_ids_.end(), id) == stop_ids_.end()) {
    show(decoder_->push(id));
  }
}

void AnswerWriter::event(const ChatEvent& event) {
  if (options_.print_ids) return;
  if (event.kind == ChatEvent::Kind::kContent) show(event.text);
  if (event.kind == ChatEvent::Kind::kReasoning && options_.show_thinking && !event.text.empty()) {
    if (!thinking_ && err_.color) std::fputs("\x1b[2m", stderr);
    thinking_ = true;
    std::fputs(event.text.c_str(), stderr);
    std::fflush(stderr);
  }
}

void AnswerWriter::finish(const ParsedMessage* message, bool end_line) {
  if (decoder_ && !options_.print_ids) show(decoder_->finish());
  leave_thinking();
  if (message && !options_.print_ids) {
    for (const ParsedToolCall& call : message->tool_calls) {
      const std::string name = nlohmann::json(call.name).dump();
      show(fmt::format("{}{{\"name\":{},\"arguments\":{}}}\n", at_line_start_ ? "" : "\n", name,
                       call.arguments));
    }
  }
  // A file gets exactly what the model wrote; people, and readers of lists and of several answers,
  // get whole lines.
  if ((end_line || out_.interactive || options_.print_ids) && (!wrote_ || !at_line_start_))
    print("\n");
  wrote_ = false;
  at_line_start_ = true;
}

}  // namespace palimpsest::cli
