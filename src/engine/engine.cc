#include "palimpsest/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine_core.h"
#include "engine/limits.h"
#include "engine/longer_passes.h"
#include "model/forward.h"
#include "model/forward_workspace.h"
#include "model/state_spec.h"
#include "model/vision/vision_tower.h"
#include "plan/device_plan.h"
#include "plan/memory_plan.h"
#include "runtime/picture.h"

namespace palimpsest {
namespace {

SessionOptions session_options(const EngineOptions& options) {
  return {.threads = options.threads,
          .context = options.context,
          .ubatch = options.ubatch,
          .cache_type = options.cache_type,
          .page_type = options.page_type,
          .cache_bytes = options.cache_bytes,
          .exact_reuse = options.exact,
          .cache_disk = options.cache_disk,
          .cache_disk_bytes = options.cache_disk_bytes,
          .picture_patches = options.picture_patches};
}

void require_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw make_error(ErrorCode::kUsage, "{} is {}, but must be from {} to {}", name, value, least,
                     most);
  }
}

/// What an engine is made from: options resolved, the plan, and the pool both describe.
struct Setup {
  Setup(const Model& model, EngineOptions given) : options(std::move(given)) {
    const ModelConfig& config = model.config();
    require_range("sequences", options.sequences, 1, 1024);
    require_range("queue_requests", options.queue_requests, 1, 1 << 20);
    require_range("most_choices", options.most_choices, 1, 1 << 12);
    require_range("most_logprobs", options.most_logprobs, 0, 1 << 10);
    if (options.tower && (options.picture_patches < 1 || options.picture_bytes < 1)) {
      throw make_error(ErrorCode::kUsage, "picture_patches and picture_bytes are {} and {}, but must be 1 or more where there is a tower", options.picture_patches, options.picture_bytes);
    }
    if (options.queue_tokens < 1 || options.suspended_bytes < 0 || options.list_tokens < 0 ||
        !(options.pass_seconds > 0)) {
      throw make_error(ErrorCode::kUsage,
                       "queue_tokens, list_tokens, suspended_bytes and pass_seconds are {}, {}, {} "
                       "and {}, but may not be negative, nor queue_tokens and pass_seconds 0",
                       options.queue_tokens, options.list_tokens, options.suspended_bytes,
                       options.pass_seconds);
    }
    options.ubatch = engine_ubatch(options.ubatch, options.sequences);
    if (options.threads == 0) options.threads = base::ThreadPool::default_size();
    plan = plan_memory(model, session_options(options), memory_for(model),
                       options.sequences);
    options.context = plan.context;
    const DeviceKind where = model.device().kind();
    plan.workspace += longer_passes_bytes(model, options.ubatch, options.sequences, where);
    pool = pool_options(config, plan);
    if (options.list_tokens == 0) options.list_tokens = pool.tokens;
    if (options.list_tokens < options.context) {
      throw make_error(ErrorCode::kUsage, "list_tokens is {}, less than the context of {}",
                       options.list_tokens, options.context);
    }
    pool.tokens = std::min(pool.tokens, options.list_tokens);
    const StateSpec spec = state_spec(config, options.cache_type, options.page_type);
    plan.lists = list_bytes(spec, pool, plan, where);
    if (where == DeviceKind::kCpu) plan.cache += options.suspended_bytes;                        // in the host's memory everywhere
    if (where == DeviceKind::kCpu && plan.pictures > 0) plan.pictures += options.picture_bytes;  // pixels, likewise
  }

  EngineOptions options;
  MemoryPlan plan;
  StatePoolOptions pool;
};

Setup checked_setup(const Model& model, const EngineOptions& options) {
  if (model.is_outline()) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "'{}' was opened as an outline, without the values of its weights",
                     model.path().string());
  }
  Setup setup(model, options);
  // A tower that lies on the model's device is in the plan, and there already.
  require_memory(setup.plan, memory_for(model) + (options.tower ? options.tower->device_bytes() : 0));
  return setup;
}

/// `layer`, or for -1 the first layer that keeps pages (-1 where none does). Throws Error{kUsage}
/// for one that keeps none.
std::int64_t page_layer(const ModelConfig& config, std::int64_t layer) {
  std::int64_t first = -1;
  for (const StateEntry& entry : state_spec(config).entries) {
    if (entry.kind != StateKind::kPage) continue;
    if (first < 0) first = entry.layer;
    if (entry.layer == layer) return layer;
  }
  if (layer == -1) return first;
  throw make_error(ErrorCode::kUsage, "layer {} keeps no page", layer);
}

}  // namespace

std::int64_t longer_passes_bytes(const Model& model, std::int64_t ubatch, std::int64_t sequences, DeviceKind where) {
  const ModelConfig& config = model.config();
  const std::int64_t rows = ubatch + sequences * (kFewestRows - 1);  // of a pass that takes on what is left
  const std::int64_t more = forward_workspace_bytes(model, rows, sequences, sequences + logprob_rows(config.vocab_size, ubatch), where) -
                            forward_workspace_bytes(model, ubatch, sequences, score_rows(config, ubatch), where);
  return std::max<std::int64_t>(0, more);
}

