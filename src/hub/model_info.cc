#include "hub/model_info.h"

#include <simdjson.h>

#include <algorithm>

#include "formats/quote.h"
#include "hub/checksum.h"
#include "hub/model_id.h"

namespace palimpsest::hub {
namespace {

namespace dom = simdjson::dom;
using formats::quote;

constexpr std::size_t kLongestPath = 1024, kLongestPart = 255;
constexpr std::uint64_t kLargestFile = std::uint64_t{1} << 62;

/// A member that may be missing or null. Errors: the member is something else.
template <class T>
Result<std::optional<T>> optional_member(dom::object object, std::string_view key,
                                         std::string_view kind) {
  dom::element element;
  if (object.at_key(key).get(element) != simdjson::SUCCESS || element.is_null())
    return std::optional<T>{};
  T value;
  if (element.get(value) != simdjson::SUCCESS)
    return fail(ErrorCode::kInvalidFile, "'{}' is not {}", key, kind);
  return std::optional<T>(value);
}

/// How the two lists call the parts of a file.
struct FileKeys {
  std::string_view name, sha256, blob;
};
constexpr FileKeys kSiblingKeys = {"rfilename", "sha256", "blobId"},
                   kTreeKeys = {"path", "oid", "oid"};

Result<std::string> read_checksum(dom::object file, const FileKeys& keys) {
  const auto lfs = optional_member<dom::object>(file, "lfs", "an object");
  if (!lfs) return tl::make_unexpected(lfs.error());
  const auto sum = *lfs ? optional_member<std::string_view>(**lfs, keys.sha256, "a string")
                        : optional_member<std::string_view>(file, keys.blob, "a string");
  if (!sum) return tl::make_unexpected(sum.error());
  if (!*sum) return std::string{};
  if (!is_hex(**sum, *lfs ? 64 : 40))
    return fail(ErrorCode::kInvalidFile, "checksum {} is none", quote(**sum));
  return std::string(**sum);
}

Result<RemoteFile> read_file(dom::object file, const FileKeys& keys) {
  const auto name = optional_member<std::string_view>(file, keys.name, "a string");
  if (!name) return tl::make_unexpected(name.error());
  if (!*name) return fail(ErrorCode::kInvalidFile, "has no '{}'", keys.name);
  if (const auto fault = file_name_fault(**name)) {
    return fail(ErrorCode::kInvalidFile, "name {} {}", quote(**name), *fault);
  }
  const auto size = optional_member<std::uint64_t>(file, "size", "a number of bytes");
  const auto checksum = read_checksum(file, keys);
  if (!size) return fail(ErrorCode::kInvalidFile, "{}: {}", quote(**name), size.error().text());
  if (!checksum)
    return fail(ErrorCode::kInvalidFile, "{}: {}", quote(**name), checksum.error().text());
  if (*size && **size > kLargestFile) {
    return fail(ErrorCode::kInvalidFile, "{}: {} bytes are more than a file can have",
                quote(**name), **size);
  }
  return RemoteFile{.name = std::string(**name), .size = *size, .checksum = *checksum};
}

/// Appends the files of a list. `is_file` says which entries are some.
template <class F>
Result<bool> append_files(dom::array list, const FileKeys& keys, std::vector<RemoteFile>& files,
                          const F& is_file) {
  for (const dom::element element : list) {
    if (files.size() == kMaxFiles)
      return fail(ErrorCode::kInvalidFile, "more than {} files", kMaxFiles);
    dom::object object;
    if (element.get(object) != simdjson::SUCCESS)
      return fail(ErrorCode::kInvalidFile, "file {}: is not an object", files.size());
    if (!is_file(object)) continue;
    auto file = read_file(object, keys);
    if (!file)
      return fail(ErrorCode::kInvalidFile, "file {}: {}", files.size(), file.error().text());
    files.push_back(std::move(*file));
  }
  return true;
}

tl::unexpected<Error> in(std::string_view what, Error error) {
  return tl::make_unexpected(error.add_context(std::string(what)));
}

}  // namespace

std::optional<std::string> file_name_fault(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kLongestPath)
    return fmt::format("has {} bytes, more than {}", name.size(), kLongestPath);
  if (name.front() == '/') return "is an absolute path";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) return "holds a control character";
    if (c == '\\') return "holds a backslash";
  }
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..")
      return fmt::format("holds the part {}", quote(part));
    if (part.size() > kLongestPart)
      return fmt::format("holds a part of {} bytes, more than {}", part.size(), kLongestPart);
    begin = end + 1;
  }
  return std::nullopt;
}

Result<ModelInfo> parse_model_info(std::string_view json) {
  dom::parser parser(kMaxModelInfoBytes + simdjson::SIMDJSON_PADDING);
  dom::object root;
  dom::element document;
  auto error = parser.parse(json.data(), json.size()).get(document);
  if (!error) error = document.get(root);
  if (error) {
    return fail(ErrorCode::kInvalidFile, "model description of {} bytes: {}", json.size(),
                simdjson::error_message(error));
  }
  const auto commit = optional_member<std::string_view>(root, "sha", "a string");
  if (!commit) return tl::make_unexpected(commit.error());
  if (!*commit || !is_commit(**commit)) {
    return fail(ErrorCode::kInvalidFile,
                "model description: 'sha' is {}, expected a commit of 40 hexadecimal digits",
                *commit ? quote(**commit) : "missing");
  }
  ModelInfo info{.commit = std::string(**commit)};
  dom::element listed;
  info.is_whole = root.at_key("siblings").get(listed) == simdjson::SUCCESS && !listed.is_null();
  if (!info.is_whole) return info;
  dom::array siblings;
  if (listed.get(siblings) != simdjson::SUCCESS)
    return fail(ErrorCode::kInvalidFile, "model description: 'siblings' is not a list");
  if (auto done =
          append_files(siblings, kSiblingKeys, info.files, [](dom::object) { return true; });
      !done)
    return in("model description", done.error());
  if (auto done = sort_files(info.files); !done) return in("model description", done.error());
  info.is_whole = info.files.size() < kMaxDescribedFiles;
  return info;
}

Result<bool> parse_tree_page(std::string_view json, std::vector<RemoteFile>& files) {
  dom::parser parser(kMaxModelInfoBytes + simdjson::SIMDJSON_PADDING);
  dom::array entries;
  dom::element document;
  auto error = parser.parse(json.data(), json.size()).get(document);
  if (!error) error = document.get(entries);
  if (error) {
    return fail(ErrorCode::kInvalidFile, "list of files of {} bytes: {}", json.size(),
                simdjson::error_message(error));
  }
  const auto is_file = [](dom::object entry) {
    std::string_view type;
    return entry.at_key("type").get(type) != simdjson::SUCCESS || type == "file";
  };
  if (auto done = append_files(entries, kTreeKeys, files, is_file); !done)
    return in("list of files", done.error());
  return true;
}

Result<bool> sort_files(std::vector<RemoteFile>& files) {
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(
      files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice == files.end()) return true;
  return fail(ErrorCode::kInvalidFile, "{} occurs twice", quote(twice->name));
}

}  // namespace palimpsest::hub
