#include "formats/tokenizer_json.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/mapped_file.h"
#include "formats/token_table.h"
#include "formats/tokenizer_json_steps.h"

namespace palimpsest::formats {
namespace {

/// The code point of each byte in the byte-level alphabet: itself where it is printable in Latin-1,
/// else 256, 257, ... in order.
std::array<std::int16_t, 324> make_byte_of_code_point() {
  std::array<std::int16_t, 324> bytes{};
  bytes.fill(-1);
  std::size_t next = 256;
  for (std::int16_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    bytes[printable ? static_cast<std::size_t>(b) : next++] = b;
  }
  return bytes;
}

/// Reads `model`, once the vocabulary's form (bytes or characters) is known.
class ModelReader {
 public:
  ModelReader(simdjson::dom::element root, TokenizerJson& out) : root_(root), out_(out) {}

  void read() {
    const JsonNode model = JsonNode(root_, "").member("model");
    const std::string type = model.has("type") ? model.member("type").string() : "BPE";
    if (type != "BPE") {
      throw make_error(ErrorCode::kUnsupported, "model: type \"{}\" (this build reads BPE)", type);
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const auto text = model.find_string(key); text && !text->empty()) {
        throw make_error(ErrorCode::kUnsupported, "model: {} \"{}\" (this build knows none)", key,
                         *text);
      }
    }
    out_.byte_fallback = model.flag("byte_fallback", false);
    out_.ignore_merges = model.flag("ignore_merges", false);
    out_.fuse_unk = model.flag("fuse_unk", false);
    read_vocab(model.member("vocab"));
    read_merges(model.member("merges"));
    read_added();
    if (const auto unk = model.find_string("unk_token")) {
      const auto it = ids_.find(*unk);
      if (it == ids_.end()) {
        throw make_error(ErrorCode::kInvalidFile,
                         "model: unk_token \"{}\" is not in the vocabulary", *unk);
      }
      out_.unk = it->second;
    }
    if (out_.byte_level) {
      for (std::string& token : out_.tokens) {
        if (auto bytes = from_byte_level(token)) token = std::move(*bytes);
      }
      for (const AddedTokenEntry& token : out_.added) {
        out_.tokens[static_cast<std::size_t>(token.id)] = token.text;
      }
    }
  }

  /// The id of a token by its text in the file.
  std::int32_t id_of(std::string_view text, std::string_view where) const {
    const auto it = ids_.find(text);
    if (it == ids_.end()) {
      throw make_error(ErrorCode::kInvalidFile, "{}: \"{}\" is no token", where, text);
    }
    return it->second;
  }

 private:
  void read_vocab(const JsonNode& vocab) {
    std::vector<std::pair<std::string_view, std::int64_t>> entries;
    vocab.for_each_member([&](std::string_view token, const JsonNode& id) {
      entries.emplace_back(token, id.integer());
    });
    if (entries.empty()) throw make_error(ErrorCode::kInvalidFile, "model: vocab has no token");
    check_ids_fit(entries.size());
    ids_.reserve(entries.size());
    for (const auto& [token, id] : entries) put(token, id, "model: vocab");
  }

  /// Ids may leave gaps, but no more of them than there are tokens (and a few).
  void check_ids_fit(std::size_t tokens) {
    max_id_ = static_cast<std::int64_t>(std::min(TokenTable::kMaxTokens, 2 * tokens + 4096)) - 1;
    num_tokens_ = tokens;
  }

  void put(std::string_view token, std::int64_t id, std::string_view where) {
    if (id < 0 || id > max_id_) {
      throw make_error(ErrorCode::kInvalidFile,
                       "{}: token \"{}\" has id {}; a vocabulary of {} tokens may go up to {}",
                       where, token, id, num_tokens_, max_id_);
    }
    if (token.size() > TokenTable::kMaxTokenBytes) {
      throw make_error(ErrorCode::kInvalidFile, "{}: token {} has {} bytes, the limit is {}", where,
                       id, token.size(), TokenTable::kMaxTokenBytes);
    }
    const auto place = static_cast<std::size_t>(id);
    if (place >= out_.tokens.size()) {
      out_.tokens.resize(place + 1);
      used_.resize(place + 1, false);
    }
    if (used_[place]) {
      throw make_error(ErrorCode::kInvalidFile, "{}: tokens \"{}\" and \"{}\" have the same id {}",
                       where, out_.tokens[place], token, id);
    }
    if (!ids_.emplace(token, static_cast<std::int32_t>(id)).second) {
      throw make_error(ErrorCode::kInvalidFile, "{}: token \"{}\" occurs twice", where, token);
    }
    out_.tokens[place] = token;
    used_[place] = true;
  }

  void read_merges(const JsonNode& merges) {
    std::string joined;
    merges.for_each([&](const JsonNode& merge) {
      if (out_.merges.size() == TokenTable::kMaxTokens) {
        throw make_error(ErrorCode::kInvalidFile, "model: more than {} merges",
                         TokenTable::kMaxTokens);
      }
      const auto [left, right] = halves(merge);
      joined.assign(left).append(right);
      const auto find = [&](std::string_view part) {
        const auto it = ids_.find(part);
        if (it == ids_.end()) {
          throw make_error(ErrorCode::kInvalidFile,
                           "model: merge {} (\"{}\" with \"{}\"): \"{}\" is not in the vocabulary",
                           out_.merges.size(), left, right, part);
        }
        return it->second;
      };
      const std::int32_t left_id = find(left), right_id = find(right);
      out_.merges.push_back({left_id, right_id, find(joined)});
    });
  }

