#include <nlohmann/json.hpp>

#include "base/check.h"
#include "formats/quote.h"
#include "formats/safetensors.h"

namespace palimpsest::formats {
namespace {

/// Header text of the given items laid out back to back, padded with spaces so that the data begins at a multiple of 64.
std::string header_text(std::span<const SafetensorsWriter::Item> items,
                        std::span<const std::pair<std::string, std::string>> metadata, std::uint64_t& data_bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    auto& object = header["__metadata__"] = nlohmann::ordered_json::object();
    for (const auto& [key, value] : metadata) object[key] = value;
  }
  std::string text = header.dump();
  text.pop_back();  // the tensors follow one by one: an ordered_json of half a million keys would be quadratic
  std::uint64_t offset = 0;
  for (const auto& item : items) {
    std::uint64_t bytes = static_cast<std::uint64_t>(dtype_size(item.dtype));
    for (const std::int64_t size : item.shape) {
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes)) {
        throw make_error(ErrorCode::kInternal, "tensor {}: its size overflows", quote(item.name));
      }
    }
    const nlohmann::ordered_json entry = {{"dtype", std::string(dtype_name(item.dtype))},
                                          {"shape", item.shape},
                                          {"data_offsets", {offset, offset + bytes}}};
    if (text.size() > 1) text += ',';
    text += nlohmann::json(item.name).dump() + ":" + entry.dump();
    offset += bytes;
  }
  text += '}';
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  data_bytes = offset;
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::span<const Item> items,
                                     std::span<const std::pair<std::string, std::string>> metadata)
    : file_(path) {
  const std::string header = header_text(items, metadata, expected_);
  unsigned char length[8];
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file_.write(length, sizeof length);
  file_.write(header.data(), header.size());
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  appended_ += bytes.size();
  file_.write(bytes.data(), bytes.size());
}

void SafetensorsWriter::commit() {
  if (appended_ != expected_) {
    throw make_error(ErrorCode::kInternal, "'{}': {} bytes of data written, {} announced", file_.path().string(), appended_,
                     expected_);
  }
  file_.commit();
}

void SafetensorsWriter::commit_sparse() {
  file_.extend(expected_ - appended_);
  appended_ = expected_;
  commit();
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata) {
  std::vector<SafetensorsWriter::Item> items;
  items.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    PALIMPSEST_CHECK(tensor.is_contiguous(), "only contiguous tensors can be written");
    items.push_back({name, tensor.dtype, {tensor.sizes, tensor.sizes + tensor.rank}});
  }
  SafetensorsWriter writer(path, items, metadata);
  for (const auto& named : tensors) {
    writer.append({static_cast<const std::byte*>(named.tensor.data), static_cast<std::size_t>(named.tensor.bytes())});
  }
  writer.commit();
}

}  // namespace palimpsest::formats
