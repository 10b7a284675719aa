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
#include "tensor/buffer.h"
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
/// Model, or lie on a device; immutable, so any threads may share one.
class VisionTower {
 public:
  /// The tower of a model's folder (or .safetensors file). Null where config.json describes none or the checkpoint holds none of its tensors. Throws
  /// Error: kInvalidFile naming what is missing, extra, mis-shaped or mis-typed; kOutOfMemory where `device` has no room for the weights. `norm_eps`:
  /// instead of VisionConfig's.
  static std::shared_ptr<const VisionTower> load(const std::filesystem::path& model, std::optional<double> norm_eps = std::nullopt, Device& device = host_device());
  /// The same without values, for plans: nothing is read but headers, and nothing can be computed with it.
  static std::shared_ptr<const VisionTower> outline(const VisionConfig& config);

  const VisionConfig& config() const { return config_; }
  const VisionWeights& weights() const { return weights_; }
  std::int64_t tensors() const { return tensors_; }
  std::int64_t parameters() const { return parameters_; }
  std::int64_t file_bytes() const { return bytes_; }  ///< of the tower's tensors
  DeviceKind device() const { return device_; }       ///< where the weights lie, and contexts must be that run it
  std::int64_t device_bytes() const { return on_device_.bytes(); }  ///< of the device's memory; 0 on the host
  /// What device_bytes() is at most on a device: file_bytes(), vectors as F32, and gaps between tensors.
  std::int64_t upload_bytes() const;

 private:
  struct Loader;
  VisionTower() = default;
  void upload(Device& device);

  VisionConfig config_;
  VisionWeights weights_;
  std::int64_t tensors_ = 0, parameters_ = 0, bytes_ = 0;
  std::unique_ptr<formats::Checkpoint> checkpoint_;  ///< null for an outline
  std::vector<std::vector<float>> vectors_;          ///< F32 copies
  DeviceKind device_ = DeviceKind::kCpu;
  Buffer on_device_;  ///< the weights, where the device is not the host; files and copies are given back
};

/// Writes patches [first, first + count) as F32 [count, 3, patch, patch].
using PatchSource = std::function<void(std::int64_t first, std::int64_t count, float* out)>;

/// Watches the tower for tests: "patch_embed" (behind the positions), "block0", ..., "features" [patches, H]; "merged" [tokens, 4 H] in pieces in
/// order.
using VisionObserver = std::function<void(const std::string& what, const Tensor& values)>;

/// Tokens that a grid becomes: one for each merge x merge cell, whatever the frames.
std::int64_t vision_tokens(const VisionConfig& config, const PatchGridSize& grid);

/// Tower, merger and projector over one picture, a piece of work after the other, so that who runs it can look up in between: a piece is at most some
/// ten billion operations a thread, a fraction of a second on a processor, or a chunk of rows on a device, which is asked for and not waited for. How it
/// is cut changes no bit. Every picture is on its own: nothing depends on others, nor on threads.
class PictureEncoder {
 public:
  /// grid.frames = 1 or more, rows and columns multiples of merge; `out` F32 [vision_tokens, text hidden] on the context's device, which is the tower's;
  /// complete after the last step. Takes the picture's memory from the context's workspace, which must hold vision_workspace_bytes(), and be the same in
  /// every step. Tower and context outlive it.
  PictureEncoder(ExecContext& ctx, const VisionTower& tower, const PatchGridSize& grid, PatchSource patches, const Tensor& out, VisionObserver observer = {});

  /// The next piece. False when there was none left.
  bool step();
  /// Operations of a piece of attention, a thread: for tests.
  void set_piece(double flops) { piece_flops_ = flops; }

 private:
  enum class Stage : std::uint8_t { kEmbed, kPositions, kKeys, kQueries, kAttend, kFeedForward, kFinish, kProject, kDone };

  void embed();
  void keys_and_values();
  void queries();
  void attend();
  void feed_forward();
  void finish();
  void project();
  bool next_chunk(std::int64_t rows, std::int64_t chunk);
  void watch(const std::string& what, const Tensor& values) const;

  Tensor allocate(std::int64_t rows, std::int64_t width) const;
  float eps() const { return static_cast<float>(config_.norm_eps); }
  Tensor chunk_of(const Tensor& t) const { return t.rows(first_, count_); }
  Tensor normalised(const Tensor& weight) const;
  void project_heads(const Tensor& h, const Matrix& w, const Tensor& heads, bool turned) const;

  ExecContext& ctx_;
  const VisionConfig& config_;
  const VisionWeights& weights_;
  PatchGridSize grid_;
  PatchSource patches_;
  Tensor out_;
  VisionObserver observer_;
  double piece_flops_;
  Tensor x_, k_, v_, turns_;  ///< of all patches
  Tensor q_, o_;              ///< of the chunk
  Stage stage_ = Stage::kEmbed;
  std::size_t block_ = 0;
  std::int64_t first_ = 0, count_ = 0;  ///< the chunk
  std::int64_t attended_ = 0;           ///< rows of it
};

/// All steps of a PictureEncoder, with the context's workspace as it was before.
void encode_picture(ExecContext& ctx, const VisionTower& tower, const PatchGridSize& grid, const PatchSource& patches, const Tensor& out,
                    const VisionObserver& observer = {});

/// Workspace of encode_picture, found by running it over a measuring arena. Grows with the patches: H + 2 P floats each, and a chunk's activations.
std::int64_t vision_workspace_bytes(const VisionTower& tower, const PatchGridSize& grid);
/// The same on another device than that on which the tower lies.
std::int64_t vision_workspace_bytes(const VisionTower& tower, const PatchGridSize& grid, DeviceKind where);

/// What runtime/picture.h's PictureRows takes at most of the memory of the tower's device, with pictures of at most `patches` patches and passes of at
/// most `rows` rows; and for rows that are kept, which lie on the host wherever the tower does (and are among the former there).
std::int64_t picture_rows_bytes(const VisionTower& tower, std::int64_t patches, std::int64_t rows, DeviceKind device = DeviceKind::kCpu);
std::int64_t kept_rows_bytes(const VisionTower& tower, std::int64_t patches, std::int64_t rows);

/// A grid of at least `patches` patches, and of hardly more: what a picture of so many takes.
PatchGridSize grid_of(const VisionConfig& config, std::int64_t patches);

}  // namespace palimpsest
