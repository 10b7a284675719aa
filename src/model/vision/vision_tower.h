#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "kernels/op_args.h"
#include "kernels/vision_args.h"
#include "model/vision/vision_config.h"
#include "tensor/exec_context.h"

namespace palimpsest {

/// One layer of the tower: x += wo attention(rotary(wqkv norm0 x)); x += fc1 gelu_tanh(fc0 norm1 x). H = hidden size, P = attention size.
struct VisionBlock {
  Tensor norm0, norm1;  // F32 [H]
  Matrix wq, wk, wv;    // [P, H]: the thirds of wqkv
  Matrix wo;            // [H, P]
  Matrix fc0, fc1;      // [intermediate, H], [H, intermediate]
};

struct VisionWeights {
  Matrix patch_embed;      // [H, 3 * patch * patch]
  Tensor positions;        // [position rows, position columns, H] as stored
  std::vector<VisionBlock> blocks;
  Tensor final_layernorm;  // F32 [H]
  Matrix projector0;       // [4 H, 4 H]
  Matrix projector2;       // [text hidden, 4 H]
  Tensor post_norm;        // F32 [text hidden]
};

/// Kimi K3's eyes: from patches of a picture to rows that stand in a prompt in place of token embeddings. Matrices are views of mapped files, as in
/// Model; immutable, so any threads may share one.
class VisionTower {
 public:
  /// The tower of a model's folder (or .safetensors file). Null where config.json describes none or the checkpoint holds none of its tensors. Throws
  /// Error: kInvalidFile naming what is missing, extra, mis-shaped or mis-typed. `norm_eps`: instead of VisionConfig's.
  static std::shared_ptr<const VisionTower> load(const std::filesystem::path& model, std::optional<double> norm_eps = std::nullopt);
  /// The same without values, for plans: nothing is read but headers, and nothing can be computed with it.
  static std::shared_ptr<const VisionTower> outline(const VisionConfig& config);

  const VisionConfig& config() const { return config_; }
  const VisionWeights& weights() const { return weights_; }
  std::int64_t tensors() const { return tensors_; }
  std::int64_t parameters() const { return parameters_; }
  std::int64_t file_bytes() const { return bytes_; }  ///< of the tower's tensors

 private:
  struct Loader;
  VisionTower() = default;

  VisionConfig config_;
  VisionWeights weights_;
  std::int64_t tensors_ = 0, parameters_ = 0, bytes_ = 0;
  std::unique_ptr<formats::Checkpoint> checkpoint_;  ///< null for an outline
  std::vector<std::vector<float>> vectors_;          ///< F32 copies
};

/// Writes patches [first, first + count) as F32 [count, 3, patch, patch].
using PatchSource = std::function<void(std::int64_t first, std::int64_t count, float* out)>;

/// Watches the tower for tests: "patch_embed" (behind the positions), "block0", ..., "features" [patches, H]; "merged" [tokens, 4 H] in pieces in
/// order.
using VisionObserver = std::function<void(const std::string& what, const Tensor& values)>;

/// Tokens that a grid becomes: one for each merge x merge cell, whatever the frames.
std::int64_t vision_tokens(const VisionConfig& config, const PatchGridSize& grid);

/// Runs tower, merger and projector over one picture (grid.frames = 1; rows and columns multiples of merge): out F32 [vision_tokens, text hidden].
/// Every picture is on its own: nothing depends on others, nor on threads. The workspace of the context must hold vision_workspace_bytes().
void encode_picture(ExecContext& ctx, const VisionTower& tower, const PatchGridSize& grid, const PatchSource& patches, const Tensor& out,
                    const VisionObserver& observer = {});

/// Workspace of encode_picture, found by running it over a measuring arena. Grows with the patches: H + 2 P floats each, and a chunk's activations.
std::int64_t vision_workspace_bytes(const VisionTower& tower, const PatchGridSize& grid);

}  // namespace palimpsest
