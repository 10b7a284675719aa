#include "text/k3_parser.h"

#include <algorithm>
#include <utility>

namespace palimpsest::text {
namespace {

constexpr std::string_view kTags[] = {"think",    "response", "tools",  "call",
                                      "argument", "json",     "message"};
// A header longer than this is not one; it bounds what is held back.
constexpr std::size_t kMaxHeaderBytes = 8192;

std::string unescape_attribute(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    if (value.starts_with("&quot;")) {
      out += '"';
      value.remove_prefix(6);
    } else if (value.starts_with("&amp;")) {
      out += '&';
      value.remove_prefix(5);
    } else {
      out += value.front();
      value.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace

const std::string* XtmlHeader::attribute(std::string_view name) const {
  for (const auto& [key, value] : attributes) {
    if (key == name) return &value;
  }
  return nullptr;
}

XtmlHeader parse_xtml_header(std::string_view text, bool closing) {
  using Status = XtmlHeader::Status;
  XtmlHeader header;
  const std::size_t tag_end = std::min(text.find(' '), text.size());
  header.tag = text.substr(0, tag_end);
  if (std::find(std::begin(kTags), std::end(kTags), header.tag) == std::end(kTags)) {
    const bool prefix = tag_end == text.size() &&
                        std::any_of(std::begin(kTags), std::end(kTags),
                                    [&](auto tag) { return tag.starts_with(header.tag); });
    header.status = prefix ? Status::kPrefix : Status::kInvalid;
    return header;
  }
  text.remove_prefix(tag_end);
  if (closing && !text.empty()) return header;
  while (!text.empty()) {
    if (text.front() != ' ') return header;
    const std::size_t equals = text.find('=');
    // A second space or a quote before the equals sign: prose, not an attribute.
    const std::string_view key =
        text.substr(1, equals == std::string_view::npos ? equals : equals - 1);
    if (key.find_first_of(" \"\n") != std::string_view::npos) return header;
    header.status = Status::kPrefix;
    if (equals == std::string_view::npos || equals + 1 == text.size()) return header;
    header.status = Status::kInvalid;
    if (key.empty() || text[equals + 1] != '"') return header;
    const std::size_t quote = text.find('"', equals + 2);
    if (quote == std::string_view::npos) {
      header.status = Status::kPrefix;
      return header;
    }
    header.attributes.emplace_back(key,
                                   unescape_attribute(text.substr(equals + 2, quote - equals - 2)));
    text.remove_prefix(quote + 1);
  }
  header.status = Status::kComplete;
  return header;
}

K3Parser::K3Parser(Tokenizer tokenizer, std::vector<std::string> declared_tools, bool thinking)
    : MarkerParser(tokenizer, std::move(declared_tools)),
      open_(*tokenizer.control("<|open|>")),
      close_(*tokenizer.control("<|close|>")),
      sep_(*tokenizer.control("<|sep|>")),
      channel_(thinking ? Channel::kThink : Channel::kResponse) {}

void K3Parser::on_marker(TokenId id) {
  if (id == sep_) {
    on_header();
  } else if (id == open_ || id == close_) {
    abandon_header();
    marker_ = id == open_ ? Marker::kOpen : Marker::kClose;
  } else if (tokenizer_.is_stop(id)) {
    abandon_header();
    end_message();
  }
}

void K3Parser::on_text(std::string_view text) {
  if (text.empty()) return;
  if (marker_ == Marker::kNone) {
    channel_text(text);
    return;
  }
  header_ += text;
  const XtmlHeader header = parse_xtml_header(header_, marker_ == Marker::kClose);
  if (header.status == XtmlHeader::Status::kInvalid || header_.size() > kMaxHeaderBytes)
    abandon_header();
}

void K3Parser::abandon_header() {
  if (marker_ == Marker::kNone) return;
  marker_ = Marker::kNone;
  channel_text(std::exchange(header_, {}));
}

void K3Parser::on_header() {
  if (marker_ == Marker::kNone) return;
  const bool closing = marker_ == Marker::kClose;
  const XtmlHeader header = parse_xtml_header(header_, closing);
  if (header.status != XtmlHeader::Status::kComplete) {
    abandon_header();
  } else if (closing) {
    marker_ = Marker::kNone;
    header_.clear();
    on_close(header.tag);
  } else {
    on_open(header);
    // on_open leaves a header that makes no sense here for us to hand on as text.
    if (marker_ != Marker::kNone) abandon_header();
  }
}

void K3Parser::on_open(const XtmlHeader& header) {
  const bool in_call = writer_.in_call();
  if (header.tag == "think" || header.tag == "response" || header.tag == "tools") {
    end_call();
    channel_ = header.tag == "think"      ? Channel::kThink
               : header.tag == "response" ? Channel::kResponse
                                          : Channel::kTools;
  } else if (header.tag == "message") {  // the next turn already: this one is over
    end_message();
  } else if (header.tag == "call") {
    const std::string* tool = header.attribute("tool");
    if (!tool || tool->empty() || channel_ == Channel::kThink) return;
    end_call();
    writer_.begin_call(*tool);
    channel_ = Channel::kCall;
  } else if (header.tag == "argument") {
    const std::string* key = header.attribute("key");
    if (!key || !in_call) return;
    end_argument();
    key_ = *key;
    const std::string* type = header.attribute("type");
    channel_ = !type || *type == "string" ? Channel::kStringArgument : Channel::kArgument;
    if (channel_ == Channel::kStringArgument) writer_.begin_string(key_);
  } else {  // json
    if (!in_call) return;
    end_argument();
    channel_ = Channel::kJson;
  }
  writer_.end_stray();
  marker_ = Marker::kNone;
  header_.clear();
}

void K3Parser::on_close(const std::string& tag) {
  writer_.end_stray();
  if (tag == "argument" || tag == "json") {
    if (writer_.in_call()) end_argument();
  } else if (tag == "call") {
    if (writer_.in_call()) {
      end_call();
      channel_ = Channel::kTools;
    }
  } else {  // think, response, tools, message: whichever is open, the model means to leave it
    end_call();
    channel_ = Channel::kMessage;
  }
}

void K3Parser::channel_text(std::string_view text) {
  if (text.empty()) return;
  switch (channel_) {
    case Channel::kThink:
      writer_.reasoning(text);
      break;
    case Channel::kResponse:
      writer_.content(text);
      break;
    case Channel::kMessage:
    case Channel::kTools:
    case Channel::kCall:
      writer_.stray(text);
      break;
    case Channel::kStringArgument:
      writer_.add_string(text);
      break;
    case Channel::kArgument:
    case Channel::kJson:
      value_ += text;
      break;
  }
}

void K3Parser::end_argument() {
  if (channel_ == Channel::kStringArgument) writer_.end_string();
  if (channel_ == Channel::kArgument) writer_.value(key_, value_);
  if (channel_ == Channel::kJson) writer_.object(value_);
  value_.clear();
  channel_ = Channel::kCall;
}

void K3Parser::end_call() {
  if (!writer_.in_call()) return;
  end_argument();
  writer_.end_call();
}

}  // namespace palimpsest::text
