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

/// -log softmax(logits)[target], in double precision.
double negative_log_likelihood(const float* logits, std::int64_t vocab, std::int32_t target) {
  const double largest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - largest);
  return largest + std::log(sum) - logits[target];
}

/// Runs one window from an empty state and scores all its ids but the first.
void score_window(Session& session, std::span<const std::int32_t> ids, const Interruptible& interrupt,
                  Evaluation& result) {
  const std::int64_t vocab = session.model().config().vocab_size;
  session.reset();
  session.score(ids, [&](std::int64_t first, std::int64_t rows, const float* logits) {
    if (interrupt.cancelled()) throw Error(ErrorCode::kCancelled, "interrupted");
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto next = static_cast<std::size_t>(first + r + 1);
      if (next == ids.size()) break;
      result.nll_sum += negative_log_likelihood(logits + r * vocab, vocab, ids[next]);
      ++result.scored;
    }
  });
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

Evaluation evaluate(const Options& options, const std::string& tokenizer_of, std::string_view text) {
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
  Interruptible interrupt;
  report::ProgressBar bar({.title = "scoring"}, stderr, report::inspect_terminal(stderr));
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::int32_t> window;
  for (std::int64_t begin = 0; begin < result.tokens; begin += room, ++result.windows) {
    const std::int64_t end = std::min(begin + room, result.tokens);
    window.clear();
    if (options.bos) window.push_back(*tokenizer.bos());
    window.insert(window.end(), ids.begin() + begin, ids.begin() + end);
    score_window(session, window, interrupt, result);
    bar.update(end, result.tokens);
  }
  bar.finish();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.memory = memory_text(session);
  return result;
}

}  // namespace palimpsest::cli