void DurationHistogram::add(double seconds) {
  const auto at = std::lower_bound(bounds.begin(), bounds.end(), seconds) - bounds.begin();
  ++counts[static_cast<std::size_t>(at)];
  ++count;
  sum += seconds;
}

struct Engine::Impl {
  Impl(std::shared_ptr<const Model> model_in, const EngineOptions& options)
      : model(std::move(model_in)),
        setup(checked_setup(*model, options)),
        runner(make_model_runner(model, setup.options.threads, setup.plan.workspace,
                                 setup.options.activations, setup.options.tower)),
        states(state_spec(model->config(), setup.options.cache_type, setup.options.page_type), setup.pool, model->device()),
        cache(states, {.exact = setup.options.exact,
                       .disk = setup.options.cache_disk,
                       .disk_bytes = setup.options.cache_disk_bytes}),
        core(*runner, cache, setup.options) {
    core.when_mask_made([this] {
      const std::lock_guard lock(mutex);
      mask_made = true;
      wake.notify_one();
    });
    publish();
    thread = std::thread([this] { loop(); });
  }

  // -- the engine's thread --------------------------------------------------------------------

  struct Call {
    const std::function<void(SequenceCache&)>* function;
    std::promise<void> done;
  };

  struct Watch {
    RequestId request;
    WatchOptions options;
    WatchHandler handler;
  };

  void loop() {
    bool more = false;  // something to compute
    for (bool open = true; open;) {
      try {
        open = take_inbox(more);
        more = open && core.step();
      } catch (const std::exception& error) {
        // Nothing is known to throw here; if something does, the engine goes on without it.
        log::warning("the engine failed: {}", error.what());
        core.fail_all(error.what());
        more = false;
      }
      publish();
    }
  }

  /// Waits for work, and takes what came. False: stop.
  bool take_inbox(bool more) {
    std::vector<Submission> arrived;
    std::vector<RequestId> cancels;
    std::vector<Call*> called;
    std::vector<Watch> watched;
    bool over = false;
    {
      std::unique_lock lock(mutex);
      const auto wakes = [&] {
        return (more && !core.waits_for_masks()) || mask_made || !inbox.empty() ||
               !cancelled.empty() || !calls.empty() || !watches.empty() ||
               (stopping && !(more && EngineClock::now() < stop_at));
      };
      if (stopping)
        wake.wait_until(lock, stop_at, wakes);
      else
        wake.wait(lock, wakes);
      mask_made = false;
      arrived.swap(inbox);
      cancels.swap(cancelled);
      called.swap(calls);
      watched.swap(watches);
      // What came is counted as waiting until publish() says what became of it.
      taken_requests = inbox_requests;
      taken_tokens = inbox_tokens;
      over = stopping && (EngineClock::now() >= stop_at || !(more || !arrived.empty()));
      if (over) closed = true;
    }
    for (Submission& submission : arrived) core.submit(std::move(submission));
    for (Watch& w : watched) core.watch(w.request, w.options, std::move(w.handler));
    for (const RequestId id : cancels) core.cancel(id);
    for (Call* call : called) run(*call);
    if (over) core.cancel_all("the engine is stopping");
    return !over;
  }

  void run(Call& call) {
    try {
      (*call.function)(cache);
      call.done.set_value();
    } catch (...) {
      call.done.set_exception(std::current_exception());
    }
  }

  void publish() {
    auto now_slots = core.slots();
    const std::lock_guard lock(mutex);
    metrics = core.metrics();
    slots.swap(now_slots);
    retry_after = core.retry_after();
    waiting_requests = core.requests_waiting();
    waiting_tokens = core.prompt_tokens_waiting();
    inbox_requests -= taken_requests;
    inbox_tokens -= taken_tokens;
    taken_requests = taken_tokens = 0;
  }

  // -- other threads --------------------------------------------------------------------------

