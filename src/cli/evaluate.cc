#include "cli/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/setup.h"
#include "report/progress.h"

namespace palimpsest::cli {
namespace {

constexpr std::int64_t kDefaultWindow = 4096;

/// log sum exp, in double precision.
double log_sum(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

/// Adds what one row of logits says against the row of the other session.
void add_drift(std::span<const float> chosen, std::span<const float> usual, std::size_t target,
               Drift& drift) {
  const double chosen_sum = log_sum(chosen), usual_sum = log_sum(usual);
  double kl = 0;
  for (std::size_t i = 0; i < usual.size(); ++i) {
    const double log_p = usual[i] - usual_sum, log_q = chosen[i] - chosen_sum;
    kl += std::exp(log_p) * (log_p - log_q);
    drift.largest_logit_difference =
        std::max(drift.largest_logit_difference, std::abs(static_cast<double>(usual[i]) - chosen[i]));
  }
  kl = std::max(kl, 0.0);  // what rounding leaves of equal rows
  drift.nll_sum += usual_sum - usual[target];
  drift.kl_sum += kl;
  drift.kl_largest = std::max(drift.kl_largest, kl);
  const auto top = [](std::span<const float> row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  drift.same_top += top(chosen) == top(usual);
}

/// Runs one window from an empty state and scores all its ids but the first; against `usual`, the
/// other session, where there is one.
void score_window(Session& session, Session* usual, std::span<const std::int32_t> ids,
                  const Interruptible& interrupt, Evaluation& result) {
  const auto vocab = static_cast<std::size_t>(session.model().config().vocab_size);
  session.reset();
  if (usual) usual->reset();
  session.score(ids, [&](std::int64_t first, std::int64_t rows, const float* logits) {
    if (interrupt.cancelled()) throw Error(ErrorCode::kCancelled, "interrupted");
    const auto begin = static_cast<std::size_t>(first);
    const std::size_t scored = std::min(static_cast<std::size_t>(rows), ids.size() - 1 - begin);
    const auto row = [&](const float* all, std::size_t r) { return std::span(all + r * vocab, vocab); };
    const auto target = [&](std::size_t r) { return static_cast<std::size_t>(ids[begin + r + 1]); };
    for (std::size_t r = 0; r < scored; ++r)
      result.nll_sum += log_sum(row(logits, r)) - row(logits, r)[target(r)];
    result.scored += static_cast<std::int64_t>(scored);
    if (!usual) return;
    // The same passes, so that nothing else differs.
    usual->score(ids.subspan(begin, static_cast<std::size_t>(rows)),
                 [&](std::int64_t offset, std::int64_t count, const float* other) {
                   for (std::int64_t i = 0; i < count; ++i) {
                     const auto r = static_cast<std::size_t>(offset + i);
                     if (r >= scored) return;
                     add_drift(row(logits, r), row(other, static_cast<std::size_t>(i)), target(r),
                               *result.drift);
                   }
                 });
  });
}

void require_other_types(const SessionOptions& session) {
  const SessionOptions usual = with_default_types(session);
  if (session.cache_type != usual.cache_type || session.page_type != usual.page_type) return;
  throw Error(ErrorCode::kUsage,
              "--compare: these are the default types; give --cache-type or --page-type");
}

}  // namespace

std::vector<std::int32_t> scored_ids(const Options& options, const Tokenizer& tokenizer,
                                     std::string_view text) {
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (options.tokens) {
    if (*options.tokens > static_cast<std::int64_t>(ids.size())) {
      throw make_error(ErrorCode::kInvalidRequest, "--tokens is {}, but the text has {} tokens",
                       *options.tokens, ids.size());
    }
    ids.resize(static_cast<std::size_t>(*options.tokens));
  }
  if (ids.size() < 2) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "the text has {} token(s), scoring needs at least 2", ids.size());
  }
  return ids;
}

Evaluation evaluate(const Options& options, const std::string& tokenizer_of, std::string_view text, std::optional<Activations> against) {
  const std::shared_ptr<const Model> model = load_model(options);
  const Tokenizer tokenizer = require_tokenizer(tokenizer_of, model->config().vocab_size, "");
  const std::vector<std::int32_t> ids = scored_ids(options, tokenizer, text);

  Evaluation result;
  result.tokens = static_cast<std::int64_t>(ids.size());
  result.bytes = static_cast<std::int64_t>(tokenizer.decode(ids).size());
  result.window = options.ctx_size > 0
                      ? options.ctx_size
                      : std::min(kDefaultWindow, model->config().max_position_embeddings);
  const std::int64_t room = result.window - (options.bos ? 1 : 0);  // ids of the text in a window
  if (result.window < 2)
    throw make_error(ErrorCode::kUsage, "a window of {} has nothing to score", result.window);
  if (options.bos && !tokenizer.bos())
    throw make_error(ErrorCode::kUnsupported, "--bos: this model has no [BOS]");

  SessionOptions session_choice = session_options(options);
  session_choice.context = result.window;
  Session session(model, session_choice);
  std::optional<Session> usual;
  if (options.compare || against) {
    SessionOptions other = session_choice;
    if (against) {
      other.activations = *against;
    } else {
      require_other_types(session_choice);
      other = with_default_types(session_choice);
    }
    usual.emplace(model, other);
    result.drift.emplace();
  }
  Interruptible interrupt;
  report::ProgressBar bar({.title = "scoring"}, stderr, report::inspect_terminal(stderr));
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::int32_t> window;
  for (std::int64_t begin = 0; begin < result.tokens; begin += room, ++result.windows) {
    const std::int64_t end = std::min(begin + room, result.tokens);
    window.clear();
    if (options.bos) window.push_back(*tokenizer.bos());
    window.insert(window.end(), ids.begin() + begin, ids.begin() + end);
    score_window(session, usual ? &*usual : nullptr, window, interrupt, result);
    bar.update(end, result.tokens);
  }
  bar.finish();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.memory = memory_text(session);
  return result;
}

}  // namespace palimpsest::cli
