#pragma once

#include <filesystem>
#include <string>

namespace palimpsest::test {

/// Root of the checkout (tests run with it as working directory, but do not rely on that).
std::filesystem::path project_path(const std::string& relative);

/// A file or folder of the shared data set that is not part of the project: $PALIMPSEST_SHARED/relative, default ../shared.
/// Empty when it is absent; then the test skips:
///     const auto path = shared_path("golden/ops/kda.safetensors");
///     if (path.empty()) GTEST_SKIP() << "shared data absent: golden/ops/kda.safetensors";
std::filesystem::path shared_path(const std::string& relative);

}  // namespace palimpsest::test
