#pragma once

// Parser of what a Kimi K3 model writes: the body of an assistant message in XTML.

#include <memory>
#include <string>
#include <vector>

#include "palimpsest/chat.h"
#include "text/marker_parser.h"

namespace palimpsest::text {

/// The tag of an element and its attributes, as they stand between a marker and <|sep|>: tag { "
/// key" '="' value '"' }.
struct XtmlHeader {
  enum class Status { kComplete, kPrefix, kInvalid };
  Status status = Status::kInvalid;  ///< kPrefix: more text may make it complete
  std::string tag;
  std::vector<std::pair<std::string, std::string>> attributes;  ///< values unescaped

  /// nullptr if there is none of this name.
  const std::string* attribute(std::string_view name) const;
};

/// Only the tags of the format are valid: think, response, tools, call, argument, json, message. A
/// closing header has no attributes.
XtmlHeader parse_xtml_header(std::string_view text, bool closing);

/// Tags are told by their markers' ids; the text in between may be split into tokens in any way.
class K3Parser final : public MarkerParser {
 public:
  /// `thinking`: the prompt ends inside think, else inside response.
  K3Parser(Tokenizer tokenizer, std::vector<std::string> declared_tools, bool thinking);

 private:
  enum class Channel {
    kThink,
    kResponse,
    kMessage,
    kTools,
    kCall,
    kStringArgument,
    kArgument,
    kJson
  };
  enum class Marker { kNone, kOpen, kClose };

  void on_marker(TokenId id) override;
  void on_text(std::string_view text) override;
  void on_cut() override { end_call(); }
  void on_header();
  void on_open(const XtmlHeader& header);
  void on_close(const std::string& tag);
  void channel_text(std::string_view text);
  /// The header that was begun is none after all: it is text.
  void abandon_header();
  void end_argument();
  void end_call();

  TokenId open_, close_, sep_;
  Channel channel_;
  Marker marker_ = Marker::kNone;  ///< whose header is being read
  std::string header_;
  std::string key_, value_;  ///< of the argument or json block being read
};

}  // namespace palimpsest::text
