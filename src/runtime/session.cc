#include "palimpsest/session.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "base/cpu_cores.h"
#include "base/error.h"
#include "model/forward.h"
#include "model/state_spec.h"
#include "plan/memory_plan.h"
#include "machine/memory.h"
#include "runtime/picture.h"
#include "runtime/sequence_cache.h"
#include "runtime/session_file.h"

namespace palimpsest {
namespace {

MemoryPlan checked_plan(const Model& model, const SessionOptions& options) {
  if (model.is_outline()) throw make_error(ErrorCode::kInvalidRequest, "'{}' was opened as an outline, without the values of its weights", model.path().string());
  const MemoryPlan plan = Session::plan(model, options);
  require_memory(plan, memory_for(model));
  return plan;
}

/// Passes of long_ubatch rows that make a sequence a long one.
constexpr std::int64_t kLongPasses = 4;

/// Work of a pass that does not grow with its rows: making keys and values of what came before, unpacking experts.
bool gains_from_long_passes(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [](const LayerSpec& layer) { return layer.mixer == Mixer::kLatentAttention || layer.ffn == Ffn::kMixtureOfExperts; });
}

std::shared_ptr<const VisionTower> tower_for(const Model& model) {
  auto tower = VisionTower::load(model.path(), std::nullopt, model.device());
  if (!tower) throw make_error(ErrorCode::kUnsupported, "{}: the model has no vision tower: it reads no pictures", model.path().string());
  check_tower(*tower, model.config());
  return tower;
}

}  // namespace

struct Session::Impl {
  Impl(std::shared_ptr<const Model> model_in, const SessionOptions& options)
      : model(std::move(model_in)),
        plan(checked_plan(*model, options)),
        ubatch(options.ubatch),
        long_ubatch(model->device().kind() == DeviceKind::kCpu && gains_from_long_passes(model->config()) ? options.long_ubatch : 0),
        saved_snapshot_bytes(options.saved_snapshot_bytes),
        planned_patches(options.picture_patches),
        exact(options.exact_reuse),
        context(options.threads > 0 ? options.threads : base::ThreadPool::default_size(), model->device()),
        states(state_spec(model->config(), options.cache_type, options.page_type), pool_options(model->config(), plan), model->device()),
        cache(states, {.exact = options.exact_reuse, .disk = options.cache_disk, .disk_bytes = options.cache_disk_bytes}),
        slot(*cache.open({})) {
    context.activations = options.activations;
    if (options.pin_threads) base::pin_workers(context.pool);
    context.workspace.reserve(plan.workspace);
    const auto rows = static_cast<std::size_t>(std::max({ubatch, long_ubatch, score_rows(model->config(), ubatch)}));
    all_rows.resize(rows);
    std::iota(all_rows.begin(), all_rows.end(), 0);
  }

