#include "palimpsest/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace palimpsest {
namespace {

constexpr char kBanned = 1, kPenalised = 2;
constexpr std::size_t kFirstRanked = 64;  ///< most draws end among so many

void require(bool condition, const char* name, double value, const char* range) {
  if (!condition)
    throw make_error(ErrorCode::kUsage, "{} is {}, but must be {}", name, value, range);
}

void check_bias(const std::vector<LogitBias>& biases, std::int64_t vocab_size) {
  std::vector<std::int32_t> ids;
  for (const LogitBias& b : biases) {
    if (b.id < 0 || b.id >= vocab_size) {
      throw make_error(ErrorCode::kUsage, "logit_bias names id {}, outside the vocabulary of {}",
                       b.id, vocab_size);
    }
    require(std::abs(b.bias) <= 100, "logit_bias", b.bias, "from -100 to 100");
    ids.push_back(b.id);
  }
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end())
    throw make_error(ErrorCode::kUsage, "logit_bias names id {} twice", *twice);
}

void require_one(bool found) {
  if (!found)
    throw make_error(ErrorCode::kInvalidRequest, "the constraint leaves no token to choose");
}

}  // namespace

void validate(const SamplingParams& params, std::int64_t vocab_size) {
  require(std::isfinite(params.temperature), "temperature", params.temperature, "a finite number");
  if (params.top_k < 0 || params.top_k > vocab_size) {
    throw make_error(ErrorCode::kUsage,
                     "top_k is {}, but must be from 0 (all) to the vocabulary's {}", params.top_k,
                     vocab_size);
  }
  require(params.top_p >= 0 && params.top_p <= 1, "top_p", params.top_p, "from 0 to 1");
  require(params.min_p >= 0 && params.min_p <= 1, "min_p", params.min_p, "from 0 to 1");
  require(std::isfinite(params.repeat_penalty) && params.repeat_penalty > 0, "repeat_penalty",
          params.repeat_penalty, "a positive number (1: off)");
  require(std::abs(params.presence_penalty) <= 100, "presence_penalty", params.presence_penalty,
          "from -100 to 100");
  require(std::abs(params.frequency_penalty) <= 100, "frequency_penalty", params.frequency_penalty,
          "from -100 to 100");
  check_bias(params.logit_bias, vocab_size);
  if (params.repeat_last_n < 0) {
    throw make_error(ErrorCode::kUsage, "repeat_last_n is {}, but must not be negative",
                     params.repeat_last_n);
  }
  std::vector<std::int32_t> banned = params.banned;
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  if (!banned.empty() && (banned.front() < 0 || banned.back() >= vocab_size)) {
    throw make_error(ErrorCode::kUsage, "banned id {} is outside the vocabulary of {}",
                     banned.front() < 0 ? banned.front() : banned.back(), vocab_size);
  }
  if (static_cast<std::int64_t>(banned.size()) >= vocab_size) {
    throw make_error(ErrorCode::kUsage, "all {} ids of the vocabulary are banned", vocab_size);
  }
}

Sampler::Sampler(SamplingParams params, std::int64_t vocab_size)
    : params_(std::move(params)), vocab_size_(vocab_size) {
  validate(params_, vocab_size);
  marked_.assign(static_cast<std::size_t>(vocab_size), 0);
  for (const std::int32_t id : params_.banned) marked_[static_cast<std::size_t>(id)] = kBanned;
  candidates_.reserve(static_cast<std::size_t>(vocab_size));
}

/// Whether anything changes logits before they are ranked.
bool Sampler::adjusts() const {
  return (params_.repeat_penalty != 1 && params_.repeat_last_n > 0) ||
         params_.presence_penalty != 0 || params_.frequency_penalty != 0 ||
         !params_.logit_bias.empty();
}

