#pragma once

#include <atomic>
#include <functional>
#include <span>

#include "base/thread_pool.h"
#include "convert/plan.h"

namespace palimpsest::convert {

/// The bytes of a weight's tensors, first to last, in pieces, to whoever takes them: a writer, or a comparison with what was written.
using Sink = std::function<void(std::span<const std::byte>)>;

/// Makes the bytes of a planned weight and gives them to `sink`, a block of rows at a time. The source's memory is given back to the
/// system on the way. Every bit depends on the weight alone, not on the number of threads. Throws Error{kInvalidFile} for values that the
/// new form cannot hold, kCancelled, and what `sink` throws.
void encode(const PlannedWeight& weight, const formats::Checkpoint& source, base::ThreadPool& pool,
            const std::atomic<bool>* cancelled, const Sink& sink);

/// Gives `bytes` to `sink` in pieces of a few megabytes, between which a wish to stop is heard.
void in_pieces(std::span<const std::byte> bytes, const std::atomic<bool>* cancelled, const Sink& sink);

/// Throws Error{kCancelled} when the flag is set.
void check_cancelled(const std::atomic<bool>* cancelled);

/// Rows of `cols` numbers that are handled at a time: about 16 MB of floats.
std::int64_t block_rows(std::int64_t cols);

}  // namespace palimpsest::convert
