#include "text/vocabulary.h"

#include <algorithm>

namespace palimpsest::text {

std::optional<std::int32_t> Vocabulary::control(std::string_view name) const {
  for (const formats::AddedTokenEntry& token : added) {
    if (token.text == name && kinds[static_cast<std::size_t>(token.id)] != TokenKind::kOrdinary) {
      return token.id;
    }
  }
  return std::nullopt;
}

void Vocabulary::add(std::string_view bytes, TokenKind kind) {
  if (kind == TokenKind::kOrdinary) {
    tokens.add(bytes);
  } else {
    tokens.add_hidden(bytes);
  }
  kinds.push_back(kind);
}

bool looks_like_marker(std::string_view text) {
  if (text.size() < 3) return false;
  const bool enclosed =
      (text.front() == '<' && text.back() == '>') || (text.front() == '[' && text.back() == ']');
  // HTML tags that vocabularies of code list as words (<table>) are written by users too, but a
  // format that gives them a meaning cannot be told from one that does not.
  return enclosed && text.find_first_of(" \t\r\n") == std::string_view::npos;
}

std::string with_spaces(std::string_view token, std::string_view mark) {
  std::string out;
  while (!mark.empty()) {
    const std::size_t at = token.find(mark);
    if (at == std::string_view::npos) break;
    out.append(token.substr(0, at)).push_back(' ');
    token.remove_prefix(at + mark.size());
  }
  return out.append(token);
}

void add_known_stops(Vocabulary& vocabulary) {
  // The Kimi, ChatML, Llama 3, Phi and Gemma formats end a message with these, whatever the files
  // say about an end of text.
  for (const char* name : {"<|end_of_msg|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
                           "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"}) {
    if (const auto id = vocabulary.control(name)) vocabulary.stop_ids.push_back(*id);
  }
}

}  // namespace palimpsest::text
