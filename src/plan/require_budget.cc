// What to say when a plan does not fit.

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "model/state_spec.h"
#include "plan/memory_plan.h"
#include "plan/model_plan.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

std::string mebibytes(std::int64_t bytes) {
  if (bytes < 10'000 * kMiB) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB);
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

/// One way to fit.
struct Change {
  double given_up = 0;  ///< share of what was asked for
  std::string text;
};

double share_given_up(std::int64_t from, std::int64_t to) {
  return 1 - static_cast<double>(to) / static_cast<double>(from);
}

class Changes {
 public:
  Changes(const Model& model, const PlanRequest& request, const ModelPlan& plan)
      : model_(model), request_(request), plan_(plan) {}

  std::vector<Change> find() {
    if (request_.context_is_free) context();
    ubatch();
    threads();
    cache_type();
    snapshots();
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.given_up < b.given_up; });
    if (changes_.empty()) offload();
    if (changes_.empty()) everything();
    if (changes_.size() > 2) changes_.resize(2);
    const std::int64_t whole = (plan_.total() + variation() + kMiB - 1) / kMiB;
    if (request_.is_budget) changes_.push_back({1, fmt::format("--budget {}MiB", whole)});
    if (changes_.empty()) changes_.push_back({1, "a device with more memory"});
    return std::move(changes_);
  }

 private:
  /// The plan with other options, and the context as it is or as asked for.
  MemoryPlan with(const SessionOptions& options) const {
    SessionOptions fixed = options;
    if (fixed.context == 0) fixed.context = plan_.memory.context;
    MemoryPlan memory = plan_memory(model_, fixed, 0, request_.sequences, {request_.where, plan_.memory.weights});
    memory.workspace += request_.more_workspace;
    return memory;
  }
  bool fits(const MemoryPlan& memory) const { return memory.total() <= available(); }
  /// Of the limit, beside what is planned.
  std::int64_t process() const { return plan_.on_host() ? request_.process : 0; }
  std::int64_t variation() const { return plan_.on_host() ? kProcessVariation : 0; }
  std::int64_t available() const { return request_.limit - process() - variation(); }
  std::int64_t longest(const MemoryPlan& memory) const { return largest_context(model_.config(), memory, available(), request_.where); }
  void add(double given_up, std::string text, const MemoryPlan& memory) {
    changes_.push_back({given_up, fmt::format("{} ({} in all)", text,
                                              mebibytes(memory.total() + process()))});
  }

  void context() {
    SessionOptions options = request_.session;
    options.context = longest(plan_.memory);
    if (options.context == 0 || options.context >= plan_.memory.context) return;
    add(share_given_up(plan_.memory.context, options.context),
        fmt::format("-c {}", options.context), with(options));
  }

  void ubatch() {
    SessionOptions options = request_.session;
    while (options.ubatch > 1) {
      options.ubatch /= 2;
      if (const MemoryPlan memory = with(options); fits(memory)) {
        return add(share_given_up(request_.session.ubatch, options.ubatch),
                   fmt::format("-ub {}", options.ubatch), memory);
      }
    }
  }

  void threads() {
    if (!plan_.on_host()) return;  // threads have no scratch memory there
    SessionOptions options = request_.session;
    const int asked = options.threads > 0 ? options.threads : base::ThreadPool::default_size();
    for (options.threads = asked / 2; options.threads >= 1; options.threads /= 2) {
      if (const MemoryPlan memory = with(options); fits(memory)) {
        return add(share_given_up(asked, options.threads), fmt::format("-t {}", options.threads),
                   memory);
      }
    }
  }

  void cache_type() {
    SessionOptions options = request_.session;
    for (const DType smaller : {DType::kBF16, DType::kI8}) {
      if (dtype_size(smaller) >= dtype_size(request_.session.cache_type)) continue;
      options.cache_type = smaller;
      if (const MemoryPlan memory = with(options); fits(memory)) {
        return add(share_given_up(dtype_size(request_.session.cache_type), dtype_size(smaller)),
                   fmt::format("--cache-type {}", list_type_name(smaller)), memory);
      }
    }
  }

  void snapshots() {
    SessionOptions options = request_.session;
    const std::int64_t over = plan_.memory.total() - available();
    if (options.cache_bytes < over) return;
    options.cache_bytes = (options.cache_bytes - over) / kMiB * kMiB;
    add(share_given_up(request_.session.cache_bytes, options.cache_bytes),
        fmt::format("--cache-ram {}", options.cache_bytes / kMiB), with(options));
  }

  /// Where nothing else is enough on a device: weights that stay with the host, if that has room for them.
  void offload() {
    if (plan_.on_host()) return;
    const WeightSizes sizes = weight_sizes(model_);
    const auto fits_with = [&](const WeightOffload& choice, const std::string& flag) {
      const DeviceWeights weights = device_weights(sizes, choice);
      MemoryPlan memory = plan_.memory;
      memory.weights = weights.bytes();
      const std::int64_t host = plan_.host_total() - plan_.host.weights + weights.host;
      if (!fits(memory) || (plan_.host_limit > 0 && host > plan_.host_limit)) return false;
      add(1, fmt::format("{} with {} of the host's memory", flag, mebibytes(weights.host)), memory);
      return true;
    };
    WeightOffload choice = request_.offload;
    const auto& layers = model_.config().layers;
    choice.experts = std::any_of(layers.begin(), layers.end(), [](const LayerSpec& layer) { return layer.ffn == Ffn::kMixtureOfExperts; });
    if (choice.experts && !request_.offload.experts) fits_with(choice, "--cpu-moe");
    choice = request_.offload;
    std::int64_t count = choice.device_layers.value_or(model_.config().num_layers());
    do {
      if (--count < 0) return;
      choice.device_layers = count;
    } while (!fits_with(choice, fmt::format("--gpu-layers {}", count)));
  }

  /// Where no single change is enough: the longest context over the smallest of everything else.
  void everything() {
    SessionOptions options = request_.session;
    options.cache_bytes = 0;
    if (options.cache_type == DType::kF32) options.cache_type = DType::kBF16;
    options.threads = 1;
    for (const std::int64_t rows : {64, 16, 1}) {
      options.ubatch = std::min<std::int64_t>(options.ubatch, rows);
      options.context = std::min(longest(with(options)), plan_.memory.context);
      if (options.context == 0 ||
          (options.context < plan_.memory.context && !request_.context_is_free))
        continue;
      std::string text = fmt::format("-ub {}{}", options.ubatch, plan_.on_host() ? " -t 1" : "");
      if (options.context < plan_.memory.context)
        text = fmt::format("-c {} {}", options.context, text);
      if (request_.session.cache_type == DType::kF32) text += " --cache-type bf16";
      if (request_.session.cache_bytes > 0) text += " --cache-ram 0";
      return add(1, text + " together", with(options));
    }
  }

  const Model& model_;
  const PlanRequest& request_;
  const ModelPlan& plan_;
  std::vector<Change> changes_;
};

}  // namespace

