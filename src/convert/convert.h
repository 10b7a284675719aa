#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace palimpsest::convert {

/// What a weight matrix is stored as. kInt8: compressed-tensors "int-quantized", groups of 32; kMxfp4: "mxfp4-pack-quantized".
enum class Form : std::uint8_t { kBf16, kF16, kInt8, kMxfp4 };

/// "bf16", "f16", "q8", "mxfp4".
std::string_view form_name(Form form);
std::optional<Form> parse_form(std::string_view name);

struct Options {
  std::filesystem::path input;   ///< as Model::load takes it
  std::filesystem::path output;  ///< a folder that is made; while it is not whole it is called <output>.partial
  std::optional<Form> weights;   ///< of all weight matrices; nothing: as they are
  std::optional<Form> experts;   ///< of the routed experts; nothing: as `weights` says
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;  ///< most tensor bytes of a file; a weight that has more gets one of its own
  bool force = false;            ///< replace an output that is a model folder
  int threads = 0;               ///< 0: one a core
  /// Bytes written or read again, of all that will be. Called from the calling thread.
  std::function<void(std::int64_t done, std::int64_t total)> on_progress;
  const std::atomic<bool>* cancelled = nullptr;  ///< looked at between blocks
};

/// What became of the weights of one role that were stored alike.
struct RoleReport {
  std::string role;          ///< "self_attn.q_proj"
  std::string from, to;      ///< "BF16", "MXFP4", ...
  std::int64_t matrices = 0;
  std::int64_t parameters = 0;
  std::uint64_t bytes_before = 0, bytes_after = 0;
  double max_error = 0;      ///< largest |new - old| of a matrix over its largest |old|; the worst matrix
  double rms_error = 0;      ///< root of sum (new - old)^2 over sum old^2, over all of them
};

struct Report {
  std::vector<RoleReport> roles;  ///< of the matrices whose form changed, in the order of the model
  std::uint64_t bytes_before = 0, bytes_after = 0;  ///< of all tensors
  std::int64_t shards = 0;
  std::int64_t shards_resumed = 0;  ///< found whole from a conversion that was cut off
};

/// Writes a checkpoint in another form: shards, their index, config.json with what was done, and the other files of the model
/// (tokenizer, generation config, templates).
///
/// Converted are weight matrices. Norms, gates' vectors, convolutions and other vectors stay as they are; embedding, head, positions, router and the
/// matrices that make decay and write strength (few parameters that act through an exponential) are never quantised, only turned into
/// BF16 or F16. A matrix whose columns are no multiple of 32 stays dense. MXFP4 stays MXFP4 where 8 bits are asked for.
///
/// Each shard is written under another name, synchronised, read again from the disk, compared by checksums with what was written, and then named. In the end
/// the new folder is opened as any model, each converted matrix decoded and compared with the source, and the folder renamed. A
/// conversion that ended early goes on where its named shards end when called again with the same options. Uses the memory of a
/// few blocks of rows, whatever the size of the checkpoint.
///
/// Throws Error: kUsage for an output that is there (without force), that holds the input, or is no model folder (with force);
/// kIo for too little disk space (before anything is written) and failed writes; kInvalidFile for an input that does not load or values
/// that the new form cannot hold (not finite, or beyond F16); kCancelled. Nothing is left under the output's name then, and an
/// output that is to be replaced is untouched.
Report convert_checkpoint(const Options& options);

}  // namespace palimpsest::convert
