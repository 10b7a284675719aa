#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"

// Standard output, files and id lists of the commands.

namespace palimpsest::cli {

/// Writes to standard output at once. Throws Error{kIo} when that fails (a full disk; a closed pipe
/// ends the process first).
void print(std::string_view text);

/// All of a file, pipe or device, or of standard input for "-". Throws Error: kIo for what is not there or a folder; kInvalidRequest for more than `most` bytes.
std::string read_input(const std::string& path, std::int64_t most = std::int64_t{1} << 30);
/// Throws what read_input() finds before it reads.
void require_readable(const std::string& path, std::int64_t most);
/// All of a file without the byte order mark that some editors write.
std::string read_text(const std::string& path);

/// The text of -p or -f, checked to be one of them. `what` names it in errors ("prompt"). Throws
/// Error{kUsage} when there is none, both or an empty one.
std::string text_argument(const Options& options, std::string_view what);

/// "1,2,3" (commas or blanks between). Throws Error{kUsage} naming the part that is not an id, and
/// for an empty list.
std::vector<std::int32_t> parse_id_list(std::string_view text);

/// "500MB", "4GiB", "1000000": bytes; a number without a unit counts `unit` bytes. At most 2^50. Throws Error{kUsage} naming `flag`; for 0 too
/// unless `zero` is allowed.
std::int64_t parse_size(std::string_view flag, std::string_view text, std::int64_t unit = 1, bool zero = false);

/// A JSON file with a list of id lists. Throws Error{kInvalidFile} naming file and place.
std::vector<std::vector<std::int32_t>> read_id_lists(const std::string& path);

std::string format_ids(const std::vector<std::int32_t>& ids);

/// Throws Error{kIo} when a file of this name could not be created, without creating it. To be
/// called before work begins.
void require_writable(const std::filesystem::path& path);

}  // namespace palimpsest::cli