  /// Whether `held` tokens and `ids` after them can be a sequence.
  void check_ids(std::span<const std::int32_t> ids, std::int64_t held) const {
    const std::int64_t vocab = model->config().vocab_size;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if ((ids[i] < 0 && !pictures) || ids[i] >= vocab) {
        throw make_error(ErrorCode::kInvalidRequest, "token id {} at position {} is outside the vocabulary of {}", ids[i], i, vocab);
      }
    }
    if (pictures) {
      if (auto known = pictures->known().check(ids); !known) throw known.error();
    }
    const auto more = static_cast<std::int64_t>(ids.size());
    if (held + more > plan.context) {
      throw make_error(ErrorCode::kInvalidRequest, "{} tokens do not fit: the context holds {} tokens, {} are in use", more, plan.context, held);
    }
  }

  /// Makes rows of pictures until those that the next tokens touch are there; `goes_on` is asked after each piece. False: it said no.
  template <class F>
  bool see(std::int64_t max_rows, F goes_on) {
    if (!pictures) return true;
    const std::int64_t begin = states.length(slot), end = begin + static_cast<std::int64_t>(cache.wanted(slot, max_rows).size());
    pictures->begin_round();
    if (pictures->want(cache.tokens(slot), begin, end)) {
      (void)pictures->work(context);  // forgets the others
      return true;
    }
    while (pictures->work(context)) {
      if (!goes_on()) return false;
    }
    return true;
  }

  /// One pass over the next tokens that are wanted, at most `max_rows`, whose pictures are there; logits of all its rows if asked for, checked to be finite.
  Tensor run(std::int64_t max_rows, bool all_logits) {
    std::span<const std::int32_t> ids = cache.wanted(slot, max_rows);
    overlay_rows.clear();
    overlay.clear();
    if (pictures) {
      tokens.assign(ids.begin(), ids.end());
      pictures->fill(cache.tokens(slot), states.length(slot), static_cast<std::int64_t>(ids.size()), 0, tokens, overlay_rows, overlay);
      ids = tokens;
    }
    const std::array<std::int64_t, 2> cu_seqlens = {0, static_cast<std::int64_t>(ids.size())};
    const std::array<std::int32_t, 1> slots = {slot};
    const auto wanted = std::span(all_rows).first(ids.size());
    Tensor logits;
    facts.clear();
    try {
      // Without room, forward says what is missing.
      (void)cache.make_room(slots, cu_seqlens);
      const Batch batch{.tokens = ids, .cu_seqlens = cu_seqlens, .slots = slots, .logit_rows = all_logits ? wanted : wanted.last(1),
                        .fixed_forms = exact, .overlay_rows = overlay_rows, .overlay = overlay.data()};
      if (context.on_device() && !all_logits) forward_to_slots(context, *model, batch, states, {&inverse, 1}, facts, observer);
      else logits = forward(context, *model, batch, states, observer);
    } catch (...) {
      reset();  // some layers may have seen these tokens and others not
      throw;
    }
    const std::span<const float> values(logits.as<const float>(), facts.empty() ? static_cast<std::size_t>(logits.numel()) : 0);
    if (facts.empty() ? !std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }) : facts[0].odd >= 0) {
      const std::int64_t at = states.length(slot);
      reset();
      throw make_error(ErrorCode::kNumeric, "the model produced non-finite logits within the first {} tokens; the sequence was dropped", at);
    }
    cache.computed(slot, static_cast<std::int64_t>(ids.size()), facts.empty() ? values.last(static_cast<std::size_t>(logits.size(1))) : values);
    return logits;
  }

  /// Rows that the next pass of a prompt may have.
  std::int64_t pass_rows() {
    const std::int64_t total = static_cast<std::int64_t>(cache.tokens(slot).size()), waiting = total - states.length(slot);
    if (long_ubatch <= ubatch || waiting <= ubatch || total < kLongPasses * long_ubatch) return ubatch;
    if (!has_long_room) {
      const std::int64_t more = forward_workspace_bytes(*model, long_ubatch, 1, 1) - forward_workspace_bytes(*model, ubatch, 1, 1);
      if (more > machine::available_memory() / 2) {
        long_ubatch = 0;
        return ubatch;
      }
      plan.workspace += more;
      context.workspace.reset_to(0);
      context.workspace.reserve(plan.workspace);
      has_long_room = true;
    }
    return long_ubatch;
  }

  /// Computes what is wanted, until on_progress stops it.
  void run_all(const std::function<bool(std::int64_t)>& on_progress) {
    const std::int64_t begin = states.length(slot);
    const auto goes_on = [&] { return !on_progress || on_progress(states.length(slot) - begin); };
    while (!cache.wanted(slot, 1).empty()) {
      const std::int64_t rows = pass_rows();
      const bool sees = see(rows, goes_on);
      if (sees) run(rows, false);
      if (!sees || !goes_on()) cache.unwant(slot);
    }
  }

  void reset() {
    facts.clear();
    cache.drop(slot);
    slot = *cache.open({});
  }

  const SessionOrigin& origin() {
    if (!named) named = session_origin(*model, context.activations);
    return *named;
  }

  void add_pictures(std::span<const std::shared_ptr<const Picture>> more) {
    if (more.empty()) return;
    if (!pictures) pictures.emplace(tower_for(*model));
    pictures->known().add(more);
    std::int64_t patches = 0;
    for (const auto& picture : more) patches = std::max(patches, picture->grid().patches());
    if (patches <= planned_patches) return;
    const bool on_host = pictures->tower().device() == DeviceKind::kCpu;
    const std::int64_t needed = picture_rows_bytes(pictures->tower(), patches, std::max(ubatch, long_ubatch), pictures->tower().device()),
                       available = on_host ? machine::available_memory() : context.device.free_memory();
    if (needed > available) {
      throw make_error(ErrorCode::kOutOfMemory, "reading the largest picture takes {} bytes more, {} are available; a smaller picture takes less", needed, available);
    }
    planned_patches = patches;
  }

  std::shared_ptr<const Model> model;
  std::optional<PictureRows> pictures;  ///< once there was one
  std::optional<SessionOrigin> named;
  MemoryPlan plan;
  std::int64_t ubatch, long_ubatch;
  bool has_long_room = false;  ///< the workspace holds a pass of long_ubatch rows
  std::int64_t saved_snapshot_bytes;
  std::int64_t planned_patches;  ///< of the largest picture that there is memory for
  bool exact;
  ExecContext context;
  StatePool states;
  SequenceCache cache;
  std::int32_t slot;
  std::vector<std::int32_t> all_rows;  // 0, 1, 2, ...
  std::vector<std::int32_t> tokens, overlay_rows;  // of a pass with pictures
  std::vector<float> overlay;
  std::vector<LogitFacts> facts;  // of the slot's logits, or none
  double inverse = 0;
  Observer* observer = nullptr;
};

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

