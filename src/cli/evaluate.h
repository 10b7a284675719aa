#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"
#include "palimpsest/activations.h"
#include "palimpsest/tokenizer.h"

namespace palimpsest::cli {

/// How far predictions are from those of another session: with the default types of lists and pages, or another form of activations.
struct Drift {
  double nll_sum = 0;                   ///< of the other, nats
  double kl_sum = 0, kl_largest = 0;    ///< of KL(other || chosen) over the scored ids, nats
  double largest_logit_difference = 0;  ///< of one logit
  std::int64_t same_top = 0;            ///< ids for which both hold the same token most likely
};

/// How well a model predicts a text.
struct Evaluation {
  std::int64_t tokens = 0, window = 0, windows = 0, bytes = 0;
  double nll_sum = 0;       ///< nats
  std::int64_t scored = 0;  ///< ids with a prediction
  std::optional<Drift> drift;  ///< with options.compare or `against`
  double seconds = 0;
  std::string memory;  ///< memory_text() of the session

  double nats_per_token() const { return nll_sum / static_cast<double>(scored); }
  double perplexity() const { return std::exp(nats_per_token()); }
  /// The mean over the scored ids stands for all of them, since the bytes are those of all.
  double bits_per_byte() const {
    return nats_per_token() * static_cast<double>(tokens) / static_cast<double>(bytes) /
           std::numbers::ln2;
  }
};

/// The ids of a text that are scored: cut to options.tokens. Throws Error{kInvalidRequest} for too short a text.
std::vector<std::int32_t> scored_ids(const Options& options, const Tokenizer& tokenizer,
                                     std::string_view text);

/// Loads options.model and scores the text, cut up by the tokenizer of the model at `tokenizer` and
/// to options.tokens, in windows of options.ctx_size tokens, each from an empty state; a progress bar on a terminal. Throws Error: kInvalidRequest
/// for a text too short, kUsage for a window of less than 2 and for a comparison of the default types with themselves, kIo without a tokenizer, kCancelled.
/// `against`: a form of activations to compare with, instead of other types.
Evaluation evaluate(const Options& options, const std::string& tokenizer, std::string_view text, std::optional<Activations> against = {});

}  // namespace palimpsest::cli
