#include "base/disk_space.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"

namespace palimpsest::base {

namespace fs = std::filesystem;

std::optional<std::uint64_t> free_disk_space(fs::path path) {
  std::error_code error;
  path = fs::absolute(path, error);
  while (!fs::exists(path, error) && path != path.parent_path()) path = path.parent_path();
  const fs::space_info space = fs::space(path, error);
  if (error) return std::nullopt;
  return space.available;
}

void require_free_space(const fs::path& path, std::uint64_t bytes) {
  constexpr std::uint64_t kSlack = 16 << 20;  // headers, index, config, the file system's own
  const std::optional<std::uint64_t> free = free_disk_space(path);
  const std::uint64_t needed = bytes + std::min(kSlack, UINT64_MAX - bytes);
  if (!free || needed <= *free) return;
  throw make_error(ErrorCode::kIo, "'{}': {} bytes are needed, {} are free", path.string(), needed, *free);
}

}  // namespace palimpsest::base
