#include "text/json_file.h"

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/json_text.h"

namespace palimpsest::text {

nlohmann::ordered_json read_json_file(const std::filesystem::path& path) {
  using Json = nlohmann::ordered_json;
  const base::MappedFile file = value_or_throw(base::MappedFile::open(path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.size());
  // The library takes a zero byte for the end of its input; in JSON it has no place at all.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw make_error(ErrorCode::kInvalidFile, "{}: not JSON: a zero byte at {}", path.string(),
                     zero);
  }
  const auto watch = [&path](int depth, Json::parse_event_t, Json&) {
    if (depth <= kMaxJsonDepth) return true;
    throw make_error(ErrorCode::kInvalidFile, "{}: nested more than {} deep", path.string(),
                     kMaxJsonDepth);
  };
  Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw make_error(ErrorCode::kInvalidFile, "{}: not a JSON object", path.string());
  return json;
}

}  // namespace palimpsest::text
