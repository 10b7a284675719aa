// A whole model against this machine: decode as a share of the read bandwidth over the bytes a token must touch, prefill as a share of the
// multiply-add rate. Bandwidth is measured over a buffer of the model's size, with the same threads, in the same run: in small pages, which
// mapped files have, and in huge ones.
//
//     bench_model [FOLDER] [--threads N] [--prompt 512] [--tokens 128] [--repeat 5]

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "machine/machine.h"
#include "palimpsest/error.h"
#include "palimpsest/session.h"
#include "plan/cost.h"

namespace {

using namespace palimpsest;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Timing {
  double best = 0, mean = 0;
};

template <class F>
Timing repeat(int times, F&& run) {
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) seconds.push_back(run());
  return {*std::min_element(seconds.begin(), seconds.end()), std::accumulate(seconds.begin(), seconds.end(), 0.0) / times};
}

std::vector<std::int32_t> some_ids(std::int64_t count, std::int64_t vocab) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((i * 7919 + 13) % static_cast<std::size_t>(vocab));
  return ids;
}

void run(const std::string& folder, int threads, std::int64_t prompt, std::int64_t tokens, int times) {
  const auto model = Model::load(folder, {.on_progress = {}, .prefetch = true});
  const std::int64_t vocab = model->config().vocab_size;
  Session session(model, {.threads = threads, .context = prompt + tokens + 8, .ubatch = prompt});
  const auto ids = some_ids(prompt, vocab), more = some_ids(tokens, vocab);
  session.append(ids);  // touches every weight once

  const Timing prefill = repeat(times, [&] {
    session.reset();
    const auto start = Clock::now();
    session.append(ids);
    return seconds_since(start);
  });
  const Timing decode = repeat(times, [&] {
    session.reset();
    session.append(std::span(ids).first(1));
    const auto start = Clock::now();
    for (const std::int32_t id : more) session.append(std::span(&id, 1));
    return seconds_since(start) / static_cast<double>(tokens);
  });

  const double small = measure_read_bandwidth(model->file_bytes(), threads, Pages::kSmall);
  const double huge = measure_read_bandwidth(model->file_bytes(), threads, Pages::kHuge), fma = measure_fma_rate(threads);
  const double flops = prefill_flops(model->config(), prompt);
  const DecodeCost cost = decode_cost(*model, tokens / 2, DType::kBF16);
  fmt::print("{} threads, target {}; read bandwidth over {:.1f} MB: {:.1f} GB/s in small pages, {:.1f} in huge ones; multiply-add rate "
             "{:.1f} GFLOP/s\n",
             threads, probe_machine().target, static_cast<double>(model->file_bytes()) * 1e-6, small * 1e-9, huge * 1e-9, fma * 1e-9);
  fmt::print("prefill of {}: {:.0f} tokens/s best, {:.0f} mean; {:.2f} GFLOP, {:.1f} GFLOP/s = {:.0f}% of the multiply-add rate\n", prompt,
             static_cast<double>(prompt) / prefill.best, static_cast<double>(prompt) / prefill.mean, flops * 1e-9,
             flops / prefill.best * 1e-9, 100 * flops / prefill.best / fma);
  fmt::print("decode of {}: {:.0f} tokens/s best, {:.0f} mean; {:.2f} MB a token, {:.1f} GB/s = {:.0f}% of the read bandwidth in small pages, {:.0f}% in huge ones\n", tokens,
             1 / decode.best, 1 / decode.mean, static_cast<double>(cost.total()) * 1e-6, static_cast<double>(cost.total()) / decode.best * 1e-9,
             100 * static_cast<double>(cost.total()) / decode.best / small, 100 * static_cast<double>(cost.total()) / decode.best / huge);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A whole model against this machine's limits");
  std::string folder = "models/demo";
  int threads = 1, times = 5;
  std::int64_t prompt = 512, tokens = 128;
  app.add_option("folder", folder, "model folder")->capture_default_str();
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--prompt", prompt, "tokens of the prompt")->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("--tokens", tokens, "tokens to decode")->check(CLI::Range(1, 65536))->capture_default_str();
  app.add_option("--repeat", times)->check(CLI::Range(1, 1000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(folder, threads, prompt, tokens, times);
  } catch (const palimpsest::Error& error) {
    fmt::print(stderr, "bench_model: {}\n", error.what());
    return palimpsest::exit_code(error.code());
  }
  return 0;
}
