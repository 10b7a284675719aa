#include "formats/tiktoken_vocab.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/base64.h"
#include "base/mapped_file.h"

namespace palimpsest::formats {
namespace {

struct Line {
  std::uint32_t number;  ///< counted from 1, for error texts
  std::int32_t rank;
  std::uint32_t begin;  ///< of the token in the decoded bytes
  std::uint32_t size;
};

Result<Line> parse_line(std::string_view line, std::uint32_t number, std::string& decoded) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return fail(ErrorCode::kInvalidFile, "line {}: expected \"base64 rank\"", number);
  }
  const std::size_t begin = decoded.size();
  if (!base::append_decoded_base64(line.substr(0, space), base::Base64Rest::kZero, decoded)) {
    return fail(ErrorCode::kInvalidFile, "line {}: the token is not base64", number);
  }
  const std::size_t size = decoded.size() - begin;
  if (size == 0) return fail(ErrorCode::kInvalidFile, "line {}: empty token", number);
  if (size > TiktokenVocab::kMaxTokenBytes) {
    return fail(ErrorCode::kInvalidFile, "line {}: token of {} bytes, the limit is {}", number,
                size, TiktokenVocab::kMaxTokenBytes);
  }
  const std::string_view digits = line.substr(space + 1);
  std::int32_t rank = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc{} || end != digits.data() + digits.size() || rank < 0) {
    return fail(ErrorCode::kInvalidFile, "line {}: the rank is not a number from 0 up", number);
  }
  return Line{number, rank, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(size)};
}

Result<std::vector<Line>> parse_lines(std::string_view text, std::string& decoded) {
  std::vector<Line> lines;
  std::uint32_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (lines.size() == TiktokenVocab::kMaxTokens) {
      return fail(ErrorCode::kInvalidFile, "line {}: more than {} tokens", number,
                  TiktokenVocab::kMaxTokens);
    }
    auto parsed = parse_line(line, number, decoded);
    if (!parsed) return tl::make_unexpected(std::move(parsed.error()));
    lines.push_back(*parsed);
  }
  if (lines.empty()) return fail(ErrorCode::kInvalidFile, "no tokens");
  return lines;
}

/// lines in rank order; an error when the ranks are not 0 .. n-1, each once.
Result<std::vector<Line>> order_by_rank(const std::vector<Line>& lines) {
  std::vector<Line> ordered(lines.size(), Line{0, -1, 0, 0});
  for (const Line& line : lines) {
    if (static_cast<std::size_t>(line.rank) >= lines.size()) {
      return fail(ErrorCode::kInvalidFile, "line {}: rank {} in a file of {} tokens leaves a gap",
                  line.number, line.rank, lines.size());
    }
    Line& place = ordered[static_cast<std::size_t>(line.rank)];
    if (place.rank >= 0) {
      return fail(ErrorCode::kInvalidFile, "line {}: rank {} was already given in line {}",
                  line.number, line.rank, place.number);
    }
    place = line;
  }
  return ordered;
}

}  // namespace

Result<TiktokenVocab> TiktokenVocab::parse(std::string_view text) {
  if (text.size() > kMaxFileBytes) {
    return fail(ErrorCode::kInvalidFile, "{} bytes, the limit is {}", text.size(), kMaxFileBytes);
  }
  std::string decoded;
  decoded.reserve(text.size() / 2);
  auto lines = parse_lines(text, decoded).and_then(order_by_rank);
  if (!lines) return tl::make_unexpected(std::move(lines.error()));

  TiktokenVocab vocab;
  vocab.tokens_.reserve(lines->size(), decoded.size());
  for (const Line& line : *lines) {
    const std::int32_t id = vocab.tokens_.add({decoded.data() + line.begin, line.size});
    if (id != line.rank) {
      const Line& first = (*lines)[static_cast<std::size_t>(id)];
      return fail(ErrorCode::kInvalidFile, "line {}: the token of line {} again",
                  std::max(line.number, first.number), std::min(line.number, first.number));
    }
  }
  return vocab;
}

Result<TiktokenVocab> TiktokenVocab::read(const std::filesystem::path& path) {
  auto file = base::MappedFile::open(path);
  if (!file) return tl::make_unexpected(std::move(file.error()));
  const auto bytes = file->bytes();
  auto vocab = parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!vocab) return tl::make_unexpected(std::move(vocab.error().add_context(path.string())));
  return vocab;
}

}  // namespace palimpsest::formats
