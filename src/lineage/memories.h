#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/op_args.h"
#include "lineage/vectors.h"
#include "tensor/exec_context.h"

// The five memories of the line, with one head each, behind one interface. They run the ops that models run (ops::page_memory,
// ops::latent_append, ops::softmax_attention); nothing is computed here.

namespace palimpsest::lineage {

/// One write: S <- S diag(exp(g)), then `value` under `key`.
struct Write {
  Vector key;    ///< [K], of length 1
  Vector value;  ///< [V]
  Vector decay;  ///< [K], log decay of every key channel before this write, <= 0; empty: nothing is forgotten
  /// Log decay of memories that have one number a head. A gate of that kind cannot forget a part.
  float head_decay = 0;
};

struct MemoryKind {
  std::string_view name;
  bool list = false;  ///< keeps every pair; the others are pages
  PageDecay decay = PageDecay::kNone;
  PageWrite write = PageWrite::kPlain;
};

inline constexpr int kMemories = 5;
/// In the order of the line. The four pages are the policies of one recurrence.
inline constexpr std::array<MemoryKind, kMemories> kLine = {{
    {.name = "KV list", .list = true},
    {.name = "linear attention", .decay = PageDecay::kNone, .write = PageWrite::kPlain},
    {.name = "DeltaNet", .decay = PageDecay::kNone, .write = PageWrite::kDelta},
    {.name = "Gated DeltaNet", .decay = PageDecay::kHead, .write = PageWrite::kDelta},
    {.name = "KDA", .decay = PageDecay::kChannel, .write = PageWrite::kDelta},
}};

class Memory {
 public:
  virtual ~Memory() = default;
  /// Writes in order; every write strength (beta) is 1.
  virtual void write(const std::vector<Write>& writes) = 0;
  /// What is read under each of these keys [K]; changes nothing.
  virtual std::vector<Vector> read(const std::vector<Vector>& queries) = 0;
  /// What it holds now.
  virtual std::int64_t bytes() const = 0;
};

/// `capacity`: most pairs that will be written. A list compares keys so sharply that softmax picks one pair, and of pairs with the same key
/// the newest: each list row carries its position in one more key channel, for which a query asks a little (models have positional
/// encodings for that).
std::unique_ptr<Memory> make_memory(ExecContext& ctx, const MemoryKind& kind, std::int64_t key_dim, std::int64_t value_dim, std::int64_t capacity);

}  // namespace palimpsest::lineage
