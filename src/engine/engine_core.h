#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/task_thread.h"
#include "engine/memory_watch.h"
#include "engine/pass_runner.h"
#include "engine/scheduler.h"
#include "palimpsest/engine.h"
#include "runtime/sequence_cache.h"

namespace palimpsest {

using EngineClock = std::chrono::steady_clock;

/// A request as the engine knows it; its limits have been checked (check_request).
struct Submission {
  RequestId id = 0;
  EngineRequest request;
  EventHandler on_event;
  std::vector<std::unique_ptr<TokenConstraint>> constraints;  ///< one a choice, or none
  EngineClock::time_point submitted;
  std::shared_ptr<void> counted = nullptr;  ///< lives as long as the request
};

/// Throws what Engine::submit throws for a request by itself.
void check_request(const EngineRequest& request, std::int64_t vocab_size, std::int64_t context,
                   const EngineOptions& options);

/// The engine without its thread: takes requests, computes pass after pass, tells what happened.
/// One thread. Has no state that a failing pass, listener or constraint could leave behind: each
/// ends its own request, and the slot is free in the same step.
class EngineCore {
 public:
  /// `cache` is empty. `now` is looked at before and after each pass; tests give their own.
  EngineCore(PassRunner& runner, SequenceCache& cache, const EngineOptions& options,
             std::function<EngineClock::time_point()> now = EngineClock::now);
  ~EngineCore();

  void submit(Submission submission);
  void cancel(RequestId id, std::string_view why = "the request was cancelled");
  void cancel_all(std::string_view why);
  /// Ends everything with an error: after something went wrong that nobody expected.
  void fail_all(std::string_view why);

  /// As Engine::watch; the layer is known to have pages.
  void watch(RequestId id, const WatchOptions& options, WatchHandler handler);

  /// One pass over whatever there is to compute. False when there is nothing to do.
  bool step();
  bool idle() const { return requests_.empty(); }
  /// The last step computed nothing, and another one will not before a mask is made that takes
  /// long (TokenConstraint::allow_soon), or something comes in.
  bool waits_for_masks() const { return waits_for_masks_; }
  /// `f` is called by another thread whenever such a mask is made. Before the first step.
  void when_mask_made(std::function<void()> f) { mask_made_ = std::move(f); }
  /// `f` is not called any more; nothing else may be either.
  void stop_masks() { mask_thread_.reset(); }

  const EngineMetrics& metrics() const { return metrics_; }
  std::vector<SlotStatus> slots() const;
  /// Seconds until a place in the queue is likely free.
  double retry_after() const;
  std::int64_t prompt_tokens_waiting() const;
  std::int64_t requests_waiting() const;

 private:
  struct Choice;
  struct Request;
  struct Draw;
  struct Mask;
  /// The rows of one pass.
  struct Pass {
    std::vector<Choice*> choices;
    std::vector<std::int32_t> tokens, slots, logit_rows;
    std::vector<std::int64_t> cu_seqlens{0};
    std::vector<std::int64_t> first_logit;  ///< of each choice, in logit_rows
    std::vector<std::int32_t> overlay_rows;  ///< rows of pictures
    std::vector<float> overlay;
    std::vector<double> inverse;  ///< of each choice, as PassRunner::run_to_slots takes it
    std::int64_t prompt_rows = 0;
    bool hidden = false;
    bool every_row = false;  ///< more logits than a row a choice
  };

  // where a sequence is
  void expire();
  void enqueue(Choice& choice);
  void begin_waiting();
  bool begin(Choice& choice);
  void take_slot(Choice& choice, std::int32_t slot);
  void started(Choice& choice);
  bool has_room(const Choice& choice) const;
  std::int64_t units_taken(const Choice& choice) const;
  void step_back(Choice& choice);
  void fork_prompt(Choice& first);
  Lane lane(const Choice& choice) const;
  std::vector<Lane> lanes(const std::vector<Choice*>& choices) const;

  // pictures
  RequestId want_pictures();
  void work_on_pictures(RequestId who);

  // a pass
  bool assemble(Pass& pass);
  void add_answers(Pass& pass, const std::vector<Choice*>& candidates);
  void add_prompts(Pass& pass, const std::vector<Choice*>& candidates);
  void add(Pass& pass, Choice& choice, std::span<const std::int32_t> ids);
  bool run(Pass& pass);
  double inverse_temperature(const Choice& choice, std::int64_t rows) const;
  void watch_rows(const Pass& pass);
  void failed(const Pass& pass, std::string_view why);
  void take_rows(const Pass& pass, const PassRunner::Rows& rows, std::size_t n);
  void tell_prompt(Choice& choice, std::span<const float> logits, std::int64_t count);
  void pool_hidden(Choice& choice, const Tensor& hidden, std::int64_t first, std::int64_t count);

  // tokens
  void draw_ready();
  void prompt_read(Choice& choice);
  void draw(Draw& d) const;
  void make_mask(Choice& choice);
  void take_token(Draw& d);

  // ends
  bool tell(Request& request, const EngineEvent& event);
  void end_choice(Choice& choice, FinishReason reason, std::string text = {},
                  ErrorCode code = ErrorCode::kInternal, std::int32_t stop_id = -1);
  void end_request(Request& request, FinishReason reason, std::string_view text,
                   ErrorCode code = ErrorCode::kInternal);
  void forget_ended();
  void update_gauges();

  PassRunner& runner_;
  SequenceCache& cache_;
  EngineOptions options_;
  std::function<EngineClock::time_point()> now_;
  std::int64_t total_units_;  ///< of the pool
  std::list<std::unique_ptr<Request>> requests_;
  std::vector<Choice*> waiting_, running_;  ///< in no order
  UserShares shares_;
  PassBudget budget_;
  MemoryWatch watch_;
  EngineMetrics metrics_;
  std::uint64_t arrivals_ = 0;
  std::int64_t suspended_bytes_ = 0;
  std::optional<EngineClock::time_point> last_end_;
  double seconds_per_end_ = 0;
  bool waits_for_masks_ = false;
  std::function<void()> mask_made_;
  std::optional<base::TaskThread> mask_thread_;  ///< once there is such a mask
};

}  // namespace palimpsest
