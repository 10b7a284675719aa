#include "runtime/model_bench.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/cpu_cores.h"
#include "base/error.h"
#include "model/forward.h"
#include "model/state_spec.h"
#include "ops/device.h"
#include "ops/ops.h"
#include "plan/cost.h"
#include "plan/memory_plan.h"

namespace palimpsest {
namespace {

using Clock = std::chrono::steady_clock;

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

MemoryPlan plan_case(const Model& model, const BenchCase& what, DType cache_type, std::int64_t depth) {
  const bool prefill = what.kind == BenchCase::Kind::kPrefill;
  const std::int64_t rows = prefill ? what.ubatch : what.sequences;
  const SessionOptions options{.threads = what.threads, .context = depth + what.tokens, .ubatch = rows, .cache_type = cache_type, .cache_disk = {}};
  const std::int64_t available = memory_for(model);
  MemoryPlan plan = plan_memory(model, options, available, what.sequences);
  // A session wants the logits of a few rows; a step of many sequences those of all.
  plan.workspace = std::max(plan.workspace, forward_workspace_bytes(model, rows, what.sequences, what.sequences));
  require_memory(plan, available);
  return plan;
}

/// The sequences of one case and what runs them.
class Runner {
 public:
  Runner(const std::shared_ptr<const Model>& model, const BenchCase& what, const BenchOptions& options)
      : model_(*model),
        what_(what),
        options_(options),
        plan_(plan_case(*model, what, options.cache_type, options.depth)),
        context_(what.threads, model->device()),
        states_(state_spec(model->config(), options.cache_type), pool_options(model->config(), plan_), model->device()) {
    if (options.pin_threads) base::pin_workers(context_.pool);
    context_.workspace.reserve(plan_.workspace);
    context_.activations = options.activations;
    const auto vocab = static_cast<std::size_t>(model->config().vocab_size);
    ids_.resize(static_cast<std::size_t>(what.tokens * what.sequences));
    for (std::size_t i = 0; i < ids_.size(); ++i) ids_[i] = static_cast<std::int32_t>((i * 7919 + 13) % vocab);
    cu_seqlens_.resize(static_cast<std::size_t>(what.sequences) + 1);
    slots_.resize(static_cast<std::size_t>(what.sequences));
    logit_rows_.resize(slots_.size());
    inverse_.resize(slots_.size());
  }

  struct Seconds {
    double wall, cpu;
  };
  /// From empty states to the last token.
  Seconds run(int repetition, OpProfile* profile) {
    repetition_ = repetition;
    for (auto& slot : slots_) {
      slot = states_.acquire();
      if (options_.depth > 0 && !states_.load(slot, options_.depth))
        throw make_error(ErrorCode::kOutOfMemory, "there is no room for {} sequences of {} tokens", slots_.size(), options_.depth);
    }
    if (options_.depth > 0 && !std::exchange(filled_, true)) fill_lists();
    passes_ = 0;
    context_.profile = profile;
    const double cpu = processor_seconds();
    const auto start = Clock::now();
    if (what_.kind == BenchCase::Kind::kPrefill) prefill();
    else decode();
    const Seconds seconds = {std::chrono::duration<double>(Clock::now() - start).count(), processor_seconds() - cpu};
    context_.profile = nullptr;
    for (const auto slot : slots_) states_.release(slot);
    return seconds;
  }

 private:
  /// Random rows in every list: a processor's clock falls with the bits that change, and zeros change none.
  void fill_lists() {
    constexpr std::int64_t kRows = 4096;
    (void)states_.prepare(slots_, std::vector<std::int64_t>(slots_.size() + 1));  // block tables are where they are read
    for (const StateEntry& entry : state_spec(model_.config(), options_.cache_type).entries) {
      if (entry.kind != StateKind::kList) continue;
      const PagedList list = states_.list(entry.layer);
      Buffer buffer(kRows * list.width() * 4, context_.device);
      const Tensor numbers = Tensor::contiguous(buffer.data(), DType::kF32, {kRows, list.width()}, context_.device.kind());
      ops::random_fill(context_.device, {.key = static_cast<std::uint64_t>(entry.layer), .dtype = DType::kF32, .low = -1.7f, .high = 1.7f}, 0, numbers.numel(), numbers.data);
      for (const std::int32_t slot : slots_) {
        for (std::int64_t past = 0; past < options_.depth; past += kRows) append(list, slot, past, numbers.rows(0, std::min(kRows, options_.depth - past)));
      }
    }
  }
  /// Rows of a list behind the first `past`.
  void append(const PagedList& list, std::int32_t slot, std::int64_t past, const Tensor& numbers) {
    const std::int64_t left = list.q8.defined() ? list.q8.left : list.width();
    std::int64_t cu_seqlens[2] = {0, numbers.size(0)};
    RaggedRows rows = {Tensor::contiguous(cu_seqlens, DType::kI64, {2}), Tensor::contiguous(&slot, DType::kI32, {1})};
    Tensor before = Tensor::contiguous(&past, DType::kI64, {1}), latent = numbers, k_pe = numbers;
    latent.sizes[1] = left;
    k_pe.data = k_pe.as<float>() + left, k_pe.sizes[1] = list.width() - left;
    context_.stage({&rows.cu_seqlens, &rows.slots, &before});
    ops::latent_append(context_, {.latent = latent, .k_pe = k_pe, .list = list, .rows = rows, .past = before});
    context_.device.wait();  // before the next numbers are staged
  }

