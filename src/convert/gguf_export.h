#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "convert/convert.h"

namespace palimpsest::convert {

/// What matrices become.
enum class GgufType : std::uint8_t { kAsStored, kF32, kF16, kBF16, kQ8_0, kMxfp4 };

struct GgufExportOptions {
  GgufType matrices = GgufType::kAsStored;  ///< 8-bit integers of other files become Q8_0
  GgufType experts = GgufType::kAsStored;
  int threads = 0;  ///< 0: one a core
  /// Bytes written or read again, of all that will be. Called from the calling thread. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress;
  const std::atomic<bool>* cancelled = nullptr;  ///< looked at between blocks
};

/// Writes the model in a folder (or of a .safetensors file) as one GGUF file, as llama.cpp's converters do: metadata, tokenizer where the
/// folder has one that can be written (gguf_tokenizer.h), and the tensors of gguf_weight_spec. Norms, gates, convolution taps, routers and
/// learned positions are F32. Q8_0 and MXFP4 are for the matrices that convert_checkpoint would quantise; the others stay as they are, and
/// those whose rows are not a multiple of 32 columns become F16. MXFP4 stays MXFP4 where Q8_0 is asked for. Tensors are encoded a few rows
/// at a time, so memory stays small.
///
/// Every byte is read again from the disk and compared with what the source gives before the file gets its name: it appears whole or not at
/// all. The report's errors are those of the matrices whose form changed, under their names in the file.
///
/// Throws Error: those of Model::load; kUnsupported for families that have no architecture in GGUF, for YaRN, and for a GGUF file as input;
/// kInvalidFile for values that a type cannot hold; kIo for too little disk space (before anything is written) and failed writes; kCancelled.
Report export_gguf(const std::filesystem::path& model, const std::filesystem::path& file, const GgufExportOptions& options = {});

}  // namespace palimpsest::convert
