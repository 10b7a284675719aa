#include "engine/engine_core.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/limits.h"
#include "engine/request.h"

// Where sequences are, and how requests begin and end. engine_pass.cc computes.

namespace palimpsest {
namespace {

double seconds_between(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

EngineCore::Request::Request(Submission s) : submission(std::move(s)) {
  choices.reserve(static_cast<std::size_t>(asked().choices));
  for (std::int64_t c = 0; c < asked().choices; ++c) {
    choices.emplace_back(*this, c);
    if (!submission.constraints.empty())
      choices.back().constraint = std::move(submission.constraints[static_cast<std::size_t>(c)]);
  }
  usage.prompt_tokens = prompt();
}

EngineCore::EngineCore(PassRunner& runner, SequenceCache& cache, const EngineOptions& options,
                       std::function<EngineClock::time_point()> now)
    : runner_(runner),
      cache_(cache),
      options_(options),
      now_(std::move(now)),
      total_units_(cache.pool().free_units()) {
  PALIMPSEST_CHECK(options.ubatch >= options.sequences + kSmallestPass,
                   "a pass has room for every answer and a piece of a prompt");
  update_gauges();
}
EngineCore::~EngineCore() = default;

// -- requests ---------------------------------------------------------------------------------

void EngineCore::submit(Submission submission) {
  if (!submission.request.pictures.empty()) runner_.pictures()->known().add(submission.request.pictures);
  requests_.push_back(std::make_unique<Request>(std::move(submission)));
  enqueue(requests_.back()->choices.front());
}

void EngineCore::watch(RequestId id, const WatchOptions& options, WatchHandler handler) {
  watch_.add(id, options, std::move(handler));
  const bool there = std::any_of(requests_.begin(), requests_.end(),
                                 [&](const auto& request) { return request->submission.id == id; });
  if (!there) watch_.ended(id);
}

void EngineCore::enqueue(Choice& choice) {
  if (choice.state == Choice::State::kUnborn) {
    choice.order = ++arrivals_;
    shares_.enter(choice.request.asked().user);
  }
  choice.state = Choice::State::kWaiting;
  choice.slot = -1;
  choice.sampler.reset();
  waiting_.push_back(&choice);
}

void EngineCore::cancel(RequestId id, std::string_view why) {
  for (const auto& request : requests_) {
    if (request->submission.id == id) end_request(*request, FinishReason::kCancelled, why);
  }
  forget_ended();
}

void EngineCore::cancel_all(std::string_view why) {
  for (const auto& request : requests_) end_request(*request, FinishReason::kCancelled, why);
  forget_ended();
}

void EngineCore::fail_all(std::string_view why) {
  for (Choice* choice : running_) {
    if (!choice->running()) continue;
    cache_.drop(choice->slot);
    choice->slot = -1;
  }
  for (const auto& request : requests_)
    end_request(*request, FinishReason::kError, why, ErrorCode::kInternal);
  forget_ended();
}

void EngineCore::expire() {
  const auto now = now_();
  for (const auto& request : requests_) {
    if (request->deaf) end_request(*request, FinishReason::kCancelled, "its listener failed");
    const auto& deadline = request->asked().deadline;
    if (deadline && now >= *deadline)
      end_request(*request, FinishReason::kDeadline, "the request's deadline has passed");
  }
  forget_ended();
}

bool EngineCore::tell(Request& request, const EngineEvent& event) {
  if (request.deaf) return true;
  try {
    return request.submission.on_event(event);
  } catch (const std::exception& error) {
    log::warning("request {}: its listener threw '{}'; the request is cancelled",
                 request.submission.id, error.what());
  } catch (...) {
    log::warning("request {}: its listener threw; the request is cancelled", request.submission.id);
  }
  request.deaf = true;
  return true;
}

void EngineCore::end_choice(Choice& choice, FinishReason reason, std::string text, ErrorCode code,
                            std::int32_t stop_id) {
  if (choice.ended()) return;
  if (choice.slot >= 0) cache_.close(choice.slot);
  choice.slot = -1;
  if (choice.suspended) suspended_bytes_ -= choice.suspended->bytes();
  choice.suspended.reset();
  Request& request = choice.request;
  if (choice.state != Choice::State::kUnborn) shares_.leave(request.asked().user);
  choice.state = Choice::State::kEnded;
  choice.constraint.reset();
  if (choice.mask) choice.mask->unwanted = true;
  choice.mask.reset();
  choice.sampler.reset();
  choice.allowed = {};
  ++metrics_.choices_ended[static_cast<std::size_t>(reason)];
  tell(request, ChoiceEvent{choice.index, reason, stop_id, code, std::move(text)});
  if (++request.ended < static_cast<std::int64_t>(request.choices.size())) return;

  const auto now = now_();
  request.usage.total_seconds = seconds_between(request.submission.submitted, now);
  if (!request.started) request.usage.queue_seconds = request.usage.total_seconds;
  ++metrics_.finished;
  if (last_end_) {
    const double gap = seconds_between(*last_end_, now);
    seconds_per_end_ = seconds_per_end_ == 0 ? gap : 0.8 * seconds_per_end_ + 0.2 * gap;
  }
  last_end_ = now;
  tell(request, FinishedEvent{request.usage});
  watch_.ended(request.submission.id);
  if (!request.asked().pictures.empty()) runner_.pictures()->known().remove(request.asked().pictures);
}

void EngineCore::end_request(Request& request, FinishReason reason, std::string_view text,
                             ErrorCode code) {
  for (Choice& choice : request.choices) end_choice(choice, reason, std::string(text), code);
}

/// Takes away what has ended. Between end_choice() and this, pointers to choices stay valid.
void EngineCore::forget_ended() {
  const auto gone = [](const Choice* choice) { return choice->ended(); };
  std::erase_if(waiting_, gone);
  std::erase_if(running_, gone);
  std::erase_if(requests_, [](const auto& request) {
    return request->ended == static_cast<std::int64_t>(request->choices.size());
  });
  if (!requests_.empty()) return;
  last_end_.reset();  // a pause says nothing about how fast requests end
  if (runner_.pictures()) {  // nor does anybody need rows of pictures
    runner_.pictures()->begin_round();
    (void)runner_.work_on_pictures();
  }
}

// -- where sequences are ----------------------------------------------------------------------

Lane EngineCore::lane(const Choice& choice) const {
  const EngineRequest& asked = choice.request.asked();
  Lane lane{.priority = asked.priority,
            .user = asked.user,
            .user_served = shares_.served(asked.user),
            .order = choice.order,
            .suspended = choice.begun,
            .served = choice.served};
  if (choice.slot >= 0)
    lane.remaining =
        std::max<std::int64_t>(0, choice.request.prompt() - cache_.length(choice.slot));
  return lane;
}

std::vector<Lane> EngineCore::lanes(const std::vector<Choice*>& choices) const {
  std::vector<Lane> lanes;
  lanes.reserve(choices.size());
  for (const Choice* choice : choices) lanes.push_back(lane(*choice));
  return lanes;
}

/// Units that a running sequence holds or will hold for its prompt and next token. Choices after
/// the first share the whole blocks of the prompt.
std::int64_t EngineCore::units_taken(const Choice& choice) const {
  const std::int64_t prompt = choice.request.prompt();
  const std::int64_t units = cache_.units_for(std::max(cache_.length(choice.slot), prompt) + 1);
  const std::int64_t block = cache_.pool().options().block_tokens;
  return choice.index == 0 ? units : units - cache_.units_for(prompt / block * block);
}

/// Whether a waiting sequence fits beside those that run, so that it need not step back at once.
bool EngineCore::has_room(const Choice& choice) const {
  if (running_.empty() || cache_.pool().row_bytes() == 0) return true;
  // The others go on growing: one block each, so that nobody begins just to step back.
  auto units = static_cast<std::int64_t>(running_.size());
  for (const Choice* other : running_) units += units_taken(*other);
  const auto length =
      choice.request.prompt() + static_cast<std::int64_t>(choice.written.size()) + 1;
  return units + cache_.units_for(length) <= total_units_;
}

void EngineCore::begin_waiting() {
  while (const auto next = next_to_begin(lanes(waiting_))) {
    Choice& choice = *waiting_[*next];
    if (cache_.pool().free_slots() > 0 && has_room(choice)) {
      if (!begin(choice)) return;
      continue;
    }
    if (running_.empty()) return;
    Choice& last = *running_[first_to_step_back(lanes(running_))];
    if (!outranks(lane(choice), lane(last))) return;
    step_back(last);
  }
}

bool EngineCore::begin(Choice& choice) {
  Request& request = choice.request;
  const EngineRequest& asked = request.asked();
  std::optional<std::int32_t> slot;
  if (choice.suspended) {
    const std::int64_t bytes = choice.suspended->bytes();
    slot = cache_.resume(*choice.suspended);
    if (!slot && !running_.empty()) return false;
    suspended_bytes_ -= bytes;
    choice.suspended.reset();
  }
  if (!slot) {
    const bool every_row = choice.index == 0 && (request.wants_every_row() || request.pools());
    slot = cache_.open(asked.prompt, asked.borders, !every_row);
    if (!slot) return false;
    request.pooled.clear();
    request.pooled_rows = 0;
  }
  // Like a user who comes, a sequence begins with the least that its neighbours were served.
  std::optional<double> least;
  for (const Choice* other : running_) {
    if (other->request.asked().user == asked.user && lane(*other).remaining > 0)
      least = least ? std::min(*least, other->served) : other->served;
  }
  choice.served = std::max(choice.served, least.value_or(0));
  std::erase(waiting_, &choice);
  take_slot(choice, *slot);
  if (!request.started) started(choice);
  return true;
}

void EngineCore::take_slot(Choice& choice, std::int32_t slot) {
  choice.slot = slot;
  choice.facts = nullptr;
  choice.state = Choice::State::kRunning;
  choice.begun = true;
  choice.sampler.emplace(choice.request.asked().sampling, runner_.vocab_size());
  running_.push_back(&choice);
}

void EngineCore::started(Choice& choice) {
  Request& request = choice.request;
  request.started = true;
  request.started_at = now_();
  request.usage.queue_seconds = seconds_between(request.submission.submitted, request.started_at);
  const PromptCounts counts = cache_.expected_counts(choice.slot);
  request.usage.prompt = counts;
  metrics_.prompts.cached_tokens += counts.cached_tokens;
  metrics_.prompts.replayed_tokens += counts.replayed_tokens;
  metrics_.prompts.computed_tokens += counts.computed_tokens;
  metrics_.queue_seconds.add(request.usage.queue_seconds);
  tell(request, StartedEvent{counts});
}

/// Out of the pool and into the queue: with its state if that may be kept, else to be computed
/// again, step by step as it was, which gives the same bits.
void EngineCore::step_back(Choice& choice) {
  if (cache_.length(choice.slot) >= choice.request.prompt()) cache_.unwant(choice.slot);
  if (suspended_bytes_ + cache_.suspended_bytes(choice.slot) <= options_.suspended_bytes) {
    choice.suspended = cache_.suspend(choice.slot);
    suspended_bytes_ += choice.suspended->bytes();
  } else {
    cache_.drop(choice.slot);
  }
  ++metrics_.preemptions;
  std::erase(running_, &choice);
  enqueue(choice);
}

/// The prompt is read: the other choices begin where it ends, those that find no slot from the
/// queue.
void EngineCore::fork_prompt(Choice& first) {
  for (Choice& choice : first.request.choices) {
    if (choice.state != Choice::State::kUnborn) continue;
    enqueue(choice);
    const auto slot = cache_.fork(first.slot);
    if (!slot) continue;
    waiting_.pop_back();
    take_slot(choice, *slot);
    choice.reached = first.request.prompt();
  }
}

// -- to look at -------------------------------------------------------------------------------

std::vector<SlotStatus> EngineCore::slots() const {
  std::vector<SlotStatus> slots(static_cast<std::size_t>(options_.sequences));
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i].slot = static_cast<std::int32_t>(i);
  for (const Choice* choice : running_) {
    if (choice->slot < 0) continue;
    const EngineRequest& asked = choice->request.asked();
    const std::int64_t prompt = choice->request.prompt();
    slots[static_cast<std::size_t>(choice->slot)] = {
        .request = choice->request.submission.id,
        .choice = choice->index,
        .user = asked.user,
        .prompt_tokens = prompt,
        .prompt_done = std::min(prompt, cache_.length(choice->slot)),
        .written_tokens = static_cast<std::int64_t>(choice->written.size()),
        .priority = asked.priority,
        .slot = choice->slot};
  }
  return slots;
}

double EngineCore::retry_after() const {
  return std::clamp(std::ceil(seconds_per_end_), 1.0, 600.0);
}

std::int64_t EngineCore::requests_waiting() const {
  return std::count_if(requests_.begin(), requests_.end(),
                       [](const auto& request) { return !request->started; });
}

std::int64_t EngineCore::prompt_tokens_waiting() const {
  std::int64_t tokens = 0;
  for (const auto& request : requests_) tokens += request->started ? 0 : request->prompt();
  return tokens;
}

void EngineCore::update_gauges() {
  const StatePool& pool = cache_.pool();
  metrics_.waiting = static_cast<std::int64_t>(waiting_.size());
  metrics_.waiting_tokens = prompt_tokens_waiting();
  metrics_.running = static_cast<std::int64_t>(running_.size());
  metrics_.suspended = std::count_if(waiting_.begin(), waiting_.end(),
                                     [](const Choice* choice) { return choice->begun; });
  metrics_.suspended_bytes = suspended_bytes_;
  metrics_.slots = options_.sequences;
  metrics_.pool_units = total_units_;
  metrics_.pool_units_free = pool.free_units();
  metrics_.snapshots = cache_.tree().marks();
}

}  // namespace palimpsest
