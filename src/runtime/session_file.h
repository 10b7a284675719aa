#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "palimpsest/activations.h"
#include "palimpsest/model.h"
#include "palimpsest/session.h"
#include "runtime/sequence_cache.h"

// A sequence as a file: tokens, list rows, pages, convolution tails, logits, and the snapshots on
// its way.
//
//     header    128 bytes: magic, version, sizes, model fingerprint, counts, sampler, types, XXH3
//     tokens    I32 [tokens]
//     records   32 bytes a snapshot: position, first list row of its own, kind, canonical or not
//     fixed     pages, tails and logits of the sequence, then of each snapshot: fixed_bytes, or
//               border_bytes (pages in BF16) at multiples of kPageBorder where pages are rounded
//     rows      [computed, row_bytes] list rows, then those in which a snapshot differs
//     text      the owner's, of any form
//     footer    XXH3 of the five sections
//
// Little-endian; sections begin at multiples of 64. Everything is as the state pool holds it, so
// restoring is reading and copying.

namespace palimpsest {

/// Names a model: XXH3 (128 bits) of its configuration, of shape, role and stored form of every
/// weight, and of a sample of the numbers in them, so that models trained further from the same
/// start differ. Of routed experts at most 32,768 matrices are sampled, spread evenly: whether one
/// expert of a hundred thousand was changed alone may stay unseen.
using ModelFingerprint = std::array<std::uint64_t, 2>;
ModelFingerprint model_fingerprint(const Model& model);

/// What computed the memories of a session. Another form of activations rounds other numbers, so
/// what it would append belongs to no run there is.
struct SessionOrigin {
  ModelFingerprint model{};
  std::optional<Activations>
      activations;  ///< nothing where no weight is quantised: no form matters
};
SessionOrigin session_origin(const Model& model, Activations activations);

/// What parse_session finds: views into the bytes, all within bounds.
struct SessionImage {
  struct Snapshot {
    std::int64_t position = 0, rows_from = 0;
    MarkKind kind = MarkKind::kGrid;
    bool canonical = false;
    const std::byte* fixed = nullptr;  ///< [fixed_size(position)]
    const std::byte* rows = nullptr;   ///< [position - rows_from, row_bytes]
  };
  SessionOrigin origin;
  std::int64_t fixed_bytes = 0, row_bytes = 0, computed = 0;
  std::int64_t border_bytes = 0;     ///< 0: pages are not rounded
  std::vector<std::int32_t> tokens;  ///< the first `computed` are in the memories
  std::vector<Snapshot> snapshots;   ///< ascending, before `computed`
  const std::byte* fixed = nullptr;
  const std::byte* rows = nullptr;  ///< [computed, row_bytes]
  std::uint64_t sampler_seed = 0, sampler_sequence = 0;
  std::optional<DType> list_type;  ///< of the rows; nothing where the model has no lists
  std::string_view text;

  /// Bytes of pages, tails and logits after so many tokens.
  std::int64_t fixed_size(std::int64_t position) const {
    return border_bytes > 0 && position % kPageBorder == 0 ? border_bytes : fixed_bytes;
  }
};

/// Errors: kInvalidFile, with what is wrong, for bytes that are no session of this version, cut,
/// too long, or fail a checksum. `checked`, where given, hears of each piece of the bytes that has
/// been read, so that a mapping can let go of it.
Result<SessionImage> parse_session(
    std::span<const std::byte> bytes,
    const std::function<void(std::span<const std::byte>)>& checked = {});

/// Writes what the slot holds, and of the snapshots in memory on its way the most useful ones that
/// take at most `snapshot_bytes`. The file appears whole, after the disk has it, or the one before
/// stays; it is readable by its owner alone. Throws Error{kIo}.
void save_session(const std::filesystem::path& path, SequenceCache& cache, std::int32_t slot,
                  const SessionOrigin& origin, const SessionNote& note,
                  std::int64_t snapshot_bytes = kSavedSnapshotBytes);

/// What a slot and the snapshots on its way hold, kept while the cache goes on, so that another
/// thread can write it. Made, moved from and destroyed on the cache's thread, before the cache goes.
struct HeldSession {
  struct Snapshot {
    std::int64_t position = 0, rows_from = 0;
    MarkKind kind = MarkKind::kGrid;
    bool canonical = false;
    std::vector<std::byte> fixed, rows;
  };
  std::vector<std::int32_t> tokens;
  StateSnapshot state;  ///< list blocks are shared with the cache, pages are a copy
  std::vector<Snapshot> snapshots;
};
/// Nothing when the pool has no room for a copy of the slot's pages. Of snapshots at most
/// `snapshot_bytes` are copied, the most useful ones.
std::optional<HeldSession> hold_session(SequenceCache& cache, std::int32_t slot,
                                        std::int64_t snapshot_bytes = kSavedSnapshotBytes);
/// Writes what is held, as above. Where the pool lies in host memory any thread may, while the
/// cache goes on.
void save_session(const std::filesystem::path& path, const StatePool& pool,
                  const HeldSession& session, const SessionOrigin& origin,
                  const SessionNote& note);

/// A session file that was read and checked as far as that takes no cache. Any thread may make it.
class SessionFile {
 public:
  /// Throws Error: kIo (also for a link), kInvalidFile (parse_session), kInvalidRequest when it
  /// belongs to another model or form of activations.
  SessionFile(const std::filesystem::path& path, const SessionOrigin& origin);
  ~SessionFile();

  /// Makes `slot` what was saved, in place of what it holds (which is closed), and its snapshots
  /// part of the cache as far as there is room: copies of what is in memory. Nothing is changed
  /// before all is checked. Throws Error{kInvalidRequest} for another cache type or what does not
  /// fit, with both.
  SessionNote restore(SequenceCache& cache, std::int32_t slot) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

/// Both at once.
SessionNote load_session(const std::filesystem::path& path, SequenceCache& cache, std::int32_t slot,
                         const SessionOrigin& origin);

}  // namespace palimpsest
