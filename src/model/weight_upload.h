#pragma once

#include <functional>
#include <map>
#include <vector>

#include "model/weight_source.h"
#include "model/weights.h"
#include "palimpsest/model.h"
#include "tensor/buffer.h"

namespace palimpsest {

/// Puts weights into one reservation of a device, in the form they are stored in, and makes their views views of it. What is named twice (tied
/// embeddings) is copied once.
class WeightUpload {
 public:
  /// Of what add() is given.
  WeightUpload() = default;
  /// Takes note of every weight and expert. The views must stay where they are until run().
  WeightUpload(Weights& weights, std::vector<std::vector<ExpertMatrices>>& experts);

  /// Pinned memory of the host that run() takes.
  static constexpr std::int64_t kStagingBytes = 64 << 20;

  /// Takes note of one more; an undefined one is nothing.
  void add(Tensor& t);
  void add(Matrix& m);

  std::int64_t bytes() const { return bytes_; }
  /// Of which no weight's: weights begin at multiples of 256.
  std::int64_t padding() const { return padding_; }
  /// Copies through pinned memory (copy_staged), reading what lies in `mappings` from the files. on_progress(done, total) in bytes; may be empty.
  /// Throws Error{kOutOfMemory} with the bytes needed and free, and what copy_staged() throws, before any view is changed.
  /// make(from, bytes, to), where there is one, is asked first for every piece: true when it wrote it to the device itself.
  using Make = std::function<bool(const void* from, std::int64_t bytes, void* to)>;
  Buffer run(Device& device, const std::function<void(std::int64_t, std::int64_t)>& on_progress, const Make& make = {},
             std::span<const WeightSource::Mapping> mappings = {});

 private:
  /// Bytes of the host and where they go in the reservation.
  struct Piece {
    const std::byte* from;
    std::int64_t bytes, offset;
  };
  /// A view's pointer and device, to be changed.
  struct View {
    void** data;
    DeviceKind* device;
    std::int64_t offset;
  };
  void add(void*& data, DeviceKind& device, std::int64_t bytes);

  std::vector<Piece> pieces_;
  std::vector<View> views_;
  std::map<std::pair<const void*, std::int64_t>, std::int64_t> offsets_;  ///< of what was seen
  std::int64_t bytes_ = 0, padding_ = 0;
};

/// What the weights of a model take on a device, whether it is an outline, lies on the host or lies there.
struct DeviceWeights {
  std::int64_t reserved = 0, padding = 0;  ///< WeightUpload::bytes() and padding()
  std::int64_t expert_tables = 0;          ///< ops::expert_table
  std::int64_t bytes() const { return reserved + expert_tables; }
};
DeviceWeights device_weights(const Model& model);

}  // namespace palimpsest
