#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "palimpsest/constraint.h"
#include "palimpsest/error.h"
#include "palimpsest/generate.h"
#include "palimpsest/memory_view.h"
#include "palimpsest/model.h"
#include "palimpsest/sampler.h"
#include "palimpsest/session.h"

// Many requests at once over one model: what a server puts HTTP in front of (docs/serving.md).

namespace palimpsest {

class SequenceCache;
struct Picture;
class VisionTower;

/// Names a request; an engine uses no number twice, and not 0.
using RequestId = std::uint64_t;

// -- what is asked ------------------------------------------------------------------------------

/// An embedding instead of an answer: hidden states after the final norm, [hidden_size].
enum class Pooling : std::uint8_t {
  kNone,  ///< an answer
  kLast,  ///< of the prompt's last token
  kMean,  ///< the mean over the prompt's tokens, summed in double precision in their order
};

struct EngineRequest {
  std::vector<std::int32_t> prompt;   ///< at least one id
  std::vector<std::int64_t> borders;  ///< positions in the prompt where messages begin, ascending:
                                      ///< where an edit is likely, snapshots are kept first
  SamplingParams sampling;            ///< choice c draws the numbers (seed, c, position)
  std::int64_t max_tokens = -1;  ///< of each choice; -1: until a stop id or the end of the context;
                                 ///< 0: the prompt is read and nothing written
  std::vector<std::int32_t> stop_ids;  ///< end an answer; the one written is its last token
  std::int64_t choices = 1;            ///< answers to the one prompt (n)
  /// Log-probabilities of the tokens written: -1 none, k >= 0 of the token and the k most likely
  /// ones, of the model's own distribution, before bias, penalties, temperature and constraint.
  std::int64_t logprobs = -1;
  /// The same for the tokens of the prompt. All of it is then computed, whatever is known of it.
  std::int64_t prompt_logprobs = -1;
  Pooling pooling = Pooling::kNone;  ///< else no answer: one choice, nothing is written
  /// Makes the constraint of each choice; empty: none. Called by submit() for 0, 1, ..., choices
  /// - 1.
  std::function<std::unique_ptr<TokenConstraint>(std::int64_t choice)> constraint;
  /// What the negative ids of the prompt name (runtime/picture.h), in any order. Their rows are computed where the prompt is not found computed, between
  /// passes, so that others go on.
  std::vector<std::shared_ptr<const Picture>> pictures;

  std::int64_t priority = 0;  ///< higher ones go first, whatever that means for lower ones
  std::uint64_t user = 0;     ///< requests of equal priority share by users first (a hash of a key)
  std::optional<std::chrono::steady_clock::time_point> deadline;  ///< ends with reason deadline
};

// -- what is told -------------------------------------------------------------------------------

/// The request has left the queue: its prompt is being read. Once, before all others but a
/// FinishedEvent.
struct StartedEvent {
  PromptCounts prompt;  ///< what of the prompt was found computed, and what is to be computed
};

/// After each pass over tokens of the prompt.
struct ProgressEvent {
  std::int64_t done = 0, total = 0;  ///< tokens of the prompt held, and of all of it
};

struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;  ///< natural
};

/// A token with what the model gave it.
struct TokenInfo {
  std::int32_t id = 0;
  float logprob = 0;              ///< only if asked for
  std::vector<TokenLogprob> top;  ///< the most likely ones, best first (lower id on ties)
};

/// If asked for: tokens of the prompt from `first` >= 1 on; nothing precedes the first of all, so
/// it has none. Comes before the ProgressEvent of the same pass.
struct PromptLogprobsEvent {
  std::int64_t first = 0;
  std::span<const TokenInfo> tokens;  ///< valid during the call
};

/// Tokens of an answer, stop id included. A token is told in the pass that chose it.
struct TokensEvent {
  std::int64_t choice = 0;
  std::span<const TokenInfo> tokens;  ///< at least one; valid during the call
};

struct EmbeddingEvent {
  std::span<const float> values;  ///< [hidden_size], not scaled to length 1; valid during the call
};

/// A choice has ended; nothing more is told of it.
struct ChoiceEvent {
  std::int64_t choice = 0;
  FinishReason reason = FinishReason::kStop;
  std::int32_t stop_id = -1;              ///< the stop id written, if that was the reason
  ErrorCode code = ErrorCode::kInternal;  ///< with reason error
  std::string text;                       ///< for people: with error, deadline and cancelled
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  PromptCounts prompt;              ///< as in StartedEvent
  std::int64_t written_tokens = 0;  ///< of all choices
  double queue_seconds = 0;         ///< from submit() until it started
  double prompt_seconds = 0;        ///< from there until the prompt was read
  double total_seconds = 0;         ///< from submit() to the end
};

