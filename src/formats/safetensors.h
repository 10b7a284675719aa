#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/atomic_file.h"
#include "palimpsest/tensor.h"

// The safetensors format: u64 little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then the
// tensors' bytes without gaps. https://github.com/huggingface/safetensors

namespace palimpsest::formats {

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  ///< bytes of JSON
inline constexpr std::size_t kMaxSafetensorsTensors = 1'000'000;     ///< per file

/// One tensor of a file: where its bytes lie and how to read them. Plain data without heap nodes, because a checkpoint
/// has half a million of them.
struct TensorEntry {
  std::string_view name;     ///< points into the mapped header (or into SafetensorsHeader::unescaped_names)
  DType dtype = DType::kF32;
  std::int8_t rank = 0;      ///< at most Tensor::kMaxRank
  std::uint16_t shard = 0;   ///< which file of the checkpoint
  std::uint64_t offset = 0;  ///< of the first byte, from the start of the file
  std::int64_t sizes[Tensor::kMaxRank] = {1, 1, 1, 1, 1};

  std::span<const std::int64_t> shape() const { return {sizes, static_cast<std::size_t>(rank)}; }
  std::int64_t numel() const;
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(numel() * dtype_size(dtype)); }
};

/// "BF16 [4096, 384]"
std::string describe(const TensorEntry& entry);

struct SafetensorsHeader {
  std::vector<TensorEntry> entries;  ///< in the order of the header
  std::vector<std::pair<std::string, std::string>> metadata;
  std::deque<std::string> unescaped_names;  ///< owns the names that are spelt with escapes in the header
};

/// Reads and checks the header of a whole file in memory. Entries keep views into `file`, which must outlive them.
///
/// Errors (kInvalidFile, without the file's name): truncated or oversized header, malformed JSON, more than
/// kMaxSafetensorsTensors tensors, duplicate names, unknown keys, wrong types, sizes that overflow, offsets that disagree
/// with shape and dtype, that overlap, leave a hole, or do not end with the file. kUnsupported: a dtype that the format
/// knows and we do not, or more than Tensor::kMaxRank dimensions.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file);

/// A tensor to be written. The bytes must be contiguous.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// Writes a file front to back without holding its data: the layout is fixed first, then the bytes follow in the same
/// order. Appears whole or not at all (AtomicFile). Data starts at a multiple of 64 bytes. Throws Error kIo with path and
/// reason. Not thread-safe.
class SafetensorsWriter {
 public:
  struct Item {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
  };

  SafetensorsWriter(const std::filesystem::path& path, std::span<const Item> items,
                    std::span<const std::pair<std::string, std::string>> metadata = {});

  /// The next bytes of the data section; pieces need not match tensors.
  void append(std::span<const std::byte> bytes);
  /// kInternal if fewer or more bytes were appended than the items hold.
  void commit();
  /// Commits with zeros for the bytes that were not appended, as a hole that takes no disk space where the file system can.
  void commit_sparse();

 private:
  AtomicFile file_;
  std::uint64_t expected_ = 0;
  std::uint64_t appended_ = 0;
};

/// Writes all tensors, in the order given, through a SafetensorsWriter.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       std::span<const std::pair<std::string, std::string>> metadata = {});

}  // namespace palimpsest::formats
