#include "selfcheck/checker.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace palimpsest::selfcheck {

void Checker::fail(std::string text) {
  if (problem_.empty()) problem_ = std::move(text);
}

void Checker::require(bool condition, std::string_view what) {
  if (!condition) fail(std::string(what));
}

void Checker::expect(const Trace& found, const Question& question, std::string_view what,
                     std::int64_t from) {
  const Trace& expected = question.trace;
  if (found.steps() != expected.steps() - from) {
    fail(fmt::format("{}: {} logits instead of {}", what, found.steps(), expected.steps() - from));
    return;
  }
  for (std::int64_t i = 0; i < found.steps(); ++i) {
    const auto a = found.step(i), b = expected.step(from + i);
    double difference = 0, largest = 0;
    for (std::size_t v = 0; v < b.size(); ++v) {
      const double d = std::abs(static_cast<double>(a[v]) - b[v]);
      difference = std::isnan(d) ? HUGE_VAL : std::max(difference, d);
      largest = std::max(largest, std::abs(static_cast<double>(b[v])));
    }
    const double share = largest > 0 ? difference / largest : difference;
    worst_ = std::max(worst_, share);
    ++comparisons_;
    const bool same = std::memcmp(a.data(), b.data(), b.size_bytes()) == 0;
    if (exact_ ? !same : !(share <= bound_)) {
      fail(fmt::format("{}, {} tokens behind the prompt: logits differ by {:.1e} of the largest",
                       what, from + i, share));
      continue;
    }
    const auto mine = static_cast<std::size_t>(greedy(a)),
               theirs = static_cast<std::size_t>(greedy(b));
    const double lead = static_cast<double>(b[theirs]) - b[mine];
    if (mine != theirs && lead > 2 * bound_ * largest) {
      fail(fmt::format("{}, {} tokens behind the prompt: token {} instead of {}", what, from + i,
                       mine, theirs));
    }
  }
}

void Checker::answer(Engine& engine, std::int32_t slot, const Question& question,
                     std::string_view what, std::int64_t from) {
  const auto rest = std::span(question.answer).subspan(static_cast<std::size_t>(from));
  expect(engine.trace(slot, rest), question, what, from);
}

std::vector<Row> rows() {
  std::vector<Row> all = pass_rows();
  const std::vector<Row> more = memory_rows();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace palimpsest::selfcheck
