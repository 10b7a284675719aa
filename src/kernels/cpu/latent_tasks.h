#pragma once

// How latent attention is cut into tasks: shared by the driver (latent_attention.cc) and the vector code behind it.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/latent_attention.h"
#include "kernels/op_args.h"

namespace palimpsest::cpu {

struct LatentShape {
  std::int64_t heads, dn, p, dv, r;
  std::int64_t width() const { return r + p; }
  std::int64_t dq() const { return dn + p; }
  static std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }
};

/// Query rows [begin, end) of one sequence and head, in the materialised form.
struct MaterializedTask {
  std::int64_t sequence, head;
  std::int64_t begin, end;  ///< relative to the sequence's first row in the batch
};

/// Up to kAbsorbedRows consecutive rows of one sequence. Everything about a row lies at index (head * rows + i) after the group's
/// first one.
struct AbsorbedGroup {
  std::int64_t sequence;
  std::int64_t batch_row;  ///< of its first row
  std::int64_t position;   ///< of its first row
  std::int64_t rows;
  std::int64_t query_row;    ///< first index into `queries`
  std::int64_t partial_row;  ///< first index into `partials`: splits x heads x rows of them
  std::int64_t length() const { return position + rows; }
  std::int64_t splits() const { return latent_splits(length()); }
  std::int64_t split_end(std::int64_t split) const {
    return split + 1 == splits() ? length() : latent_split_begin(split + 1);
  }
};

/// The groups that are computed together, and their intermediate results.
struct AbsorbedWave {
  const LatentAttentionArgs* args;
  LatentShape shape;
  const AbsorbedGroup* groups;
  std::int64_t num_groups;
  std::int64_t num_rows;  ///< of all groups
  float* queries;         ///< [num_rows * heads, padded(width)]: q with B_k folded in, zeros behind width
  float* partials;        ///< [(row, split) pairs * heads, padded(r)]: sum over the split of exp(score - max) latent
  float* max_sum;         ///< [pairs * heads, 2]: the split's maximum, and the sum of exp(score - max)
};

/// Scratch memory of one thread, handed out front to back.
class ScratchCursor {
 public:
  explicit ScratchCursor(std::byte* memory) : next_(memory) {}
  template <class T>
  T* take(std::int64_t n) {
    std::byte* start = next_;
    if (next_ != nullptr) next_ += bytes<T>(n);
    return reinterpret_cast<T*>(start);
  }
  template <class T>
  static std::int64_t bytes(std::int64_t n) {
    return (n * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
  }

 private:
  std::byte* next_;
};

/// Bytes of thread scratch that one task needs.
std::int64_t materialized_scratch_bytes(const LatentShape& shape, std::int64_t max_rows);
std::int64_t absorbed_scratch_bytes(const LatentShape& shape, std::int64_t wave_rows);

}  // namespace palimpsest::cpu