  RequestId submit(EngineRequest request, EventHandler on_event) {
    check_request(request, model->config().vocab_size, setup.options.context, setup.options);
    Submission s{.id = 0,
                 .request = std::move(request),
                 .on_event = std::move(on_event),
                 .constraints = {},
                 .submitted = EngineClock::now(),
                 .counted = nullptr};
    for (std::int64_t c = 0; s.request.constraint && c < s.request.choices; ++c)
      s.constraints.push_back(s.request.constraint(c));
    const auto tokens = static_cast<std::int64_t>(s.request.prompt.size());
    const std::lock_guard lock(mutex);
    if (stopping) throw UnavailableError();
    const std::int64_t requests = waiting_requests + inbox_requests,
                       held = waiting_tokens + inbox_tokens;
    if (requests >= setup.options.queue_requests || held + tokens > setup.options.queue_tokens) {
      ++refused;
      throw OverloadedError(
          fmt::format("the queue is full: {} requests with {} tokens wait, at most {} with {} may",
                      requests, held, setup.options.queue_requests, setup.options.queue_tokens),
          retry_after);
    }
    if (const std::int64_t pixels = picture_bytes(s.request.pictures); pixels > 0) {
      if (*pictures_held + pixels > setup.options.picture_bytes) {
        ++refused;
        throw OverloadedError(fmt::format("the pictures of requests hold {} bytes, these {} more, at most {} may be held",
                                          pictures_held->load(), pixels, setup.options.picture_bytes), retry_after);
      }
      *pictures_held += pixels;
      s.counted = std::shared_ptr<void>(nullptr, [held = pictures_held, pixels](void*) { *held -= pixels; });
    }
    s.id = ++last_id;
    ++inbox_requests;
    inbox_tokens += tokens;
    inbox.push_back(std::move(s));
    wake.notify_one();
    return last_id;
  }

  void cancel(RequestId id) {
    const std::lock_guard lock(mutex);
    if (closed || id == 0 || id > last_id) return;
    cancelled.push_back(id);
    wake.notify_one();
  }

  void watch(RequestId id, WatchOptions options, WatchHandler handler) {
    options.layer = page_layer(model->config(), options.layer);
    const std::lock_guard lock(mutex);
    if (closed || stopping) throw UnavailableError();
    watches.push_back({id, options, std::move(handler)});
    wake.notify_one();
  }

  void between_steps(const std::function<void(SequenceCache&)>& f) {
    Call call{.function = &f, .done = {}};
    auto done = call.done.get_future();
    {
      const std::lock_guard lock(mutex);
      if (closed || stopping) throw UnavailableError();
      calls.push_back(&call);
      wake.notify_one();
    }
    done.get();
  }

  void stop(std::chrono::milliseconds grace) {
    {
      const std::lock_guard lock(mutex);
      const auto at = EngineClock::now() + grace;
      stop_at = stopping ? std::min(stop_at, at) : at;
      stopping = true;
      wake.notify_one();
    }
    const std::lock_guard lock(join_mutex);
    if (!thread.joinable()) return;
    thread.join();
    core.stop_masks();
  }

  std::shared_ptr<const Model> model;
  Setup setup;
  std::unique_ptr<PassRunner> runner;
  StatePool states;
  SequenceCache cache;
  EngineCore core;  ///< of the engine's thread

  mutable std::mutex mutex;  ///< of everything below
  std::condition_variable wake;
  const std::shared_ptr<std::atomic<std::int64_t>> pictures_held = std::make_shared<std::atomic<std::int64_t>>(0);  ///< bytes of pixels
  std::vector<Submission> inbox;
  std::vector<RequestId> cancelled;
  std::vector<Call*> calls;
  std::vector<Watch> watches;
  /// Requests that came since the last publish(), and of these what the thread has taken over.
  std::int64_t inbox_requests = 0, inbox_tokens = 0, taken_requests = 0, taken_tokens = 0;
  std::int64_t waiting_requests = 0, waiting_tokens = 0;  ///< in the core at the last publish()
  RequestId last_id = 0;
  std::uint64_t refused = 0;
  bool stopping = false, closed = false, mask_made = false;
  EngineClock::time_point stop_at{};
  EngineMetrics metrics;
  std::vector<SlotStatus> slots;
  double retry_after = 1;

  std::mutex join_mutex;
  std::thread thread;
};

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Engine::~Engine() {
  stop(std::chrono::milliseconds(0));
}

MemoryPlan Engine::plan(const Model& model, const EngineOptions& options) {
  return Setup(model, options).plan;
}

RequestId Engine::submit(EngineRequest request, EventHandler on_event) {
  return impl_->submit(std::move(request), std::move(on_event));
}
void Engine::cancel(RequestId id) {
  impl_->cancel(id);
}
void Engine::stop(std::chrono::milliseconds grace) {
  impl_->stop(grace);
}
void Engine::between_steps(const std::function<void(SequenceCache&)>& f) {
  impl_->between_steps(f);
}

void Engine::watch(RequestId id, WatchOptions options, WatchHandler handler) {
  impl_->watch(id, options, std::move(handler));
}

EngineMetrics Engine::metrics() const {
  const std::lock_guard lock(impl_->mutex);
  EngineMetrics metrics = impl_->metrics;
  metrics.submitted = impl_->last_id;
  metrics.refused = impl_->refused;
  metrics.waiting += impl_->inbox_requests;
  metrics.waiting_tokens += impl_->inbox_tokens;
  return metrics;
}
std::vector<SlotStatus> Engine::slots() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->slots;
}

const Model& Engine::model() const {
  return *impl_->model;
}
const MemoryPlan& Engine::memory() const {
  return impl_->setup.plan;
}
const EngineOptions& Engine::options() const {
  return impl_->setup.options;
}

}  // namespace palimpsest
