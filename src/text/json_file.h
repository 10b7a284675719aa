#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace palimpsest::text {

/// The JSON object in a file, keys in their order. Errors: kIo for a file that cannot be read,
/// kInvalidFile for one that holds anything else, a zero byte or deeper nesting than kMaxJsonDepth.
nlohmann::ordered_json read_json_file(const std::filesystem::path& path);

}  // namespace palimpsest::text
