#pragma once

#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/op_args.h"
#include "tensor/copy_queue.h"
#include "tensor/exec_context.h"

namespace palimpsest::ops {

/// Of a model's routed experts.
struct ExpertShapes {
  std::int64_t num_experts = 0, top_k = 0, width = 0, inter = 0;
};

/// Routed experts that the host's cores compute for a device, with the CPU's kernels on weights where they lie: rows come through pinned memory, and
/// what they become goes back, all in the device's own order and part of its recordings. Has threads of its own, since those of a context belong to
/// who asks, who goes on meanwhile. A row's bits depend on nothing but the row, as ever; they are those of the CPU, not of the device.
///
/// One thread at a time asks. What is not finite goes on as it is; where a call fails all its rows become NaN, and are found at the logits.
class HostExperts {
 public:
  static constexpr std::int64_t kRows = 128;  ///< that are computed at a time
  /// Makes a view of a layer's weights on the device one of what the host reads.
  using SendHome = std::function<void(std::int64_t layer, Matrix& m)>;

  /// threads: 0: one a core but for the one that waits for the device. All memory is taken here. Throws Error{kOutOfMemory}.
  HostExperts(Device& device, const ExpertShapes& shapes, SendHome send_home, int threads);
  /// Waits for the device.
  ~HostExperts();
  HostExperts(const HostExperts&) = delete;
  HostExperts& operator=(const HostExperts&) = delete;

  /// Rows `rows` (I32, where the device reads it; undefined: all) of args.y, as ops::experts; args.experts and args.glu are always the same of a layer.
  void compute(ExecContext& ctx, CopyQueue& queue, std::int64_t layer, const ExpertsArgs& args, const Tensor& rows);

  static int threads_or_default(int threads);
  /// Pinned memory that it takes, and memory besides.
  static std::int64_t pinned_bytes(const ExpertShapes& shapes);
  static std::int64_t workspace_bytes(const ExpertShapes& shapes, int threads);

 private:
  /// What a call needs to know beside the rows; recordings keep pointers to it.
  struct Job {
    HostExperts* self = nullptr;
    std::int64_t layer = 0, rows = 0;
    Activations activations = Activations::kF32;
    const ExpertMatrices* experts = nullptr;
    GluParams glu;
  };
  const Job& job(std::int64_t layer, std::int64_t rows, Activations activations, const ExpertsArgs& args);
  static void run(void* job) noexcept;
  void run(const Job& job);

  Device& device_;
  ExpertShapes shapes_;
  SendHome send_home_;
  ExecContext ctx_;
  Buffer pinned_;
  Tensor x_, y_, weights_, ids_;      // [kRows, ...] of it
  std::vector<ExpertMatrices> home_;  // of the layer that computes, those that are chosen
  std::map<std::tuple<std::int64_t, std::int64_t, Activations>, std::unique_ptr<Job>> jobs_;
};

}  // namespace palimpsest::ops