std::vector<std::string> what_would_fit(const Model& model, const PlanRequest& request, const ModelPlan& plan) {
  std::vector<std::string> texts;
  for (const Change& change : Changes(model, request, plan).find()) texts.push_back(change.text);
  return texts;
}

void require_budget(const Model& model, const PlanRequest& request, const ModelPlan& plan) {
  if (plan.fits()) return;
  const MemoryPlan& m = plan.memory;
  const HostShare& h = plan.host;
  if (plan.total() <= plan.limit) {
    throw make_error(ErrorCode::kOutOfMemory,
                     "beside the device {} of the host's memory are needed: the program itself {}, weights that stay there {}, experts that are computed there {}, and while weights are loaded staging {} and "
                     "copies {}, then logits {}, results {} and pictures {}; {} are available",
                     mebibytes(plan.host_total()), mebibytes(plan.process), mebibytes(h.weights), mebibytes(h.experts), mebibytes(h.staging), mebibytes(h.copies), mebibytes(h.logits),
                     mebibytes(h.results), mebibytes(h.pictures), mebibytes(plan.host_limit));
  }
  throw make_error(ErrorCode::kOutOfMemory,
                   "{} of {}{} does not hold {}: weights {}, pages {}, lists of {} tokens {}, "
                   "workspace of {} rows {}, snapshots {}{}{}. What would fit: {}",
                   request.is_budget ? "a budget" : "free memory", mebibytes(plan.limit), plan.on_host() ? "" : " on the device", mebibytes(plan.total()), mebibytes(m.weights),
                   mebibytes(m.pages + m.logits), m.context, mebibytes(m.lists),
                   request.session.ubatch, mebibytes(m.workspace), mebibytes(m.cache),
                   m.pictures > 0 ? ", pictures " + mebibytes(m.pictures) + " (less with --image-tokens)" : "",
                   plan.on_host() ? ", the program itself " + mebibytes(plan.process) : "", fmt::join(what_would_fit(model, request, plan), "; or "));
}

}  // namespace palimpsest
