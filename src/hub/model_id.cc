#include "hub/model_id.h"

#include <algorithm>

#include "formats/quote.h"

namespace palimpsest::hub {
namespace {

constexpr std::size_t kLongestName = 96, kLongestRevision = 200;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_repository_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && is_word(text.front()) &&
         is_word(text.back()) && text.find("--") == text.npos && text.find("..") == text.npos &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return is_word(c) || c == '-' || c == '.'; });
}

/// Words, dots, dashes and slashes; no part is empty or begins with a dot or a dash.
bool is_revision(std::string_view text) {
  if (text.empty() || text.size() > kLongestRevision || text.back() == '/') return false;
  char previous = '/';
  for (const char c : text) {
    if (previous == '/' ? !is_word(c) : !(is_word(c) || c == '-' || c == '.' || c == '/'))
      return false;
    previous = c;
  }
  return text.find("..") == text.npos;
}

}  // namespace

Result<ModelId> parse_model_id(std::string_view text) {
  const std::size_t at = text.find('@');
  const std::string_view repo = text.substr(0, at);
  const std::size_t slash = repo.find('/');
  if (slash == repo.npos || !is_repository_name(repo.substr(0, slash)) ||
      !is_repository_name(repo.substr(slash + 1))) {
    return fail(ErrorCode::kUsage,
                "{} is not the name of a model: expected OWNER/NAME or OWNER/NAME@REV",
                formats::quote(text));
  }
  ModelId id{.owner = std::string(repo.substr(0, slash)),
             .name = std::string(repo.substr(slash + 1))};
  if (at == text.npos) return id;
  const std::string_view revision = text.substr(at + 1);
  if (!is_revision(revision)) {
    return fail(ErrorCode::kUsage, "{}: {} is not the name of a branch, tag or commit", id.repo(),
                formats::quote(revision));
  }
  id.revision = revision;
  return id;
}

bool is_hex(std::string_view text, std::size_t length) {
  return text.size() == length && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool is_commit(std::string_view text) {
  return is_hex(text, 40);
}

}  // namespace palimpsest::hub
