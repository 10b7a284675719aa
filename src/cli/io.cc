#include "cli/io.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace palimpsest::cli {

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw make_error(ErrorCode::kIo, "standard output: {}", std::strerror(errno));
  }
}

void require_readable(const std::string& path, std::int64_t most) {
  if (path == "-") return;
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (error) throw make_error(ErrorCode::kIo, "{}: {}", path, error.message());
  if (type == std::filesystem::file_type::directory) throw make_error(ErrorCode::kIo, "{}: is a folder", path);
  const auto size = type == std::filesystem::file_type::regular ? std::filesystem::file_size(path, error) : 0;
  if (!error && size > static_cast<std::uintmax_t>(most)) throw make_error(ErrorCode::kInvalidRequest, "{}: has {} bytes, at most {} are read", path, size, most);
}

std::string read_input(const std::string& path, std::int64_t most) {
  require_readable(path, most);
  std::ifstream file;
  errno = 0;
  if (path != "-") file.open(path, std::ios::binary);
  if (!file) throw make_error(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  std::istream& in = path == "-" ? std::cin : file;
  constexpr std::size_t kPart = 1 << 20;
  std::string text;
  while (in && static_cast<std::int64_t>(text.size()) <= most) {
    const std::size_t held = text.size();
    text.resize(held + kPart);
    in.read(text.data() + held, kPart);
    text.resize(held + static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) throw make_error(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  if (static_cast<std::int64_t>(text.size()) > most) throw make_error(ErrorCode::kInvalidRequest, "{}: has more than {} bytes, at most so many are read", path, most);
  return text;
}

std::string read_text(const std::string& path) {
  std::string text = read_input(path);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  return text;
}

std::string text_argument(const Options& options, std::string_view what) {
  if (options.prompt && options.file)
    throw make_error(ErrorCode::kUsage, "give the {} by -p or by -f, not by both", what);
  if (!options.prompt && !options.file)
    throw make_error(ErrorCode::kUsage, "no {}: give one by -p TEXT or -f FILE", what);
  std::string text = options.prompt ? *options.prompt : read_input(*options.file);
  if (text.empty()) {
    throw make_error(ErrorCode::kUsage, "the {} is empty{}", what,
                     options.file ? " (" + *options.file + ")" : "");
  }
  return text;
}

std::int64_t parse_size(std::string_view flag, std::string_view text, std::int64_t unit, bool zero) {
  const std::pair<std::string_view, std::int64_t> units[] = {
      {"", unit},
      {"KB", 1'000},
      {"MB", 1'000'000},
      {"GB", 1'000'000'000},
      {"TB", 1'000'000'000'000},
      {"KiB", std::int64_t{1} << 10},
      {"MiB", std::int64_t{1} << 20},
      {"GiB", std::int64_t{1} << 30},
      {"TiB", std::int64_t{1} << 40}};
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [name, bytes] : units) {
    if (error == std::errc{} && rest == name && (number > 0 || (zero && number == 0)) &&
        number <= kMost / bytes)
      return number * bytes;
  }
  throw make_error(ErrorCode::kUsage, "{}: '{}' is no size such as 500MB or 4GiB", flag, text);
}

std::vector<std::int32_t> parse_id_list(std::string_view text) {
  constexpr std::string_view kBetween = ", \t\r\n";
  std::vector<std::int32_t> ids;
  for (std::size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;
       at = text.find_first_not_of(kBetween, at)) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    std::int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || stop != word.data() + word.size() || id < 0) {
      throw make_error(ErrorCode::kUsage, "--ids: '{}' (number {}) is not a token id", word,
                       ids.size() + 1);
    }
    ids.push_back(id);
    at = end;
  }
  if (ids.empty()) throw make_error(ErrorCode::kUsage, "--ids: the list is empty");
  return ids;
}

std::vector<std::vector<std::int32_t>> read_id_lists(const std::string& path) {
  using nlohmann::json;
  const json document = json::parse(read_input(path), nullptr, false);
  const auto fail_at = [&](std::string_view where, std::string_view why) {
    return make_error(ErrorCode::kInvalidFile, "{}: {}{}", path, where, why);
  };
  if (document.is_discarded()) throw fail_at("", "not JSON");
  if (!document.is_array() || document.empty()) throw fail_at("", "expected a list of id lists");
  std::vector<std::vector<std::int32_t>> lists;
  for (const json& entry : document) {
    const std::string where = fmt::format("[{}]", lists.size());
    if (!entry.is_array()) throw fail_at(where, ": expected a list of ids");
    if (entry.empty()) throw fail_at(where, ": the list is empty");
    std::vector<std::int32_t>& ids = lists.emplace_back();
    for (const json& id : entry) {
      if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() > INT32_MAX) {
        throw fail_at(fmt::format("{}[{}]", where, ids.size()),
                      ": expected a token id, found " + id.dump());
      }
      ids.push_back(id.get<std::int32_t>());
    }
  }
  return lists;
}

std::string format_ids(const std::vector<std::int32_t>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

void require_writable(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw make_error(ErrorCode::kIo, "{}: cannot be written: is a folder", path.string());
  }
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    throw make_error(ErrorCode::kIo, "{}: cannot be written: it is there and is no regular file", path.string());
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, error)) {
    throw make_error(ErrorCode::kIo, "{}: cannot be written: there is no folder {}", path.string(),
                     folder.string());
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    throw make_error(ErrorCode::kIo, "{}: cannot be written: {}: {}", path.string(),
                     folder.string(), std::strerror(errno));
  }
}

}  // namespace palimpsest::cli
