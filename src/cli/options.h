#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::cli {

enum class Command : std::uint8_t { kRun, kRecall, kInspect, kLogits, kEval, kTokenize, kRender, kPull, kLineage, kConvert, kPlan, kSelfcheck, kBench, kServe };
inline constexpr int kCommands = 14;

/// What the command line asked for. Optional members were not given; then a command, or the model's
/// own generation_config.json, decides.
struct Options {
  Command command = Command::kRun;

  std::string model;  ///< of pull: OWNER/NAME[@REV]
  std::vector<std::string> include;
  std::optional<std::string> prompt, file, system, ids, ids_file, tools, output, svg;
  std::optional<std::string> weights, experts, eval_file;
  std::optional<std::string> json_schema, json_schema_file, grammar, grammar_file, regex;
  std::optional<std::string> shard_size;
  std::string to = "safetensors";
  std::int64_t predict = -1;  ///< -1: until the model stops
  std::int64_t ctx_size = 0;  ///< 0: what the model and the memory allow
  std::int64_t ubatch = 0;  ///< 0: 512, and 2048 in long prompts
  std::int64_t threads = 0;  ///< 0: one a core
  std::int64_t seed = -1;    ///< -1: random
  std::int64_t width = 32;   ///< key channels
  std::optional<std::int64_t> tokens, pairs, prompt_tokens, random_weights, gpu_layers;
  std::int64_t jobs = 4;
  std::optional<double> temperature, top_p, min_p, repeat_penalty;
  std::optional<std::int64_t> top_k;
  std::string cache_type = "bf16", page_type = "f32", device = "cpu";
  std::optional<std::string> budget, cache_ram, cache_disk, session, host_experts;
  std::string activations = "q16";
  std::string cache_disk_size = "16GiB", session_snapshots = "1GiB";
  std::int64_t save_every = 30;  ///< seconds
  std::int64_t sequences = 1;
  std::string host = "127.0.0.1";  ///< of serve, as the next ones
  std::int64_t port = 8080, parallel = 4, shutdown_seconds = 10;
  std::optional<std::string> alias, api_key, api_key_file, config, sessions_dir;
  std::int64_t suspended_bytes = 256 << 20;  ///< of sequences that had to step back; no flag: what --budget leaves
  bool allow_remote_without_key = false, no_web = false;
  std::optional<std::string> reasoning_effort;

  std::optional<std::string> bench_prompt, bench_predict, bench_threads, bench_ubatch, bench_sequences;  ///< lists of bench
  std::int64_t repetitions = 5, depth = 0;
  bool sweep = false, profile = false, no_warmup = false;
  bool mlock = false, no_mmap = false, pin = false, cpu_moe = false;

  bool raw = false, ignore_eos = false, show_thinking = false, print_ids = false, json = false;
  bool hidden = false, bos = false, control = false, render_ids = false, verbose = false, dry_run = false, force = false, quick = false,
       compare = false;

  std::vector<std::string> images;  ///< files
  std::optional<std::int64_t> image_tokens;  ///< 0: the model reads no pictures
  std::optional<std::string> image_urls;     ///< hosts
  std::vector<std::string> allowed_hosts;
};

}  // namespace palimpsest::cli