MemoryPlan Session::plan(const Model& model, const SessionOptions& options) {
  return plan_memory(model, options, memory_for(model));
}

void Session::append(std::span<const std::int32_t> ids, const std::function<bool(std::int64_t)>& on_progress) {
  impl_->check_ids(ids, length());
  impl_->cache.unwant(impl_->slot);
  impl_->cache.append(impl_->slot, ids);
  impl_->run_all(on_progress);
}

PromptCounts Session::resume(std::span<const std::int32_t> ids, std::span<const std::int64_t> borders,
                             const std::function<bool(std::int64_t)>& on_progress) {
  Impl& s = *impl_;
  s.check_ids(ids, 0);
  s.facts.clear();
  s.slot = s.cache.reopen(s.slot, ids, borders);
  s.run_all(on_progress);
  return s.cache.counts(s.slot);
}

void Session::score(std::span<const std::int32_t> ids,
                    const std::function<void(std::int64_t, std::int64_t, const float*)>& on_rows) {
  Impl& s = *impl_;
  s.check_ids(ids, length());
  s.cache.unwant(s.slot);
  s.cache.append(s.slot, ids);
  for (std::int64_t done = 0; done < static_cast<std::int64_t>(ids.size());) {
    const std::int64_t rows = score_rows(s.model->config(), s.ubatch);
    (void)s.see(rows, [] { return true; });
    const Tensor logits = s.run(rows, true);
    on_rows(done, logits.size(0), logits.as<const float>());
    done += logits.size(0);
  }
}

void Session::add_pictures(std::span<const std::shared_ptr<const Picture>> pictures) { impl_->add_pictures(pictures); }
void Session::keep() { impl_->cache.keep(impl_->slot); }
void Session::save(const std::filesystem::path& path, const SessionNote& note) const {
  save_session(path, impl_->cache, impl_->slot, impl_->origin(), note,
               impl_->saved_snapshot_bytes);
}

SessionNote Session::restore(const std::filesystem::path& path) {
  impl_->facts.clear();
  return load_session(path, impl_->cache, impl_->slot, impl_->origin());
}

std::span<const std::int32_t> Session::ids() const { return impl_->cache.tokens(impl_->slot); }
std::span<const float> Session::logits() const { return impl_->cache.logits(impl_->slot); }
const LogitFacts* Session::logit_facts() const { return impl_->facts.empty() ? nullptr : impl_->facts.data(); }
void Session::want_candidates(double inverse) { impl_->inverse = inverse; }
std::int64_t Session::length() const { return impl_->states.length(impl_->slot); }
std::int64_t Session::context() const { return impl_->plan.context; }
void Session::reset() { impl_->reset(); }
const Model& Session::model() const { return *impl_->model; }
const MemoryPlan& Session::memory() const { return impl_->plan; }
int Session::threads() const { return impl_->context.pool.size(); }
void Session::set_observer(Observer* observer) { impl_->observer = observer; }

}  // namespace palimpsest