  /// Both forms: "a b" and ["a", "b"].
  std::pair<std::string_view, std::string_view> halves(const JsonNode& merge) const {
    if (merge.is_array()) {
      std::vector<std::string_view> parts;
      merge.for_each([&](const JsonNode& part) { parts.push_back(part.view()); });
      if (parts.size() == 2) return {parts[0], parts[1]};
    } else {
      const std::string_view text = merge.view();
      const std::size_t space = text.find(' ');
      if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
        return {text.substr(0, space), text.substr(space + 1)};
      }
    }
    throw make_error(ErrorCode::kInvalidFile, "model: merge {} is not a pair of tokens",
                     out_.merges.size());
  }

  void read_added() {
    const JsonNode root(root_, "");
    if (!root.has("added_tokens")) return;
    std::size_t count = 0;
    root.member("added_tokens").for_each([&](const JsonNode&) { ++count; });
    check_ids_fit(std::max(out_.tokens.size(), num_tokens_) + count);
    std::vector<bool> seen(static_cast<std::size_t>(max_id_) + 1, false);
    root.member("added_tokens").for_each([&](const JsonNode& node) {
      AddedTokenEntry token;
      const std::string_view text = node.member("content").view();  // ids_ keeps it
      token.text = text;
      if (token.text.empty()) {
        throw make_error(ErrorCode::kInvalidFile, "added_tokens: a token has an empty content");
      }
      token.special = node.flag("special", false);
      token.single_word = node.flag("single_word", false);
      token.lstrip = node.flag("lstrip", false);
      token.rstrip = node.flag("rstrip", false);
      token.normalized = node.flag("normalized", !token.special);
      const std::int64_t id = node.member("id").integer();
      const auto known = ids_.find(text);
      if (known == ids_.end()) {
        put(text, id, "added_tokens");
      } else if (known->second != id) {
        throw make_error(ErrorCode::kInvalidFile,
                         "added_tokens: \"{}\" has id {}, but {} in the vocabulary", token.text, id,
                         known->second);
      }
      token.id = static_cast<std::int32_t>(id);
      if (seen[static_cast<std::size_t>(id)]) {
        throw make_error(ErrorCode::kInvalidFile, "added_tokens: id {} occurs twice", id);
      }
      seen[static_cast<std::size_t>(id)] = true;
      out_.added.push_back(std::move(token));
    });
  }

  simdjson::dom::element root_;
  TokenizerJson& out_;
  std::vector<bool> used_;
  std::int64_t max_id_ = 0;
  std::size_t num_tokens_ = 0;
  std::unordered_map<std::string_view, std::int32_t> ids_;  ///< views of the parsed document
};

}  // namespace

const char* const kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

std::optional<std::string> from_byte_level(std::string_view utf8) {
  static const auto kBytes = make_byte_of_code_point();
  std::string bytes;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    std::size_t code_point = static_cast<unsigned char>(utf8[i]);
    if (code_point >= 0x80) {  // two bytes: the alphabet ends at U+0143
      if (code_point < 0xc2 || code_point > 0xc5 || ++i == utf8.size()) return std::nullopt;
      const auto second = static_cast<unsigned char>(utf8[i]);
      if ((second & 0xc0) != 0x80) return std::nullopt;
      code_point = (code_point & 0x1f) << 6 | (second & 0x3f);
    }
    if (code_point >= kBytes.size() || kBytes[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kBytes[code_point]);
  }
  return bytes;
}

std::optional<std::uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'A' && c <= 'F';
    if (!digit && !letter) return std::nullopt;
    value = value << 4 | static_cast<unsigned>(digit ? c - '0' : c - 'A' + 10);
  }
  return static_cast<std::uint8_t>(value);
}

std::string quote_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{{{:02x}}}", byte);
      continue;
    }
    if (byte < 0x80 && !std::isalnum(byte) && c != ' ') out += '\\';
    out += c;
  }
  return out;
}

Result<TokenizerJson> TokenizerJson::parse(std::string_view text) {
  if (text.size() > kMaxFileBytes) {
    return fail(ErrorCode::kInvalidFile, "{} bytes, the limit is {}", text.size(), kMaxFileBytes);
  }
  simdjson::dom::parser parser;
  if (parser.allocate(std::max<std::size_t>(text.size(), 64), 64)) {
    return fail(ErrorCode::kOutOfMemory, "no memory to parse {} bytes", text.size());
  }
  simdjson::dom::element root;
  if (const auto error = parser.parse(text.data(), text.size()).get(root)) {
    return fail(ErrorCode::kInvalidFile, "not JSON: {}", simdjson::error_message(error));
  }
  try {
    TokenizerJson out;
    const JsonNode top(root, "");
    read_normalizer(top, out);
    read_pre_tokenizer(top, out);
    ModelReader model(root, out);
    model.read();
    read_decoder(top, out);
    read_post_processor(
        top, out, [&](std::string_view token) { return model.id_of(token, "post_processor"); });
    return out;
  } catch (const Error& error) {
    return tl::make_unexpected(error);
  }
}

Result<TokenizerJson> TokenizerJson::read(const std::filesystem::path& path) {
  auto file = base::MappedFile::open(path);
  if (!file) return tl::make_unexpected(std::move(file.error()));
  const auto bytes = file->bytes();
  auto tokenizer = parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!tokenizer) tokenizer.error().add_context(path.string());
  return tokenizer;
}

}  // namespace palimpsest::formats
