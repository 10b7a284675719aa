#include "hub/file_choice.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>

#include "formats/gguf_part.h"
#include "formats/quote.h"

namespace palimpsest::hub {
namespace {

using formats::quote;

bool is_model_safetensors(std::string_view name) {
  return name == "model.safetensors" ||
         (name.starts_with("model-") && name.ends_with(".safetensors"));
}

/// What stands beside the weights and is read, or may be by a later version.
bool is_description(std::string_view name) {
  static constexpr std::array<std::string_view, 5> kEndings = {".json", ".jinja", ".model",
                                                               ".tiktoken", ".txt"};
  if (name.starts_with("pytorch_model") || name.starts_with("tf_model") ||
      name.starts_with("flax_model"))
    return false;
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](auto ending) { return name.ends_with(ending); });
}

std::vector<RemoteFile> matching(const ModelInfo& info, std::span<const std::string> include) {
  std::vector<bool> chosen(info.files.size());
  for (const std::string& given : include) {
    const std::string pattern = given.ends_with('/') ? given + "*" : given;
    bool any = false;
    for (std::size_t i = 0; i < info.files.size(); ++i) {
      if (::fnmatch(pattern.c_str(), info.files[i].name.c_str(), 0) == 0) chosen[i] = any = true;
    }
    if (!any) {
      throw make_error(ErrorCode::kInvalidRequest, "--include {} matches none of the {} files",
                       quote(given), info.files.size());
    }
  }
  std::vector<RemoteFile> files;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) files.push_back(info.files[i]);
  }
  return files;
}

std::string bytes_text(const std::optional<std::uint64_t>& size) {
  return size ? fmt::format("{:.2f} GB", static_cast<double>(*size) / 1e9) : "size unknown";
}

/// The one GGUF file, all parts of it.
std::vector<RemoteFile> gguf_files(const ModelInfo& info) {
  std::map<std::string, std::vector<RemoteFile>> models;
  for (const RemoteFile& file : info.files) {
    if (file.name.ends_with(".gguf")) models[first_part(file.name)].push_back(file);
  }
  if (models.size() == 1) return models.begin()->second;
  if (models.empty()) {
    const bool pickled =
        std::any_of(info.files.begin(), info.files.end(), [](const RemoteFile& file) {
          return file.name.ends_with(".bin") || file.name.ends_with(".pt") ||
                 file.name.ends_with(".pth");
        });
    throw make_error(ErrorCode::kInvalidRequest,
                     "none of the {} files is a .safetensors or .gguf file{}", info.files.size(),
                     pickled ? "; its weights are pickled (.bin), which is not read" : "");
  }
  std::string list;
  for (const auto& [name, parts] : models) {
    std::optional<std::uint64_t> size = 0;
    for (const RemoteFile& part : parts)
      size = size && part.size ? std::optional(*size + *part.size) : std::nullopt;
    list += fmt::format("\n  {:<60} {:>12}", name, bytes_text(size));
  }
  throw make_error(ErrorCode::kInvalidRequest, "there are {} GGUF models; choose with --include:{}",
                   models.size(), list);
}

}  // namespace

std::string first_part(std::string_view name) {
  const auto part = formats::GgufPart::parse(name);
  return part ? part->name(1) : std::string(name);
}

std::vector<RemoteFile> choose_files(const ModelInfo& info, std::span<const std::string> include) {
  if (!include.empty()) return matching(info, include);
  const auto top = [](const RemoteFile& file) { return file.name.find('/') == file.name.npos; };
  const bool has_model = std::any_of(
      info.files.begin(), info.files.end(),
      [&](const RemoteFile& file) { return top(file) && is_model_safetensors(file.name); });
  std::vector<RemoteFile> files;
  bool weights = false;
  for (const RemoteFile& file : info.files) {
    if (!top(file)) continue;
    const bool tensors =
        has_model ? is_model_safetensors(file.name) : file.name.ends_with(".safetensors");
    if (tensors || is_description(file.name)) files.push_back(file);
    weights = weights || tensors;
  }
  return weights ? files : gguf_files(info);
}

}  // namespace palimpsest::hub
