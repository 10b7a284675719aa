#include "palimpsest/session.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "machine/memory.h"
#include "model/forward.h"
#include "model/state_spec.h"
#include "plan/memory_plan.h"

namespace palimpsest {
namespace {

MemoryPlan checked_plan(const Model& model, const SessionOptions& options) {
  const MemoryPlan plan = Session::plan(model, options);
  require_memory(plan, machine::available_memory());
  return plan;
}

}  // namespace

struct Session::Impl {
  Impl(std::shared_ptr<const Model> model_in, const SessionOptions& options)
      : model(std::move(model_in)),
        plan(checked_plan(*model, options)),
        ubatch(options.ubatch),
        context(options.threads > 0 ? options.threads : base::ThreadPool::default_size()),
        states(state_spec(model->config(), options.cache_type), pool_options(plan)),
        slot(states.acquire()) {
    context.workspace.reserve(plan.workspace);
    const auto rows = static_cast<std::size_t>(std::max(ubatch, score_rows(model->config(), ubatch)));
    all_rows.resize(rows);
    std::iota(all_rows.begin(), all_rows.end(), 0);
    last_logits.resize(static_cast<std::size_t>(model->config().vocab_size));
  }

  void check_ids(std::span<const std::int32_t> ids) const {
    const std::int64_t vocab = model->config().vocab_size;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab) {
        throw make_error(ErrorCode::kInvalidRequest, "token id {} at position {} is outside the vocabulary of {}", ids[i], i, vocab);
      }
    }
    const std::int64_t length = states.length(slot), more = static_cast<std::int64_t>(ids.size());
    if (length + more > plan.context) {
      throw make_error(ErrorCode::kInvalidRequest, "{} tokens do not fit: the context holds {} tokens, {} are in use", more, plan.context,
                       length);
    }
  }

  /// One pass; the logits of `wanted` rows, checked to be finite.
  Tensor run(std::span<const std::int32_t> ids, std::span<const std::int32_t> wanted) {
    const std::array<std::int64_t, 2> cu_seqlens = {0, static_cast<std::int64_t>(ids.size())};
    const std::array<std::int32_t, 1> slots = {slot};
    Tensor logits;
    try {
      logits = forward(context, *model, {.tokens = ids, .cu_seqlens = cu_seqlens, .slots = slots, .logit_rows = wanted}, states, observer);
    } catch (...) {
      reset();  // some layers may have seen these tokens and others not
      throw;
    }
    const float* values = logits.as<float>();
    if (!std::all_of(values, values + logits.numel(), [](float x) { return std::isfinite(x); })) {
      const std::int64_t at = states.length(slot);
      reset();
      throw make_error(ErrorCode::kNumeric, "the model produced non-finite logits within the first {} tokens; the sequence was dropped", at);
    }
    return logits;
  }

  void keep_last(const Tensor& logits) {
    const float* row = logits.at<const float>(logits.size(0) - 1);
    std::copy(row, row + logits.size(1), last_logits.begin());
    have_logits = true;
  }

  void reset() {
    states.release(slot);
    slot = states.acquire();
    have_logits = false;
  }

  std::shared_ptr<const Model> model;
  MemoryPlan plan;
  std::int64_t ubatch;
  ExecContext context;
  StatePool states;
  std::int32_t slot;
  std::vector<std::int32_t> all_rows;  // 0, 1, 2, ...
  std::vector<float> last_logits;
  bool have_logits = false;
  Observer* observer = nullptr;
};

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

MemoryPlan Session::plan(const Model& model, const SessionOptions& options) {
  return plan_memory(model, options, machine::available_memory());
}

void Session::append(std::span<const std::int32_t> ids, const std::function<bool(std::int64_t)>& on_progress) {
  Impl& s = *impl_;
  s.check_ids(ids);
  const auto total = static_cast<std::int64_t>(ids.size());
  for (std::int64_t done = 0; done < total;) {
    const std::int64_t rows = std::min(s.ubatch, total - done);
    const auto last = static_cast<std::int32_t>(rows - 1);
    s.keep_last(s.run(ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(rows)), std::span(&last, 1)));
    done += rows;
    if (on_progress && !on_progress(done)) return;
  }
}

void Session::score(std::span<const std::int32_t> ids,
                    const std::function<void(std::int64_t, std::int64_t, const float*)>& on_rows) {
  Impl& s = *impl_;
  s.check_ids(ids);
  const auto total = static_cast<std::int64_t>(ids.size());
  for (std::int64_t done = 0; done < total;) {
    const std::int64_t rows = std::min(score_rows(s.model->config(), s.ubatch), total - done);
    const Tensor logits = s.run(ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(rows)),
                                std::span(s.all_rows).first(static_cast<std::size_t>(rows)));
    s.keep_last(logits);
    on_rows(done, rows, logits.as<const float>());
    done += rows;
  }
}

std::span<const float> Session::logits() const {
  return impl_->have_logits ? std::span<const float>(impl_->last_logits) : std::span<const float>{};
}
std::int64_t Session::length() const { return impl_->states.length(impl_->slot); }
std::int64_t Session::context() const { return impl_->plan.context; }
void Session::reset() { impl_->reset(); }
const Model& Session::model() const { return *impl_->model; }
const MemoryPlan& Session::memory() const { return impl_->plan; }
int Session::threads() const { return impl_->context.pool.size(); }
void Session::set_observer(Observer* observer) { impl_->observer = observer; }

}  // namespace palimpsest
