#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "palimpsest/logit_facts.h"

namespace palimpsest {

/// Added to one token's logit.
struct LogitBias {
  std::int32_t id = 0;
  double bias = 0;
};

/// How the next token is chosen. The defaults sample from the model's own distribution.
struct SamplingParams {
  double temperature = 1;  ///< <= 0: greedy, the most likely token (the lowest id on ties)
  std::int64_t top_k = 0;  ///< keep the k most likely tokens; 0: all
  double top_p = 1;        ///< keep the fewest tokens whose probabilities reach top_p; 1: all
  double min_p = 0;        ///< keep tokens of at least min_p times the largest probability; 0: all
  double repeat_penalty = 1;  ///< divides positive and multiplies negative logits of recent tokens
  std::int64_t repeat_last_n = 64;    ///< how many recent tokens count as recent; 0: none
  double presence_penalty = 0;        ///< taken from the logit of a token that the answer holds
  double frequency_penalty = 0;       ///< taken from it as often as the answer holds the token
  std::vector<LogitBias> logit_bias;  ///< at most one an id
  std::uint64_t seed = 0;             ///< names the random numbers
  std::vector<std::int32_t> banned;   ///< ids that are never chosen
};

/// What one choice looks at besides the parameters.
struct SampleInput {
  std::span<const float> logits;          ///< [vocab_size]
  std::span<const std::int32_t> recent;   ///< the sequence so far, for the repeat penalty: only its
                                          ///< last repeat_last_n ids count
  std::span<const std::int32_t> written;  ///< the answer so far, for the other two penalties
  /// Which tokens may be chosen: id i is bit i % 32 of word i / 32, [(vocab_size + 31) / 32].
  /// Empty: all.
  std::span<const std::uint32_t> allowed;
  std::uint64_t sequence = 0;  ///< with the seed and the position, names the random number
  std::uint64_t position = 0;  ///< of the token to be chosen in its sequence
};

/// Throws Error{kUsage} naming the parameter, its value and its range: NaN, negative, top_k beyond
/// the vocabulary, banned or biased ids outside of it, or nothing left to choose. Penalties of
/// presence and frequency lie within +-100, as do biases.
void validate(const SamplingParams& params, std::int64_t vocab_size);

/// Chooses tokens: a pure function of (params, logits, recent ids, sequence, position). The object
/// only keeps scratch memory, so that a call allocates nothing once the scratch has grown. Not
/// thread-safe.
///
/// The filters run in llama.cpp's order: bias, repeat penalty, penalties of presence and frequency,
/// top_k, top_p, min_p, temperature. So top_p and min_p look at the probabilities before the
/// temperature, and top_p at those of the top_k tokens alone, summing to one. Tokens are ranked by
/// logit, the lower id first on ties, which makes every filter exact. At least one token stays.
///
/// The draw inverts the distribution in order of rank: the first token whose cumulative probability
/// exceeds u = uniform(seed, sequence, position) (Philox4x32-10), in double precision.
class Sampler {
 public:
  /// Validates the parameters.
  Sampler(SamplingParams params, std::int64_t vocab_size);

  /// Ids outside the vocabulary in `recent` and `written` are skipped. Throws Error{kNumeric} for
  /// logits that are not finite, naming the first; Error{kInvalidRequest} when bans and `allowed`
  /// leave nothing to choose.
  std::int32_t sample(const SampleInput& input);
  /// The same for a sequence without an answer of its own and without constraint.
  std::int32_t sample(std::span<const float> logits, std::span<const std::int32_t> recent,
                      std::uint64_t sequence, std::uint64_t position) {
    return sample({logits, recent, {}, {}, sequence, position});
  }

  /// The token that sample() without constraint would choose, from what a device said of the logits; nothing where that does not decide it: with
  /// bias, penalties or bans, or where too few candidates came. `facts` has no odd one, and its sum is at candidates_at().
  std::optional<std::int32_t> sample(const LogitFacts& facts, std::uint64_t sequence, std::uint64_t position);
  /// One over the temperature at which sample() of facts wants the sum; 0: it wants no candidates.
  double candidates_at() const;

  const SamplingParams& params() const { return params_; }

 private:
  using Candidate = LogitCandidate;

  bool greedy() const { return params_.temperature <= 0 || params_.top_k == 1; }
  bool adjusts() const;
  void adjust(const SampleInput& input);
  void check(std::span<const float> logits) const;
  template <class F>
  void for_each_candidate(const SampleInput& input, F f);
  std::int32_t best(const SampleInput& input);
  bool rank(std::size_t count);
  void compare(std::size_t count, double sum, double wanted);
  /// A sum over so many ranks is not computed here.
  bool by_facts(std::size_t count) const { return facts_ && count == static_cast<std::size_t>(vocab_size_); }
  std::int32_t choose(std::size_t count, std::uint64_t sequence, std::uint64_t position);
  std::size_t filter(std::size_t count, double largest);
  std::int32_t draw(std::size_t count, double largest, double u);
  template <class Weight>
  double total(std::size_t count, Weight weight) const;

  static bool ahead(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }

  SamplingParams params_;
  std::int64_t vocab_size_;
  std::vector<Candidate> candidates_;  ///< the first ranked_ are in order and ahead of all others
  std::size_t ranked_ = 0;
  const LogitFacts* facts_ = nullptr;  ///< where they stand for the logits: candidates_ are those of highest rank,
  bool certain_ = true;                ///< and this says whether they were enough
  std::vector<char> marked_;  ///< [vocab] 1: banned; 2: penalised already. Banned marks stay, the
                              ///< others are taken back
  std::vector<double>
      changed_;  ///< [vocab] logits after bias and penalties; empty where none apply
};

}  // namespace palimpsest
