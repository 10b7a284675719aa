// Many requests at once against one: tokens per second of concurrent answers, what a step costs
// beside the model, and how soon a prompt whose beginning is known gets its first token.
//
//     bench_engine [FOLDER] [--threads 2] [--answers 8] [--tokens 64] [--prefix 8192] [--repeat 5]

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <future>
#include <list>

#include "palimpsest/engine.h"

namespace {

using namespace palimpsest;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::int32_t> some_ids(std::int64_t count, std::int64_t seed) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 7919 + static_cast<std::size_t>(seed) * 104729) % 3000);
  return ids;
}

/// Waits for a request, and knows when its tokens came.
struct Waiter {
  EventHandler handler() {
    return [this](const EngineEvent& event) {
      if (const auto* start = std::get_if<StartedEvent>(&event)) counts = start->prompt;
      if (std::holds_alternative<TokensEvent>(event) && tokens++ == 0) first = Clock::now();
      if (const auto* end = std::get_if<ChoiceEvent>(&event);
          end && end->reason == FinishReason::kError)
        fmt::print(stderr, "bench_engine: {}\n", end->text);
      if (std::holds_alternative<FinishedEvent>(event)) done.set_value();
      return true;
    };
  }
  std::promise<void> done;
  PromptCounts counts;
  std::int64_t tokens = 0;
  Clock::time_point first;
};

struct Rate {
  double tokens_per_second = 0, beside = 0;
  double cpu =
      0;  ///< seconds of processor time a token: what neighbours on the machine disturb least
};

/// `answers` of `tokens` tokens each, beside each other, prompts known.
Rate decode(Engine& engine, std::int64_t answers, std::int64_t tokens) {
  std::list<Waiter> waiters;
  const EngineMetrics before = engine.metrics();
  const auto start = Clock::now();
  const std::clock_t cpu = std::clock();
  for (std::int64_t i = 0; i < answers; ++i) {
    EngineRequest request{
        .prompt = some_ids(32, i), .sampling = {.temperature = 0}, .max_tokens = tokens};
    engine.submit(std::move(request), waiters.emplace_back().handler());
  }
  for (Waiter& w : waiters) w.done.get_future().wait();
  const double seconds = seconds_since(start);
  engine.between_steps([](SequenceCache&) {});
  const EngineMetrics after = engine.metrics();
  const double steps = after.step_seconds.sum - before.step_seconds.sum;
  return {static_cast<double>(answers * tokens) / seconds,
          (steps - (after.forward_seconds - before.forward_seconds)) / steps,
          static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC /
              static_cast<double>(answers * tokens)};
}

std::uint64_t passes_of(Engine& engine) {
  engine.between_steps([](SequenceCache&) {});  // the last one is counted
  return engine.metrics().passes;
}

/// Seconds from submit() to the first token of a prompt.
double first_token(Engine& engine, std::vector<std::int32_t> prompt, PromptCounts* counts) {
  Waiter waiter;
  EngineRequest request{
      .prompt = std::move(prompt), .sampling = {.temperature = 0}, .max_tokens = 1};
  const auto start = Clock::now();
  engine.submit(std::move(request), waiter.handler());
  waiter.done.get_future().wait();
  *counts = waiter.counts;
  return std::chrono::duration<double>(waiter.first - start).count();
}

void run(const std::string& folder, int threads, std::int64_t answers, std::int64_t tokens,
         std::int64_t prefix, int times) {
  const auto model = Model::load(folder, {.on_progress = {}, .prefetch = true});
  Engine engine(model, {.threads = threads, .sequences = answers, .context = prefix + 1024});
  for (const std::int64_t n : {std::int64_t{1}, answers}) decode(engine, n, tokens);  // warm
  Rate one, many;
  double cpu_one = 1e9, cpu_many = 1e9;
  for (int i = 0; i < times; ++i) {  // in turns, so that both see the same machine
    const Rate a = decode(engine, 1, tokens), b = decode(engine, answers, tokens);
    cpu_one = std::min(cpu_one, a.cpu);
    cpu_many = std::min(cpu_many, b.cpu);
    if (a.tokens_per_second > one.tokens_per_second) one = a;
    if (b.tokens_per_second > many.tokens_per_second) many = b;
  }
  fmt::print(
      "{} threads: 1 answer {:.0f} tokens/s, {} answers {:.0f} tokens/s = {:.2f} times; beside the "
      "model {:.1f}% and {:.1f}% of a step\n",
      threads, one.tokens_per_second, answers, many.tokens_per_second,
      many.tokens_per_second / one.tokens_per_second, 100 * one.beside, 100 * many.beside);

  fmt::print(
      "processor time: {:.2f} ms a token of 1 answer, {:.2f} ms of {} answers = {:.2f} times "
      "(threads that wait for work count too)\n",
      cpu_one * 1e3, cpu_many * 1e3, answers, cpu_one / cpu_many);

  const double step = 1 / one.tokens_per_second;
  const auto known = some_ids(prefix, 77);
  PromptCounts counts;
  const double cold = first_token(engine, known, &counts);
  for (const std::int64_t more : {0, 8, 60}) {
    double best = 1e9;
    std::uint64_t passes = 0;
    for (int i = 0; i < times; ++i) {
      auto prompt = known;
      const auto behind = some_ids(more, 200 + i);
      prompt.insert(prompt.end(), behind.begin(), behind.end());
      const std::uint64_t before = passes_of(engine);
      best = std::min(best, first_token(engine, std::move(prompt), &counts));
      passes = passes_of(engine) - before;
    }
    const std::int64_t rows = counts.replayed_tokens + counts.computed_tokens;
    fmt::print(
        "{} known tokens and {} new: {:.2f} ms to the first token = {:.2f} steps of one answer "
        "(cold {:.0f} ms), {} rows computed in {} passes\n",
        prefix, more, best * 1e3, best / step, cold * 1e3, rows, passes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Many requests at once against one");
  std::string folder = "models/demo";
  int threads = 2, times = 5;
  std::int64_t answers = 8, tokens = 64, prefix = 8192;
  app.add_option("folder", folder, "model folder")->capture_default_str();
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--answers", answers)->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--tokens", tokens)->check(CLI::Range(1, 8192))->capture_default_str();
  app.add_option("--prefix", prefix)->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("--repeat", times)->check(CLI::Range(1, 1000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(folder, threads, answers, tokens, prefix, times);
  } catch (const Error& error) {
    fmt::print(stderr, "bench_engine: {}\n", error.what());
    return exit_code(error.code());
  }
  return 0;
}
