#include "text/event_writer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/json_text.h"

namespace palimpsest::text {

using Kind = ChatEvent::Kind;

namespace {
constexpr std::string_view kSpace = " \t\r\n";
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

void EventWriter::reasoning(std::string_view text) {
  if (!text.empty()) emit({Kind::kReasoning, std::string(text)});
}

void EventWriter::content(std::string_view text) {
  if (!text.empty()) emit({Kind::kContent, std::string(text)});
}

void EventWriter::stray(std::string_view text) {
  stray_ += text;
  const std::size_t last = stray_.find_last_not_of(kSpace);
  if (last == std::string::npos) return;
  content(std::string_view(stray_).substr(0, last + 1));
  stray_.erase(0, last + 1);
}

void EventWriter::message_end() {
  end_call();
  end_stray();
  emit({Kind::kMessageEnd, {}});
}

void EventWriter::begin_call(std::string_view name, std::string_view id) {
  end_call();
  in_call_ = true;
  has_members_ = false;
  is_declared_ = std::find(declared_.begin(), declared_.end(), name) != declared_.end();
  if (is_declared_) {
    std::string call_id =
        id.empty() ? fmt::format("functions.{}:{}", name, calls_) : std::string(id);
    emit({Kind::kToolCallBegin, {}, calls_, std::string(name), std::move(call_id)});
  } else {
    undeclared_ = fmt::format("{{\"name\": {}, \"arguments\": ", quote_json(name));
  }
}

void EventWriter::arguments(std::string text) {
  if (text.empty()) return;
  if (is_declared_) {
    emit({Kind::kToolCallArguments, std::move(text), calls_});
  } else {
    undeclared_ += text;
  }
}

std::string EventWriter::next_member() {
  return std::exchange(has_members_, true) ? "," : "{";
}

void EventWriter::begin_string(std::string_view key) {
  arguments(next_member() + quote_json(key) + ":\"");
}
void EventWriter::add_string(std::string_view text) {
  arguments(escape_json(text));
}
void EventWriter::end_string() {
  arguments("\"");
}

void EventWriter::value(std::string_view key, std::string_view source) {
  const std::string_view json = trimmed(source);
  arguments(next_member() + quote_json(key) + ":" +
            (is_json(json) ? std::string(json) : quote_json(source)));
}

void EventWriter::object(std::string_view source) {
  const std::string_view json = trimmed(source);
  if (json.empty()) return;
  if (!is_json_object(json)) {
    arguments(next_member() + "\"json\":" + quote_json(source));
    return;
  }
  const std::string_view members = trimmed(json.substr(1, json.size() - 2));
  if (!members.empty()) arguments(next_member() + std::string(members));
}

void EventWriter::end_call() {
  if (!in_call_) return;
  arguments(has_members_ ? "}" : "{}");
  in_call_ = false;
  if (is_declared_) {
    emit({Kind::kToolCallEnd, {}, calls_++});
  } else {
    content(std::exchange(undeclared_, {}) + "}");
  }
}

}  // namespace palimpsest::text
