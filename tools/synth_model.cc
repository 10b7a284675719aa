// Writes a checkpoint with random weights, for honest figures of large models: for a given config.json, or for the published sizes of a
// family with any of them changed. Front to back with a few megabytes of memory; the same command gives the same bytes.
//   synth_model OUT --like kimi-linear --layers 4
//   synth_model OUT --like llama --bf16-experts
//   synth_model OUT --config config.json --layers 4

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "palimpsest/error.h"
#include "report/progress.h"
#include "tools/synthetic_checkpoint.h"

namespace {

using namespace palimpsest;

/// --like comes before the sizes that change it, wherever it stands.
synthetic::Shape shape_named(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) != "--like") continue;
    if (const synthetic::Shape* shape = synthetic::published_shape(argv[i + 1])) return *shape;
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  synthetic::Shape shape = shape_named(argc, argv);
  synthetic::Options options;
  std::string folder, config_file, like;
  bool bf16_experts = false;

  CLI::App app("Writes a checkpoint with random weights");
  app.add_option("folder", folder, "Folder to write into")->required();
  app.add_option("--config", config_file, "Use this config.json of any family instead of the sizes below; --layers cuts it")->check(CLI::ExistingFile);
  app.add_option("--like", like, "Sizes of a published model; those below change them. Without it: a model of a few hundred kilobytes")
      ->check(CLI::IsMember({"kimi-linear", "llama", "smollm2"}));
  const CLI::Option* layers = app.add_option("--layers", shape.num_layers)->capture_default_str();
  app.add_option("--hidden", shape.hidden_size)->capture_default_str();
  app.add_option("--heads", shape.num_heads)->capture_default_str();
  app.add_option("--kv-heads", shape.num_kv_heads, "Llama")->capture_default_str();
  app.add_option("--head-dim", shape.head_dim)->capture_default_str();
  app.add_option("--kv-lora-rank", shape.kv_lora_rank)->capture_default_str();
  app.add_option("--intermediate", shape.intermediate_size)->capture_default_str();
  app.add_option("--experts", shape.num_experts)->capture_default_str();
  app.add_option("--experts-per-token", shape.experts_per_token)->capture_default_str();
  app.add_option("--expert-intermediate", shape.expert_intermediate_size)->capture_default_str();
  app.add_option("--latent", shape.latent_size)->capture_default_str();
  app.add_option("--vocab", shape.vocab_size)->capture_default_str();
  app.add_option("--shards", options.shards)->check(CLI::Range(1, 10000))->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--bf16-experts", bf16_experts, "Experts in BF16 instead of MXFP4");
  CLI11_PARSE(app, argc, argv);

  try {
    options.mxfp4_experts = !bf16_experts;
    std::string config;
    if (config_file.empty()) {
      config = synthetic::config_json(shape);
    } else {
      std::ifstream file(config_file);
      config.assign(std::istreambuf_iterator<char>(file), {});
      if (layers->count() > 0) config = synthetic::cut_to_layers(config, shape.num_layers);
    }
    report::ProgressBar bar({.title = "writing " + folder, .bytes = true}, stderr, report::inspect_terminal(stderr));
    options.on_progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    synthetic::write_checkpoint(folder, config, options);
  } catch (const Error& error) {
    std::fprintf(stderr, "synth_model: %s\n", error.what());
    return exit_code(error.code());
  }
}
