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

/// (row, key) pairs of the first `rows` rows after `past` tokens.
inline std::int64_t attended_pairs(std::int64_t past, std::int64_t rows) { return rows * past + rows * (rows + 1) / 2; }

/// The form of `rows` rows after `past` tokens where the caller leaves the choice (LatentForm::kAuto): absorbed for a few rows, and for
/// more as long as it takes fewer multiply-adds. Per head, these are
///     absorbed:      pairs (r + p + r)     + rows r (dn + dv)            scores and sums over latents; queries and outputs folded
///     materialised:  pairs (dn + p + dv)   + (past + rows) r (dn + dv)   scores and sums over values; keys and values of every token
/// With r = 512 and heads of 128 + 128 the absorbed form wins up to some 170 rows over a long past, and never without one. The choice
/// looks at nothing but the sequence's own rows, so batch mates and threads change no bit.
inline bool prefers_absorbed(const LatentShape& s, std::int64_t past, std::int64_t rows) {
  if (rows <= kAbsorbedRows) return true;
  const double more_a_pair = static_cast<double>(2 * s.r - s.dn - s.dv), saved_a_token = static_cast<double>(s.r * (s.dn + s.dv));
  return static_cast<double>(attended_pairs(past, rows)) * more_a_pair < static_cast<double>(past) * saved_a_token;
}

/// With LatentForm::kByRows, of more than kAbsorbedRows rows those behind the last multiple of this that the sequence has reached are absorbed,
/// the others materialised. Passes of a prompt end at multiples of it or at the prompt's end (Batch::fixed_forms), so a row's form depends on
/// its position and that end alone, and the last few rows behind a long past do not expand it.
inline constexpr std::int64_t kLatentFormGrid = 64;

/// Of the materialised form: the columns of the widest target's panel, and query rows that go by one panel after the other.
inline constexpr std::int64_t kLatentLargestPanel = 32;
inline constexpr std::int64_t kLatentRowGroup = 64;

/// Query rows [begin, end) of one sequence and head, in the materialised form. At most materialized_task_rows() of them.
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

/// Most rows of a task, 64 to 2048, so that its scratch memory stays below the 4 MiB that the memory plan counts for a thread wherever 64 rows
/// allow. Every task makes the keys and values of all tokens before it once: with N rows that is r (dn + dv) / (N (dn + p + dv)) of the
/// attention's own work, 410 / N at r = 512 and heads of 128 + 64 and 128.
std::int64_t materialized_task_rows(const LatentShape& shape);

/// Bytes of thread scratch that one task needs.
std::int64_t materialized_scratch_bytes(const LatentShape& shape, std::int64_t max_rows);
std::int64_t absorbed_scratch_bytes(const LatentShape& shape, std::int64_t wave_rows);

}  // namespace palimpsest::cpu