/// Once, and the last of a request: all its choices have ended.
struct FinishedEvent {
  Usage usage;
};

using EngineEvent = std::variant<StartedEvent, ProgressEvent, PromptLogprobsEvent, TokensEvent,
                                 EmbeddingEvent, ChoiceEvent, FinishedEvent>;

/// Is called on the engine's thread between two passes of the model, one event at a time, with no
/// lock held: every request waits for it. So it must not wait: hand over and return. It may call
/// submit(), cancel(), metrics() and slots(), not stop() or between_steps().
///
/// The answer counts after a TokensEvent only: false ends that choice with reason stop, for stops
/// that only the listener can see (strings). What it throws cancels the request, of which it then
/// hears nothing more.
using EventHandler = std::function<bool(const EngineEvent&)>;

/// submit() found the queue full: HTTP 429.
class OverloadedError : public Error {
 public:
  OverloadedError(std::string text, double retry_after_seconds)
      : Error(ErrorCode::kOutOfMemory, std::move(text)), retry_after_(retry_after_seconds) {}
  /// When a place is likely free, from how fast requests ended lately: 1 to 600 seconds.
  double retry_after_seconds() const noexcept { return retry_after_; }

 private:
  double retry_after_;
};

/// The engine is stopping: HTTP 503.
class UnavailableError : public Error {
 public:
  UnavailableError() : Error(ErrorCode::kCancelled, "the engine is stopping") {}
};

// -- the engine ---------------------------------------------------------------------------------

struct EngineOptions {
  int threads = 0;             ///< 0: one a physical core
  std::int64_t sequences = 8;  ///< computed at once
  std::int64_t context = 0;    ///< most tokens of a sequence; 0: as SessionOptions::context
  std::int64_t ubatch = 512;   ///< most rows of a pass; at least sequences + 68 are taken
  /// Tokens that the lists of all sequences together hold; 0: sequences * context, with which no
  /// sequence ever has to step back for another. At least one context.
  std::int64_t list_tokens = 0;
  DType cache_type = DType::kBF16, page_type = DType::kF32;  ///< as of SessionOptions
  Activations activations = kDefaultActivations;
  std::int64_t cache_bytes = 256 << 20;  ///< for snapshots
  std::filesystem::path cache_disk;      ///< folder for snapshots beyond cache_bytes; empty: none
  std::int64_t cache_disk_bytes = 0;
  /// Answers have the very bits of a run alone on an empty engine: neither what runs beside nor
  /// what ran before can change one. Without it they agree within rounding, and a conversation goes
  /// on from its last token instead of reading the last answer again.
  bool exact = true;

  std::int64_t queue_requests = 256;    ///< that wait, beyond which submit() refuses
  std::int64_t queue_tokens = 8 << 20;  ///< of their prompts
  std::int64_t most_choices = 128;      ///< of one request
  std::int64_t most_logprobs = 20;      ///< of one token
  /// While answers are being written, a pass takes on only so many rows of prompts that it is
  /// expected to last no longer than this: the wait between two tokens. At least one piece of 64
  /// rows rides along.
  double pass_seconds = 0.1;
  std::shared_ptr<const VisionTower> tower;  ///< of the model; null: requests have no pictures
  std::int64_t picture_patches = 0;          ///< of the largest picture that a request may have; memory is planned for it
  std::int64_t picture_bytes = 256 << 20;    ///< of the pixels of all pictures in requests that have not ended
  std::int64_t suspended_bytes = 256 << 20;  ///< for states of sequences that had to step back;
                                             ///< beyond it they are computed again
};

/// Counts of durations; bounds[i] are seconds.
struct DurationHistogram {
  static constexpr std::array<double, 15> bounds = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
  std::array<std::uint64_t, 16> counts{};  ///< [i]: above bounds[i - 1], at most bounds[i]; the
                                           ///< last: beyond all
  std::uint64_t count = 0;
  double sum = 0;
  void add(double seconds);
};