/// Fills changed_ with the logits after bias and penalties, in double precision.
void Sampler::adjust(const SampleInput& input) {
  changed_.assign(input.logits.begin(), input.logits.end());
  const auto known = [&](std::int32_t id) { return id >= 0 && id < vocab_size_; };
  for (const LogitBias& b : params_.logit_bias) changed_[static_cast<std::size_t>(b.id)] += b.bias;
  // Calls f once for each different id.
  const auto once = [&](std::span<const std::int32_t> ids, auto f) {
    for (const std::int32_t id : ids) {
      if (!known(id) || marked_[static_cast<std::size_t>(id)] & kPenalised) continue;
      marked_[static_cast<std::size_t>(id)] |= kPenalised;
      f(changed_[static_cast<std::size_t>(id)]);
    }
    for (const std::int32_t id : ids) {
      if (known(id)) marked_[static_cast<std::size_t>(id)] &= kBanned;
    }
  };
  if (params_.repeat_penalty != 1 && params_.repeat_last_n > 0) {
    const double penalty = params_.repeat_penalty;
    const auto n = std::min(input.recent.size(), static_cast<std::size_t>(params_.repeat_last_n));
    once(input.recent.last(n), [&](double& x) { x = x > 0 ? x / penalty : x * penalty; });
  }
  if (params_.presence_penalty != 0)
    once(input.written, [&](double& x) { x -= params_.presence_penalty; });
  if (params_.frequency_penalty != 0) {
    for (const std::int32_t id : input.written) {
      if (known(id)) changed_[static_cast<std::size_t>(id)] -= params_.frequency_penalty;
    }
  }
}

void Sampler::check(std::span<const float> logits) const {
  if (static_cast<std::int64_t>(logits.size()) != vocab_size_) {
    throw make_error(ErrorCode::kInternal, "sampler for {} logits got {}", vocab_size_,
                     logits.size());
  }
  const auto odd =
      std::find_if_not(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  if (odd != logits.end())
    throw make_error(ErrorCode::kNumeric, "the logit of token {} is {}", odd - logits.begin(),
                     *odd);
}

/// Calls f(candidate) for every token that may be chosen, in the order of ids, with its logit after
/// bias and penalties.
template <class F>
void Sampler::for_each_candidate(const SampleInput& input, F f) {
  const bool adjusted = adjusts();
  if (adjusted) adjust(input);
  for (std::int32_t id = 0; id < vocab_size_; ++id) {
    const auto i = static_cast<std::size_t>(id);
    if (marked_[i] & kBanned) continue;
    if (!input.allowed.empty() && !(input.allowed[i / 32] >> (i % 32) & 1)) continue;
    // A penalty may be tiny or huge; what leaves the range of float stays at its end.
    constexpr double kEnd = std::numeric_limits<float>::max();
    f(Candidate{
        adjusted ? static_cast<float>(std::clamp(changed_[i], -kEnd, kEnd)) : input.logits[i], id});
  }
}

/// The likeliest token: one walk, nothing kept.
std::int32_t Sampler::best(const SampleInput& input) {
  Candidate best{0, -1};
  for_each_candidate(input, [&](const Candidate& c) {
    if (best.id < 0 || c.logit > best.logit) best = c;
  });
  require_one(best.id >= 0);
  return best.id;
}

/// Puts the `count` first candidates in order. Ranks more than asked, so that a slow walk down the
/// ranks sorts seldom. False: there are not so many here.
bool Sampler::rank(std::size_t count) {
  if (count <= ranked_) return true;
  if (count > candidates_.size()) return certain_ = false;
  count = std::min(candidates_.size(), std::max({count, 4 * ranked_, kFirstRanked}));
  const auto from = candidates_.begin() + static_cast<std::ptrdiff_t>(ranked_);
  const auto to = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
  if (to != candidates_.end()) std::nth_element(from, to, candidates_.end(), ahead);
  std::sort(from, to, ahead);
  ranked_ = count;
  return true;
}

/// Before `sum` is compared with a part of total(count): a device adds in another order, and where that could decide nothing is certain.
void Sampler::compare(std::size_t count, double sum, double wanted) {
  constexpr double kDoubt = 1e-9;
  if (by_facts(count) && std::abs(sum - wanted) <= kDoubt * wanted) certain_ = false;
}

/// Sum of the weights of the `count` candidates of highest rank.
template <class Weight>
double Sampler::total(std::size_t count, Weight weight) const {
  if (by_facts(count)) return facts_->sum;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += weight(candidates_[i].logit);
  return sum;
}

/// How many of the `count` candidates of highest rank stay after top_p and min_p.
std::size_t Sampler::filter(std::size_t count, double largest) {
  const auto weight = [largest](float logit) { return std::exp(logit - largest); };
  if (params_.top_p < 1) {
    const std::size_t all = count;
    const double wanted = params_.top_p * total(count, weight);
    double sum = 0;
    for (std::size_t i = 0; i < count && rank(i + 1); ++i) {
      sum += weight(candidates_[i].logit);
      compare(all, sum, wanted);
      if (sum >= wanted) count = i + 1;
    }
    if (by_facts(count)) certain_ = false;  // their sum is that of this filter
  }
  if (params_.min_p > 0) {
    std::size_t kept = 1;
    const double least = largest + std::log(params_.min_p);
    for (; kept < count && rank(kept + 1); ++kept) {
      if (candidates_[kept].logit < least) break;
    }
    count = kept;
  }
  return count;
}

std::int32_t Sampler::draw(std::size_t count, double largest, double u) {
  const double inverse = 1 / params_.temperature;
  const auto weight = [&](float logit) {
    const double below = logit - largest;
    return below == 0 ? 1.0 : std::exp(below * inverse);  // 0 * inf at the smallest temperatures
  };
  const double wanted = u * total(count, weight);
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < count && rank(i + 1); ++i) {
    const double w = weight(candidates_[i].logit);
    if (w == 0) break;  // so is everything below
    last = i;
    sum += w;
    compare(count, sum, wanted);
    if (sum > wanted) break;
  }
  return candidates_[last].id;
}

