#include "formats/tokenizer_json_steps.h"

#include <algorithm>

namespace palimpsest::formats {
namespace {

using Behavior = PreTokenizerStep::Behavior;
using Prepend = PreTokenizerStep::Prepend;

/// Calls `visit` for a component, or for those of a Sequence, in order. `list` is the key of a
/// Sequence's list.
void for_each_component(const JsonNode& node, const char* list, std::size_t& left,
                        const std::function<void(const JsonNode&, const std::string&)>& visit) {
  if (left-- == 0) {
    throw make_error(ErrorCode::kInvalidFile, "{}: more than {} components", node.path(),
                     TokenizerJson::kMaxSteps);
  }
  const std::string type = node.member("type").string();
  if (type == "Sequence") {
    node.member(list).for_each(
        [&](const JsonNode& part) { for_each_component(part, list, left, visit); });
  } else {
    visit(node, type);
  }
}

void for_each_component(const JsonNode& top, const char* key, const char* list,
                        const std::function<void(const JsonNode&, const std::string&)>& visit) {
  if (!top.has(key)) return;
  std::size_t left = TokenizerJson::kMaxSteps;
  for_each_component(top.member(key), list, left, visit);
}

[[noreturn]] void unknown(const JsonNode& node, const std::string& type, const char* known) {
  throw make_error(ErrorCode::kUnsupported, "{}: component \"{}\" (this build knows Sequence, {})",
                   node.path(), type, known);
}

/// A pattern: {"Regex": "..."} or {"String": "..."}.
std::string pattern_of(const JsonNode& node) {
  const JsonNode pattern = node.member("pattern");
  if (pattern.has("Regex")) return pattern.member("Regex").string();
  return quote_pattern(pattern.member("String").view());
}

Behavior behavior_of(const JsonNode& node, Behavior otherwise) {
  if (!node.has("behavior")) return otherwise;
  const std::string name = node.member("behavior").string();
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  throw make_error(ErrorCode::kUnsupported,
                   "{}: behavior \"{}\" (this build knows Isolated, Removed, MergedWithPrevious, "
                   "MergedWithNext, Contiguous)",
                   node.path(), name);
}

PreTokenizerStep split_by(std::string pattern, Behavior behavior = Behavior::kIsolated) {
  return {.pattern = std::move(pattern), .behavior = behavior};
}

PreTokenizerStep metaspace(const JsonNode& node) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kMetaspace};
  step.replacement = node.member("replacement").string();
  step.split = node.flag("split", true);
  const std::string scheme =
      node.find_string("prepend_scheme")
          .value_or(node.flag("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    throw make_error(ErrorCode::kInvalidFile,
                     "{}: prepend_scheme \"{}\" is none of always, first, never", node.path(),
                     scheme);
  }
  step.prepend = scheme == "always"  ? Prepend::kAlways
                 : scheme == "first" ? Prepend::kFirst
                                     : Prepend::kNever;
  return step;
}

// Punctuation as the library sees it: that of ASCII and the general category P.
constexpr const char* kPunctuation = "[\\p{P}$+<=>^`|~]";

void add_pre_tokenizer(const JsonNode& node, const std::string& type, TokenizerJson& out) {
  auto& steps = out.pre_tokenizer;
  if (type == "ByteLevel") {
    if (node.flag("add_prefix_space", true)) {
      steps.push_back({.kind = PreTokenizerStep::Kind::kPrefix});
    }
    if (node.flag("use_regex", true)) steps.push_back(split_by(kGpt2Pattern));
    out.byte_level = true;
  } else if (type == "Split") {
    steps.push_back(split_by(pattern_of(node), behavior_of(node, Behavior::kIsolated)));
    steps.back().invert = node.flag("invert", false);
  } else if (type == "Digits") {
    steps.push_back(split_by(node.flag("individual_digits", false) ? "\\p{N}" : "\\p{N}+"));
  } else if (type == "Whitespace") {
    steps.push_back(split_by("\\w+|[^\\w\\s]+", Behavior::kRemoved));
    steps.back().invert = true;
  } else if (type == "WhitespaceSplit") {
    steps.push_back(split_by("\\s+", Behavior::kRemoved));
  } else if (type == "BertPreTokenizer") {
    steps.push_back(split_by("\\s+", Behavior::kRemoved));
    steps.push_back(split_by(kPunctuation));
  } else if (type == "Punctuation") {
    steps.push_back(split_by(kPunctuation, behavior_of(node, Behavior::kIsolated)));
  } else if (type == "CharDelimiterSplit") {
    steps.push_back(split_by(quote_pattern(node.member("delimiter").view()), Behavior::kRemoved));
  } else if (type == "Metaspace") {
    steps.push_back(metaspace(node));
  } else {
    unknown(node, type,
            "ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation, "
            "CharDelimiterSplit, Metaspace");
  }
}

