#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "palimpsest/constraint.h"
#include "palimpsest/sampler.h"
#include "palimpsest/session.h"

namespace palimpsest {

/// Why an answer ended.
enum class FinishReason : std::uint8_t {
  kStop,       ///< the model wrote a stop id
  kLength,     ///< max_tokens were written
  kContext,    ///< the session's context is full
  kCancelled,  ///< `cancel` was set; Engine: cancel(), stop()
  kDeadline,   ///< its time was over (Engine only)
  kError,      ///< it failed (Engine only)
};
inline constexpr std::size_t kFinishReasons = 6;
std::string_view finish_reason_name(FinishReason reason) noexcept;  ///< "stop", "length", ...

struct GenerateOptions {
  std::int64_t max_tokens =
      -1;  ///< -1: until a stop id or the end of the context; 0: read the prompt only
  std::vector<std::int32_t>
      stop_ids;  ///< end the answer; the one written is the last of GenerateResult::ids
  /// Positions of the whole sequence at which messages begin, ascending (message_borders): where
  /// Session::resume keeps snapshots first. None where `held` and prompt are no chat.
  std::vector<std::int64_t> borders;
  std::uint64_t sequence =
      0;  ///< names the random numbers, with the sampler's seed and the position
  /// Which tokens may come next; of one answer, from its first token on. Null: any. What it throws
  /// comes out of generate().
  TokenConstraint* constraint = nullptr;
  /// Looked at before every forward pass; may be set from any thread or from a signal handler.
  /// Null: never cancelled.
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(std::int64_t done, std::int64_t total)>
      on_prompt;  ///< prompt tokens that the session holds so far; it may be saved here
  std::function<void(std::int32_t id)> on_token;  ///< every id as it is written, stop ids included
};

struct GenerateResult {
  std::vector<std::int32_t> ids;  ///< what was written
  FinishReason finish = FinishReason::kStop;
  std::int64_t prompt_tokens = 0;  ///< the whole sequence before the answer
  /// Of these (PromptCounts); they sum to prompt_tokens unless cancelled.
  std::int64_t cached_tokens = 0, replayed_tokens = 0, computed_tokens = 0;
  double prefill_seconds = 0;  ///< for replayed and computed tokens
  double decode_seconds = 0;   ///< from the first id written to the last
  /// Forward passes behind decode_seconds: the first id needs none beyond the prompt.
  std::int64_t decode_passes = 0;
};

/// Continues the sequence `held` by `prompt`, then by sampled ids.
///
/// `held` is the caller's, and usually what the session holds; where it is not, the session is
/// brought there (Session::resume). On return, also by exception, it is what the session holds:
/// prompt and answer without the last id, which was written but not computed. A prompt may be empty
/// when `held` is not.
///
/// Throws Error{kUsage} for an empty sequence, Error{kInvalidRequest} for a prompt that does not fit into the context
/// (both numbers), or ids outside the vocabulary, before anything is computed; Error{kNumeric} as
/// Session::append and Sampler do.
GenerateResult generate(Session& session, Sampler& sampler, std::vector<std::int32_t>& held,
                        std::span<const std::int32_t> prompt, const GenerateOptions& options);

}  // namespace palimpsest