std::int32_t Sampler::sample(const SampleInput& input) {
  check(input.logits);
  if (greedy()) return best(input);
  candidates_.clear();
  ranked_ = 0;
  facts_ = nullptr;
  for_each_candidate(input, [&](const Candidate& c) { candidates_.push_back(c); });
  require_one(!candidates_.empty());
  return choose(candidates_.size(), input.sequence, input.position);
}

std::int32_t Sampler::choose(std::size_t count, std::uint64_t sequence, std::uint64_t position) {
  if (params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < count) {
    count = static_cast<std::size_t>(params_.top_k);
    rank(count);
  }
  rank(1);
  const double largest = candidates_[0].logit;
  return draw(filter(count, largest), largest,
              base::uniform(params_.seed, sequence, position));
}

double Sampler::candidates_at() const {
  if (greedy() || adjusts() || !params_.banned.empty()) return 0;
  return params_.top_p < 1 ? 1 : 1 / params_.temperature;
}

std::optional<std::int32_t> Sampler::sample(const LogitFacts& facts, std::uint64_t sequence, std::uint64_t position) {
  if (adjusts() || !params_.banned.empty()) return std::nullopt;
  if (greedy()) return facts.best;
  const auto count = static_cast<std::size_t>(params_.top_k > 0 ? params_.top_k : vocab_size_);
  if (facts.candidates.empty() || (count < static_cast<std::size_t>(vocab_size_) && count > facts.candidates.size())) return std::nullopt;
  candidates_.assign(facts.candidates.begin(), facts.candidates.end());
  ranked_ = 0;
  facts_ = &facts;
  certain_ = true;
  const std::int32_t id = choose(static_cast<std::size_t>(vocab_size_), sequence, position);
  return certain_ ? std::optional(id) : std::nullopt;
}

}  // namespace palimpsest
