#include "support/shared_data.h"

#include <cstdlib>

namespace palimpsest::test {

std::filesystem::path project_path(const std::string& relative) {
  const char* elsewhere = std::getenv("PALIMPSEST_PROJECT");  // on a machine that has no sources
  return std::filesystem::path(elsewhere ? elsewhere : PALIMPSEST_SOURCE_DIR) / relative;
}

std::filesystem::path shared_path(const std::string& relative) {
  const char* root = std::getenv("PALIMPSEST_SHARED");
  const std::filesystem::path path = (root ? std::filesystem::path(root) : project_path("../shared")) / relative;
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? path : std::filesystem::path{};
}

}  // namespace palimpsest::test
