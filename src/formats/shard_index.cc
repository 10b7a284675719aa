#include "formats/shard_index.h"

#include <simdjson.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "formats/quote.h"
#include "formats/stable_name.h"

namespace palimpsest::formats {
namespace {

namespace json = simdjson::ondemand;

/// A name inside the folder: no separators, not "." or "..", no NUL (which would cut it short for the system).
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

}  // namespace

/// Fills a ShardIndex while walking the JSON.
class ShardIndexParser {
 public:
  explicit ShardIndexParser(std::string_view source) : source_(source), buffer_(source) {}

  Result<ShardIndex> parse() {
    json::parser parser;
    json::document document;
    json::object root;
    auto error = parser.iterate(buffer_).get(document);
    if (!error) error = document.get_object().get(root);
    if (error) return bad_json(error, "index");
    bool has_weight_map = false;
    for (auto element : root) {
      json::field field;
      std::string_view key;
      error = std::move(element).get(field);
      if (!error) error = field.unescaped_key().get(key);
      if (error) return bad_json(error, "index");
      if (key != "weight_map") continue;
      if (std::exchange(has_weight_map, true)) return fail(ErrorCode::kInvalidFile, "weight_map occurs twice");
      if (auto read = read_weight_map(field.value()); !read) return tl::make_unexpected(read.error());
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
      return fail(ErrorCode::kInvalidFile, "index: more text after the JSON object");
    }
    if (index_.items_.empty()) return fail(ErrorCode::kInvalidFile, "no tensors in 'weight_map'");
    index_.sort_files();
    return std::move(index_);
  }

 private:
  Result<bool> read_weight_map(json::value value) {
    json::object weight_map;
    if (const auto error = value.get_object().get(weight_map)) return bad_json(error, "weight_map");
    for (auto element : weight_map) {
      json::field field;
      std::string_view name, file;
      auto error = std::move(element).get(field);
      if (error) return bad_json(error, "weight_map");
      const char* raw = field.key().raw();
      if ((error = field.unescaped_key().get(name))) return bad_json(error, "weight_map");
      name = stable_name(source_, buffer_.data(), raw, name, index_.unescaped_names_);
      if ((error = field.value().get_string().get(file))) return bad_json(error, "weight_map: " + quote(name));
      const auto number = file_number(name, file);
      if (!number) return tl::make_unexpected(number.error());
      index_.items_.push_back({name, *number});
    }
    return true;
  }

  Result<std::uint32_t> file_number(std::string_view tensor, std::string_view file) {
    if (const auto known = file_numbers_.find(file); known != file_numbers_.end()) return known->second;
    if (!is_plain_file_name(file)) {
      return fail(ErrorCode::kInvalidFile, "weight_map: {}: shard {} is not a plain file name inside the folder",
                  quote(tensor), quote(file));
    }
    if (file_numbers_.size() == ShardIndex::kMaxShards) {
      return fail(ErrorCode::kInvalidFile, "weight_map: more than {} shards", ShardIndex::kMaxShards);
    }
    index_.files_.emplace_back(file);
    return file_numbers_.emplace(file, static_cast<std::uint32_t>(file_numbers_.size())).first->second;
  }

  static tl::unexpected<Error> bad_json(simdjson::error_code error, std::string_view what) {
    return fail(ErrorCode::kInvalidFile, "{}: {}", what, simdjson::error_message(error));
  }

  std::string_view source_;
  simdjson::padded_string buffer_;
  ShardIndex index_;
  std::map<std::string, std::uint32_t, std::less<>> file_numbers_;
};

Result<ShardIndex> ShardIndex::parse(std::span<const std::byte> text) {
  return ShardIndexParser({reinterpret_cast<const char*>(text.data()), text.size()}).parse();
}

void ShardIndex::sort_files() {
  std::vector<std::uint32_t> order(files_.size()), rank(files_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return files_[a] < files_[b]; });
  for (std::uint32_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  std::sort(files_.begin(), files_.end());
  for (Item& item : items_) item.file = rank[item.file];
}

Result<bool> ShardIndex::check(std::span<const TensorEntry> entries, const NameIndex& names) const {
  std::vector<bool> listed(entries.size());
  for (const Item& item : items_) {
    const auto position = names.find(entries, item.tensor);
    if (!position) {
      return fail(ErrorCode::kInvalidFile, "tensor {} should be in shard {}, which does not hold it", quote(item.tensor),
                  quote(files_[item.file]));
    }
    if (entries[*position].shard != item.file) {
      return fail(ErrorCode::kInvalidFile, "tensor {} should be in shard {}, but is in {}", quote(item.tensor),
                  quote(files_[item.file]), quote(files_[entries[*position].shard]));
    }
    if (listed[*position]) return fail(ErrorCode::kInvalidFile, "weight_map: tensor {} occurs twice", quote(item.tensor));
    listed[*position] = true;
  }
  const auto unlisted = std::find(listed.begin(), listed.end(), false);
  if (unlisted != listed.end()) {
    const TensorEntry& entry = entries[static_cast<std::size_t>(unlisted - listed.begin())];
    return fail(ErrorCode::kInvalidFile, "weight_map: tensor {} of shard {} is not listed", quote(entry.name),
                quote(files_[entry.shard]));
  }
  return true;
}

}  // namespace palimpsest::formats
