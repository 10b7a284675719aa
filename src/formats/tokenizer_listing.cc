#include "formats/tokenizer_listing.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "formats/quote.h"

namespace palimpsest::formats {
namespace {

using Json = nlohmann::json;

Result<Json> read_json(const std::filesystem::path& path) {
  const auto file = base::MappedFile::open(path);
  if (!file) return tl::make_unexpected(file.error());
  if (file->size() > TokenizerListing::kMaxBytes) {
    return fail(ErrorCode::kInvalidFile, "'{}': {} bytes, more than {}", path.string(), file->size(), TokenizerListing::kMaxBytes);
  }
  const auto* begin = reinterpret_cast<const char*>(file->bytes().data());
  return Json::parse(begin, begin + file->size());
}

std::int64_t token_id(const Json& value) {
  const auto id = value.get<std::int64_t>();
  if (id < 0 || id > TokenizerListing::kMaxId) {
    throw make_error(ErrorCode::kInvalidFile, "token id {} is outside 0 .. {}", id, TokenizerListing::kMaxId);
  }
  return id;
}

void read_pre_tokenizer(const Json& step, TokenizerListing& listing) {
  if (!step.is_object()) return;
  const std::string type = step.value("type", "");
  if (type == "Sequence") {
    for (const Json& inner : step.at("pretokenizers")) read_pre_tokenizer(inner, listing);
  } else if (type == "Split") {
    if (const Json& pattern = step.at("pattern"); pattern.contains("Regex")) listing.split_patterns.push_back(pattern.at("Regex").get<std::string>());
  } else if (type == "Digits") {
    listing.splits_digits = true;
  } else if (type == "ByteLevel") {
    listing.byte_level_regex = step.value("use_regex", true);
  }
}

std::string merge_text(const Json& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  if (merge.size() != 2) throw make_error(ErrorCode::kInvalidFile, "model.merges: an entry of {} parts", merge.size());
  return merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();
}

TokenizerListing listing_of(const Json& root) {
  TokenizerListing listing;
  const Json& model = root.at("model");
  listing.model = model.value("type", "BPE");
  listing.byte_fallback = model.value("byte_fallback", false);
  if (listing.model != "BPE") return listing;
  for (const auto& [token, id] : model.at("vocab").items()) listing.vocabulary.emplace_back(token, token_id(id));
  for (const Json& merge : model.at("merges")) listing.merges.push_back(merge_text(merge));
  if (root.contains("added_tokens")) {
    for (const Json& token : root.at("added_tokens")) {
      listing.added.push_back({token_id(token.at("id")), token.at("content").get<std::string>(), token.value("special", true)});
    }
  }
  if (root.contains("pre_tokenizer")) read_pre_tokenizer(root.at("pre_tokenizer"), listing);
  return listing;
}

TokenizerExtras extras_of(const Json& root) {
  TokenizerExtras extras;
  if (root.contains("added_tokens_decoder")) {
    for (const auto& [id, token] : root.at("added_tokens_decoder").items()) {
      std::int64_t number = -1;
      std::from_chars(id.data(), id.data() + id.size(), number);
      extras.added.push_back({token_id(number), token.at("content").get<std::string>(), token.value("special", true)});
    }
  }
  if (root.contains("add_bos_token") && root.at("add_bos_token").is_boolean()) extras.add_bos = root.at("add_bos_token").get<bool>();
  if (!root.contains("chat_template")) return extras;
  const Json& chat = root.at("chat_template");
  if (chat.is_string()) extras.chat_template = chat.get<std::string>();
  if (chat.is_array()) {
    for (const Json& named : chat) {
      if (named.at("name") == "default") extras.chat_template = named.at("template").get<std::string>();
    }
  }
  return extras;
}

template <class T, class Read>
Result<T> read_file(const std::filesystem::path& path, Read read) try {
  const auto root = read_json(path);
  if (!root) return tl::make_unexpected(root.error());
  return read(*root);
} catch (const Json::exception& error) {
  return fail(ErrorCode::kInvalidFile, "'{}': {}", path.string(), error.what());
} catch (Error& error) {
  return tl::make_unexpected(error.add_context(fmt::format("'{}'", path.string())));
}

}  // namespace

Result<TokenizerListing> read_tokenizer_listing(const std::filesystem::path& file) { return read_file<TokenizerListing>(file, listing_of); }

Result<TokenizerExtras> read_tokenizer_extras(const std::filesystem::path& folder) {
  TokenizerExtras extras;
  std::error_code ignored;
  if (const auto path = folder / "tokenizer_config.json"; std::filesystem::exists(path, ignored)) {
    auto read = read_file<TokenizerExtras>(path, extras_of);
    if (!read) return read;
    extras = std::move(*read);
  }
  if (const auto path = folder / "chat_template.jinja"; std::filesystem::exists(path, ignored)) {
    const auto file = base::MappedFile::open(path);
    if (!file) return tl::make_unexpected(file.error());
    extras.chat_template.assign(reinterpret_cast<const char*>(file->bytes().data()), file->size());
  }
  return extras;
}

}  // namespace palimpsest::formats