void add_normalizer(const JsonNode& node, const std::string& type, TokenizerJson& out) {
  using Kind = NormalizerStep::Kind;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    out.normalizer.push_back({type == "NFC"    ? Kind::kNfc
                              : type == "NFD"  ? Kind::kNfd
                              : type == "NFKC" ? Kind::kNfkc
                                               : Kind::kNfkd,
                              {},
                              {}});
  } else if (type == "Prepend") {
    out.normalizer.push_back({Kind::kPrepend, {}, node.member("prepend").string()});
  } else if (type == "Replace") {
    out.normalizer.push_back({Kind::kReplace, pattern_of(node), node.member("content").string()});
  } else {
    unknown(node, type, "NFC, NFD, NFKC, NFKD, Prepend, Replace");
  }
}

void add_decoder(const JsonNode& node, const std::string& type, TokenizerJson& out) {
  if (type == "ByteLevel" || type == "ByteFallback" || type == "Fuse") return;
  if (type == "Metaspace") {
    const PreTokenizerStep step = metaspace(node);
    out.space = step.replacement;
    out.strip_prefix = step.prepend != Prepend::kNever;
  } else if (type == "Replace") {
    const std::string content = node.member("content").string();
    const JsonNode pattern = node.member("pattern");
    if (content != " " || !pattern.has("String")) {
      throw make_error(ErrorCode::kUnsupported,
                       "{}: Replace by \"{}\" (this build decodes one text as a space)",
                       node.path(), content);
    }
    out.space = pattern.member("String").string();
  } else if (type == "Strip") {
    if (node.member("content").view() != " " || node.member("start").integer() > 1 ||
        node.member("stop").integer() != 0) {
      throw make_error(ErrorCode::kUnsupported,
                       "{}: Strip (this build takes off one space at the start)", node.path());
    }
    out.strip_prefix = node.member("start").integer() == 1;
  } else {
    unknown(node, type, "ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip");
  }
}

}  // namespace

void JsonNode::expected(std::string_view what) const {
  throw make_error(ErrorCode::kInvalidFile, "{}: expected {}", path_.empty() ? "root" : path_,
                   what);
}

std::string JsonNode::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

bool JsonNode::has(std::string_view key) const {
  simdjson::dom::element found;
  return value_.is_object() && !value_.at_key(key).get(found) && !found.is_null();
}

JsonNode JsonNode::member(std::string_view key) const {
  if (!value_.is_object()) expected("an object");
  simdjson::dom::element found;
  if (value_.at_key(key).get(found)) {
    throw make_error(ErrorCode::kInvalidFile, "{}: there is no such field", path_of(key));
  }
  return {found, path_of(key)};
}

std::string_view JsonNode::view() const {
  std::string_view text;
  if (value_.get(text)) expected("a string");
  return text;
}

std::int64_t JsonNode::integer() const {
  std::int64_t number = 0;
  if (value_.get(number)) expected("an integer");
  return number;
}

std::optional<std::string> JsonNode::find_string(std::string_view key) const {
  return has(key) ? std::optional(member(key).string()) : std::nullopt;
}

bool JsonNode::flag(std::string_view key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const JsonNode node = member(key);
  bool value = false;
  if (node.value_.get(value)) node.expected("true or false");
  return value;
}

void JsonNode::for_each(const std::function<void(const JsonNode&)>& visit) const {
  simdjson::dom::array list;
  if (value_.get(list)) expected("an array");
  for (const simdjson::dom::element item : list) visit({item, path_});
}

void JsonNode::for_each_member(
    const std::function<void(std::string_view, const JsonNode&)>& visit) const {
  simdjson::dom::object object;
  if (value_.get(object)) expected("an object");
  for (const auto field : object) visit(field.key, {field.value, path_});
}

void read_normalizer(const JsonNode& top, TokenizerJson& out) {
  for_each_component(
      top, "normalizer", "normalizers",
      [&](const JsonNode& node, const std::string& type) { add_normalizer(node, type, out); });
}

void read_pre_tokenizer(const JsonNode& top, TokenizerJson& out) {
  for_each_component(
      top, "pre_tokenizer", "pretokenizers",
      [&](const JsonNode& node, const std::string& type) { add_pre_tokenizer(node, type, out); });
}

void read_decoder(const JsonNode& top, TokenizerJson& out) {
  for_each_component(
      top, "decoder", "decoders",
      [&](const JsonNode& node, const std::string& type) { add_decoder(node, type, out); });
}

void read_post_processor(const JsonNode& top, TokenizerJson& out,
                         const std::function<std::int32_t(std::string_view)>& id_of) {
  for_each_component(top, "post_processor", "processors",
                     [&](const JsonNode& node, const std::string& type) {
                       if (type == "ByteLevel") return;
                       if (type != "TemplateProcessing")
                         unknown(node, type, "ByteLevel, TemplateProcessing");
                       bool behind = false;
                       node.member("single").for_each([&](const JsonNode& piece) {
                         if (piece.has("SpecialToken")) {
                           const auto token = piece.member("SpecialToken").member("id");
                           (behind ? out.suffix : out.prefix).push_back(id_of(token.view()));
                         } else {
                           behind = true;
                         }
                       });
                     });
}

}  // namespace palimpsest::formats
