#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace palimpsest {

/// Says which tokens may come next: a JSON schema, a grammar. One object belongs to one answer; it
/// is called by one thread at a time, which may be a different one each time (a worker of the
/// engine), once for each token, and must not call the engine. What it throws ends its answer.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// `written`: the answer so far: empty at first, then one id more with each call. `allowed`: id i
  /// is bit i % 32 of word i / 32, [(vocab_size + 31) / 32], all clear; bits beyond the vocabulary
  /// are not looked at. Sets those of the tokens that may come next and returns true; or returns
  /// false: any may come. To let the answer end, allow a stop id. When nothing is allowed the
  /// answer ends with an error.
  virtual bool allow(std::span<const std::int32_t> written, std::span<std::uint32_t> allowed) = 0;
  /// allow() where that is a matter of microseconds, for threads that others wait for. Nothing: it
  /// is not, and what `allowed` holds means nothing; then allow() is to be called, with the same
  /// arguments, where nobody waits.
  virtual std::optional<bool> allow_soon(std::span<const std::int32_t> written,
                                         std::span<std::uint32_t> allowed) {
    return allow(written, allowed);
  }
};

}  // namespace palimpsest
