#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace palimpsest::base {

/// Bytes that can still be written to the disk of `path`, or of the nearest folder above it that is there. Nothing where the system
/// does not tell.
std::optional<std::uint64_t> free_disk_space(std::filesystem::path path);

/// Throws Error{kIo} with both numbers when the disk of `path` has too little for `bytes` of data and the headers and tables around
/// them. Where the system does not tell, writing will.
void require_free_space(const std::filesystem::path& path, std::uint64_t bytes);

}  // namespace palimpsest::base