/// All counters count from the engine's start.
struct EngineMetrics {
  // requests
  std::uint64_t submitted = 0;                                ///< taken into the queue
  std::uint64_t refused = 0;                                  ///< the queue was full
  std::uint64_t finished = 0;                                 ///< FinishedEvents
  std::array<std::uint64_t, kFinishReasons> choices_ended{};  ///< by FinishReason
  std::uint64_t nonfinite = 0;                                ///< choices that ended so
  // now
  std::int64_t waiting = 0;         ///< sequences that hold no slot, and requests not looked at yet
  std::int64_t waiting_tokens = 0;  ///< of the prompts of requests in the queue
  std::int64_t running = 0;         ///< sequences that hold a slot
  std::int64_t suspended = 0;       ///< of the waiting ones, those that had begun
  std::int64_t suspended_bytes = 0;
  std::int64_t slots = 0;
  std::int64_t pool_units = 0, pool_units_free = 0;  ///< blocks of list rows, pieces of snapshots
  std::int64_t snapshots = 0;
  // tokens
  PromptCounts prompts;  ///< of requests that have started
  std::uint64_t written_tokens = 0;
  std::uint64_t prompt_rows = 0;      ///< computed in prompts
  std::uint64_t answer_rows = 0;      ///< computed in answers
  std::uint64_t recomputed_rows = 0;  ///< of both, because a sequence had to step back
  // passes
  std::uint64_t passes = 0, failed_passes = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t slow_masks = 0;  ///< of constraints, made beside the passes since they take long
  std::uint64_t pictures = 0;  ///< read by the tower
  double picture_seconds = 0;  ///< of the tower; within step_seconds.sum where a pass was run too
  double forward_seconds = 0;  ///< within step_seconds.sum; the rest is scheduling, sampling
                               ///< and listeners
  DurationHistogram step_seconds;
  DurationHistogram queue_seconds;        ///< from submit() until a request started
  DurationHistogram first_token_seconds;  ///< from submit() to a request's first token
  DurationHistogram token_seconds;        ///< between two tokens of a choice
};

/// What a slot is doing, without anybody's text.
struct SlotStatus {
  RequestId request = 0;  ///< 0: free
  std::int64_t choice = 0;
  std::uint64_t user = 0;
  std::int64_t prompt_tokens = 0, prompt_done = 0, written_tokens = 0;
  std::int64_t priority = 0;
  std::int32_t slot = 0;  ///< of the StatePool
};

/// Owns the one thread that runs the model, and computes all requests together: each pass takes the
/// next token of every answer and pieces of prompts. docs/serving.md says how it chooses.
///
/// All methods may be called from any thread unless they say otherwise.
class Engine {
 public:
  /// Throws as Session does: Error{kOutOfMemory} before anything is allocated, Error{kUsage}.
  explicit Engine(std::shared_ptr<const Model> model, const EngineOptions& options = {});
  /// stop(0).
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// What an engine with these options would take (context resolved; `cache` includes
  /// suspended_bytes). Allocates nothing.
  static MemoryPlan plan(const Model& model, const EngineOptions& options);

  /// Hands over a request; returns at once. Events may come before it returns. Throws, and then no
  /// event comes: Error{kInvalidRequest} for a prompt that is empty, does not fit into the context
  /// (both numbers) or has ids outside of the vocabulary or of pictures that are not there, and
  /// for pictures that are too large, Error{kUsage} for parameters out of range
  /// (as Sampler; choices, logprobs, borders), OverloadedError, UnavailableError after stop()
  /// began, and what `constraint` throws.
  RequestId submit(EngineRequest request, EventHandler on_event);

  /// Ends the request within one pass with reason cancelled, wherever it is. Does nothing for
  /// requests that have ended. Returns at once.
  void cancel(RequestId id);

  /// Takes no more requests, lets those that are there go on for at most `grace`, cancels the rest
  /// with a notice, and ends the thread. On return no event will come any more. May be called
  /// twice; the shorter grace counts.
  void stop(std::chrono::milliseconds grace);

  /// A copy of the last pass's state.
  EngineMetrics metrics() const;
  std::vector<SlotStatus> slots() const;

  /// Runs `f` on the engine's thread between two passes and waits for it: to look into memories, to
  /// write or read session files. What it throws comes out here. UnavailableError after stop()
  /// began.
  void between_steps(const std::function<void(SequenceCache&)>& f);

  /// Shows `handler` what the request's first choice does to its memories, pass by pass, until the
  /// request or the handler ends it (docs/web.md). A request that is not there ends at once. What
  /// is computed stays the same, bit for bit. Returns at once. Throws Error{kUsage} for a layer
  /// that keeps no page, UnavailableError after stop() began.
  void watch(RequestId id, WatchOptions options, WatchHandler handler);

  const Model& model() const;
  const MemoryPlan& memory() const;
  const EngineOptions& options() const;  ///< with ubatch, context, threads and list_tokens resolved
  std::int64_t context() const { return options().context; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace palimpsest
