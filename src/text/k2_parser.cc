#include "text/k2_parser.h"

#include <algorithm>

namespace palimpsest::text {
namespace {

/// NAME of "functions.NAME:NUMBER"; the prefix and the number may be missing.
std::string_view function_name(std::string_view id) {
  if (id.starts_with("functions.")) id.remove_prefix(10);
  const std::size_t colon = id.rfind(':');
  if (colon == std::string_view::npos) return id;
  const std::string_view number = id.substr(colon + 1);
  const bool is_number =
      !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? id.substr(0, colon) : id;
}

}  // namespace

K2Markers::K2Markers(const Tokenizer& tokenizer)
    : user(*tokenizer.control("<|im_user|>")),
      assistant(*tokenizer.control("<|im_assistant|>")),
      system(*tokenizer.control("<|im_system|>")),
      middle(*tokenizer.control("<|im_middle|>")),
      end(*tokenizer.control("<|im_end|>")),
      section_begin(tokenizer.control("<|tool_calls_section_begin|>")),
      section_end(tokenizer.control("<|tool_calls_section_end|>")),
      call_begin(tokenizer.control("<|tool_call_begin|>")),
      argument_begin(tokenizer.control("<|tool_call_argument_begin|>")),
      call_end(tokenizer.control("<|tool_call_end|>")),
      think_begin(tokenizer.control("<think>")),
      think_end(tokenizer.control("</think>")) {}

K2Parser::K2Parser(Tokenizer tokenizer, std::vector<std::string> declared_tools)
    : MarkerParser(tokenizer, std::move(declared_tools)), markers_(tokenizer) {}

void K2Parser::on_marker(TokenId id) {
  const K2Markers& m = markers_;
  if (tokenizer_.is_stop(id) || id == m.user || id == m.assistant || id == m.system) {
    end_message();
  } else if (id == m.section_begin || id == m.section_end || id == m.call_begin ||
             id == m.call_end) {
    end_call();
    writer_.end_stray();
    channel_ = id == m.section_end  ? Channel::kContent
               : id == m.call_begin ? Channel::kCallId
                                    : Channel::kSection;
  } else if (id == m.argument_begin) {
    if (channel_ == Channel::kCallId) channel_ = Channel::kArguments;
  } else if (id == m.think_begin || id == m.think_end) {
    end_call();
    channel_ = id == m.think_begin ? Channel::kThink : Channel::kContent;
  }
}

void K2Parser::on_text(std::string_view text) {
  switch (channel_) {
    case Channel::kContent:
      writer_.content(text);
      break;
    case Channel::kThink:
      writer_.reasoning(text);
      break;
    case Channel::kSection:
      writer_.stray(text);
      break;
    case Channel::kCallId:
      call_id_ += text;
      break;
    case Channel::kArguments:
      arguments_ += text;
      break;
  }
}

void K2Parser::end_call() {
  if (channel_ != Channel::kCallId && channel_ != Channel::kArguments) return;
  channel_ = Channel::kSection;
  const std::string_view id = trimmed(call_id_);
  const std::string_view name = function_name(id);
  if (name.empty()) {
    writer_.content(arguments_);  // a call of nothing: text
  } else {
    writer_.begin_call(name, id);
    writer_.object(arguments_);
    writer_.end_call();
  }
  call_id_.clear();
  arguments_.clear();
}

}  // namespace palimpsest::text