  void pass(std::span<const std::int32_t> ids, std::int64_t rows_each) {
    if (options_.stop && options_.stop(repetition_)) throw Error(ErrorCode::kCancelled, "interrupted");
    for (std::size_t n = 0; n < cu_seqlens_.size(); ++n) cu_seqlens_[n] = static_cast<std::int64_t>(n) * rows_each;
    for (std::size_t n = 0; n < logit_rows_.size(); ++n) logit_rows_[n] = static_cast<std::int32_t>(cu_seqlens_[n + 1] - 1);
    const Batch batch{.tokens = ids, .cu_seqlens = cu_seqlens_, .slots = slots_, .logit_rows = logit_rows_};
    bool finite = true;
    if (context_.on_device()) {
      forward_to_slots(context_, model_, batch, states_, inverse_, facts_);
      finite = std::all_of(facts_.begin(), facts_.end(), [](const LogitFacts& f) { return f.odd < 0; });
    } else {
      const Tensor logits = forward(context_, model_, batch, states_);
      if (passes_++ % 64 != 0) return;  // looking at a step of many sequences would take as long as the step
      const std::span values(logits.as<const float>(), static_cast<std::size_t>(logits.numel()));
      finite = std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
    }
    if (!finite)
      throw make_error(ErrorCode::kNumeric, "the model produced non-finite logits within the first {} tokens", states_.length(slots_[0]));
  }

  void prefill() {
    for (std::int64_t done = 0; done < what_.tokens;) {
      const std::int64_t rows = std::min(what_.ubatch, what_.tokens - done);
      pass(std::span(ids_).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(rows)), rows);
      done += rows;
    }
  }

  void decode() {
    for (std::int64_t i = 0; i < what_.tokens; ++i) pass(std::span(ids_).subspan(static_cast<std::size_t>(i) * slots_.size(), slots_.size()), 1);
  }

  const Model& model_;
  const BenchCase& what_;
  const BenchOptions& options_;
  MemoryPlan plan_;
  ExecContext context_;
  StatePool states_;
  std::vector<std::int32_t> ids_, slots_, logit_rows_;
  std::vector<std::int64_t> cu_seqlens_;
  std::vector<double> inverse_;  ///< zeros: greedy
  std::vector<LogitFacts> facts_;
  bool filled_ = false;
  int repetition_ = 0;
  std::int64_t passes_ = 0;  ///< of this repetition
};

void count_work(const Model& model, DType cache_type, std::int64_t depth, BenchResult& result) {
  const BenchCase& what = result.what;
  const ModelConfig& config = model.config();
  const DecodeCost cost = decode_cost(model, depth + what.tokens / 2, cache_type);
  if (what.kind == BenchCase::Kind::kPrefill) {
    result.flops = prefill_flops(config, depth + what.tokens) - prefill_flops(config, depth) + prefill_flops(config, 0);
    for (std::int64_t done = 0; done < what.tokens; done += what.ubatch)
      result.bytes += pass_bytes(cost, config.moe, std::min(what.ubatch, what.tokens - done), 1);
  } else {
    const std::int64_t middle = depth + (what.tokens + 1) / 2;
    const double one = prefill_flops(config, middle) - prefill_flops(config, middle - 1) + prefill_flops(config, 0);
    result.flops = one * static_cast<double>(result.tokens());
    result.bytes = static_cast<double>(what.tokens) * pass_bytes(cost, config.moe, what.sequences, what.sequences);
  }
}

}  // namespace

double BenchResult::best_seconds() const { return *std::min_element(seconds.begin(), seconds.end()); }

double BenchResult::mean() const {
  double sum = 0;
  for (const double s : seconds) sum += static_cast<double>(tokens()) / s;
  return sum / static_cast<double>(seconds.size());
}

double BenchResult::spread() const {
  if (seconds.size() < 2) return 0;
  const double middle = mean();
  double sum = 0;
  for (const double s : seconds) sum += std::pow(static_cast<double>(tokens()) / s - middle, 2);
  return std::sqrt(sum / static_cast<double>(seconds.size() - 1));
}

BenchResult measure_model(const std::shared_ptr<const Model>& model, const BenchCase& what, const BenchOptions& options) {
  PALIMPSEST_CHECK(what.tokens >= 1 && what.threads >= 1 && what.ubatch >= 1 && what.sequences >= 1 && options.repetitions >= 1,
                   "a benchmark runs something");
  PALIMPSEST_CHECK(what.kind == BenchCase::Kind::kDecode || what.sequences == 1, "a prefill has one sequence");
  BenchResult result{.what = what, .seconds = {}, .cpu_seconds = {}, .profile = {}};
  Runner runner(model, result.what, options);
  count_work(*model, options.cache_type, options.depth, result);
  if (options.warm_up) runner.run(0, nullptr);
  for (int i = 0; i < options.repetitions; ++i) {
    const auto [wall, cpu] = runner.run(i, nullptr);
    result.seconds.push_back(wall);
    result.cpu_seconds.push_back(cpu);
  }
  if (options.profile) result.profiled_seconds = runner.run(options.repetitions, &result.profile).wall;
  return result;
}

}  // namespace palimpsest
