#pragma once

#include <atomic>

#include "engine/engine_core.h"

// What EngineCore holds of a request and of each of its choices.

namespace palimpsest {

/// A mask that is made beside the passes, since it takes long. Its choice sits out until then.
struct EngineCore::Mask {
  std::shared_ptr<TokenConstraint> constraint;
  std::vector<std::int32_t> written;
  std::vector<std::uint32_t> allowed;
  bool limited = false;
  std::optional<Error> error;
  std::atomic<bool> made = false;      ///< set last, by who makes it: the rest belongs to it before
  std::atomic<bool> unwanted = false;  ///< its choice has ended
};

struct EngineCore::Choice {
  enum class State : std::uint8_t {
    kUnborn,   ///< waits for the first choice to read the prompt
    kWaiting,  ///< for a slot
    kRunning,  ///< holds `slot`
    kEnded,
  };

  Choice(Request& request_in, std::int64_t index_in) : request(request_in), index(index_in) {}

  Request& request;
  std::int64_t index;
  State state = State::kUnborn;
  std::optional<Sampler> sampler;  ///< while it runs: its scratch is as large as the vocabulary
  std::shared_ptr<TokenConstraint> constraint;
  std::shared_ptr<Mask> mask;  ///< of the next token; null: allow_soon() will do
  std::vector<std::uint32_t> allowed;
  const LogitFacts* facts = nullptr;  ///< of the next token, until the next pass
  /// All tokens of the answer. The sequence is prompt + written; its next token to compute is the
  /// one at its length, be it new or computed before and lost.
  std::vector<std::int32_t> written;

  std::int32_t slot = -1;
  std::optional<SequenceCache::Suspended> suspended;
  std::uint64_t order = 0;
  bool begun = false;
  double served = 0;         ///< Lane::served
  std::int64_t reached = 0;  ///< longest it ever was
  int failures = 0;          ///< passes that failed with it, since it last got further
  std::int64_t failed_at = -1;
  std::optional<EngineClock::time_point> last_token;
  bool sees = true;  ///< the pictures of its next rows are there

  bool running() const { return state == State::kRunning; }
  /// Was in a pass that failed, and is not past that place.
  bool suspect(std::int64_t length) const { return failures > 0 && length <= failed_at; }
  bool ended() const { return state == State::kEnded; }
};

struct EngineCore::Request {
  explicit Request(Submission s);

  Submission submission;
  std::vector<Choice> choices;
  std::int64_t ended = 0;  ///< of the choices
  bool started = false;
  bool deaf = false;  ///< its listener has thrown: it hears nothing more and is cancelled
  Usage usage;
  EngineClock::time_point started_at{};
  bool prompt_read = false;
  std::int64_t logprobs_told = 1;  ///< tokens of the prompt whose log-probabilities were told
  std::vector<double> pooled;      ///< sum of hidden states, or the last one
  std::int64_t pooled_rows = 0;

  const EngineRequest& asked() const { return submission.request; }
  std::int64_t prompt() const { return static_cast<std::int64_t>(asked().prompt.size()); }
  /// Logits of every row of the prompt are wanted: for its first choice, until it is read.
  bool wants_every_row() const { return asked().prompt_logprobs >= 0 && !prompt_read; }
  bool pools() const { return asked().pooling != Pooling::kNone; }
};

/// A token being chosen.
struct EngineCore::Draw {
  Choice* choice;
  TokenInfo token;
  std::optional<Error> error;
  bool later = false;  ///< the mask takes long
};

}  // namespace palimpsest
