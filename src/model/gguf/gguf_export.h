#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace palimpsest {

/// What matrices become.
enum class GgufType : std::uint8_t { kAsStored, kF32, kF16, kBF16, kQ8_0, kMxfp4 };

struct GgufExportOptions {
  GgufType matrices = GgufType::kAsStored;  ///< 8-bit integers of other files become Q8_0
  GgufType experts = GgufType::kAsStored;
  /// Tensors written and tensors in all, from the calling thread. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress;
};

/// Writes the model in a folder (or of a .safetensors file) as one GGUF file, as llama.cpp's converters do: metadata, tokenizer where the
/// folder has one that can be written (gguf_tokenizer.h), and the tensors of gguf_weight_spec. Norms, gates, convolution taps, routers and
/// learned positions are F32; matrices whose rows are not a multiple of 32 columns become F16 where a block type is asked for. A layer's
/// tensors are encoded one after the other, so memory stays small. The file appears whole or not at all.
///
/// Throws Error: those of Model::load; kUnsupported for families that have no architecture in GGUF, and for YaRN; kIo.
void export_gguf(const std::filesystem::path& model, const std::filesystem::path& file, const GgufExportOptions& options = {});

}  // namespace palimpsest
