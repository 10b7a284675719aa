#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "formats/ggml_types.h"
#include "formats/gguf_metadata.h"
#include "palimpsest/tensor.h"

// GGUF, the file format of ggml: "GGUF", u32 version, u64 number of tensors, u64 number of key-value pairs, the pairs, the tensors' infos,
// padding to general.alignment, the tensors' bytes, each at a multiple of the alignment. Little-endian.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

namespace palimpsest::formats {

inline constexpr std::uint64_t kMaxGgufTensors = 1'000'000;       ///< of all parts together
inline constexpr std::uint64_t kMaxGgufPairs = 100'000;           ///< key-value pairs of a file
inline constexpr std::uint64_t kMaxGgufAlignment = 1 << 20;
inline constexpr std::uint64_t kDefaultGgufAlignment = 32;
inline constexpr std::uint64_t kMaxGgufNameBytes = 1024;          ///< of a tensor's name; ggml itself stops at 63
inline constexpr std::uint64_t kMaxGgufKeyBytes = 65535;
inline constexpr int kMaxGgufRank = 4;
inline constexpr std::int64_t kMaxGgufParts = 10'000;

/// One tensor of a file: where its bytes lie and how to read them. Sizes are row-major, the reverse of the file's: a matrix is
/// [rows, cols] with contiguous rows.
struct GgufTensor {
  std::string_view name;  ///< points into the mapped file
  const GgmlType* type = nullptr;  ///< supported
  std::int8_t rank = 0;
  std::uint16_t part = 0;    ///< which file of a split model
  std::uint64_t offset = 0;  ///< of the first byte, from the start of the file
  std::uint64_t bytes = 0;
  std::int64_t sizes[kMaxGgufRank] = {1, 1, 1, 1};

  std::span<const std::int64_t> shape() const { return {sizes, static_cast<std::size_t>(rank)}; }
  std::int64_t cols() const { return rank == 0 ? 1 : sizes[rank - 1]; }
  std::int64_t rows() const;  ///< product of all sizes but the last
};

/// "Q4_K [4096, 256]"
std::string describe(const GgufTensor& tensor);

struct GgufHeader {
  std::uint32_t version = 0;
  std::uint64_t alignment = kDefaultGgufAlignment;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  ///< in the order of the file
};

/// Reads and checks everything before the tensors' bytes. Keys, values and names are views of `file`, which must outlive them.
///
/// Errors (without the file's name), kInvalidFile: truncation; counts, lengths and sizes that the file cannot hold or that overflow; unknown
/// value types, arrays of arrays; keys or tensor names that are empty, too long or occur twice; bools other than 0 and 1; an alignment that
/// is no power of two or above kMaxGgufAlignment; more than kMaxGgufRank dimensions, negative ones; rows that are no whole number of blocks;
/// tensors that lie unaligned, outside the file or over one another. kUnsupported: version 1, versions above 3, big-endian files, tensor
/// types that this build does not read (the text lists those that it reads).
Result<GgufHeader> parse_gguf(std::span<const std::byte> file);

/// Whether a path is meant as a GGUF file: it ends in .gguf and is no folder. What the file holds is not looked at.
bool is_gguf(const std::filesystem::path& path);

/// A GGUF model: one file, or all parts of a split one, mapped. Owns the mappings; tensors, views and metadata live as long as it does.
/// Movable. Safe to read from any thread.
class Gguf {
 public:
  struct Part {
    std::filesystem::path path;
    base::MappedFile file;
  };

  /// `path`: a .gguf file, or any part NAME-00001-of-0000N.gguf of a split model, whose other parts must lie beside it.
  ///
  /// Errors name the file: those of parse_gguf; kIo for what cannot be opened, with every missing part named; kInvalidFile for parts whose
  /// split.no, split.count or split.tensors.count disagree with their names or with what they hold, or that share a tensor's name.
  static Result<Gguf> open(const std::filesystem::path& path);

  /// Of the first part. Its errors name that file.
  const GgufMetadata& metadata() const { return metadata_; }
  /// In the order of the parts and of their files.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  std::span<const Part> parts() const { return parts_; }
  /// Null when there is no such tensor.
  const GgufTensor* find(std::string_view name) const;

  /// Dense tensors only (type->dtype): a view of the mapped bytes. READ-ONLY memory (writing faults), aligned to the file's alignment, which
  /// may be less than the dtype's.
  Tensor view(const GgufTensor& tensor) const;
  /// Any type, as a weight matrix [rows(), cols()] in place; leading dimensions are flattened, so expert e of a [E, n, k] stack is
  /// matrix(t).row_range(e * n, n).
  Matrix matrix(const GgufTensor& tensor) const;

  std::uint64_t tensor_bytes() const;
  std::uint64_t file_bytes() const;

 private:
  static Result<Gguf> open_parts(const std::vector<std::filesystem::path>& paths);
  Result<bool> add_part(const std::filesystem::path& path, std::size_t index, std::size_t count);
  Result<bool> check_belonging(const GgufMetadata& part, std::size_t index) const;
  Result<bool> index_tensors();

  std::vector<Part> parts_;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::uint32_t> by_name_;
};

}  // namespace palimpsest::formats
