#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace palimpsest::hub {

/// A file of a model as the hub lists it.
struct RemoteFile {
  std::string name;  ///< a path inside the model's folder, with '/'
  std::optional<std::uint64_t> size;
  std::string checksum;  ///< see Checksum; empty where the list does not tell
};

struct ModelInfo {
  std::string commit;
  std::vector<RemoteFile> files;  ///< sorted by name, each once
  bool is_whole = true;  ///< false: the description has no list of files, or is known to cut it
};

/// Reads the hub's answer to GET /api/models/OWNER/NAME/revision/REV?blobs=true: {"sha": commit,
/// "siblings": [{"rfilename", "size", "blobId", "lfs": {"sha256"}}]}. Other keys are not looked at.
/// Errors (kInvalidFile): malformed JSON; no commit; a name with a file_name_fault; a name twice; a
/// size or checksum that is none.
Result<ModelInfo> parse_model_info(std::string_view json);

/// Reads a page of the hub's answer to GET /api/models/OWNER/NAME/tree/COMMIT?recursive=true:
/// [{"type": "file", "path", "size", "oid", "lfs": {"oid"}}]; folders are passed over. Appends to
/// `files`. Errors as above, and for more than kMaxFiles in all.
Result<bool> parse_tree_page(std::string_view json, std::vector<RemoteFile>& files);
/// Sorts files by name; an Error when one occurs twice.
Result<bool> sort_files(std::vector<RemoteFile>& files);

/// What is wrong with a name that a server gives a file, or nothing. Such a name becomes a path
/// below the model's folder, so it may not be absolute, empty or long, nor hold "." or ".." or
/// empty parts, backslashes or control characters.
std::optional<std::string> file_name_fault(std::string_view name);

inline constexpr std::size_t kMaxModelInfoBytes = 16 << 20;
inline constexpr std::size_t kMaxFiles = 100'000;
/// With so many files the description may leave some out; huggingface_hub draws the line here too.
inline constexpr std::size_t kMaxDescribedFiles = 50'000;

}  // namespace palimpsest::hub
