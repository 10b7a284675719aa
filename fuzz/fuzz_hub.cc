// A hub's description of a model out of arbitrary bytes: an Error, or files whose names stay below
// the model's folder.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hub/checksum.h"
#include "hub/file_choice.h"
#include "hub/model_id.h"
#include "hub/model_info.h"
#include "hub/remote.h"

namespace {

void check_names(const std::vector<palimpsest::hub::RemoteFile>& files) {
  for (const auto& file : files) {
    const auto path = (std::filesystem::path("/model") / file.name).lexically_normal().string();
    if (!path.starts_with("/model/") || path == "/model/") __builtin_trap();
    if (!file.checksum.empty() && !palimpsest::hub::Checksum::is_name(file.checksum)) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace palimpsest;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto id = hub::parse_model_id(text); id && id->repo().find("..") != std::string::npos)
    __builtin_trap();
  hub::next_page(text);
  std::vector<hub::RemoteFile> page;
  if (hub::parse_tree_page(text, page)) check_names(page);
  const auto info = hub::parse_model_info(text);
  if (!info) return 0;
  if (!hub::is_commit(info->commit)) __builtin_trap();
  check_names(info->files);
  try {
    hub::choose_files(*info, {});
  } catch (const Error&) {
  }
  return 0;
}
