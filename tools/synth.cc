// Writes a checkpoint with random weights: for a given config.json, or for a made-up model of either family.
//   palimpsest_synth OUT --family kimi_k3 --layers 9 --hidden 1024 --experts 80 --expert-intermediate 1024 --latent 1024

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>

#include "palimpsest/error.h"
#include "tools/synthetic_checkpoint.h"

int main(int argc, char** argv) {
  using namespace palimpsest;
  synthetic::Shape shape;
  synthetic::Options options;
  std::string folder, config_file;
  bool bf16_experts = false;

  CLI::App app("Writes a checkpoint with random weights");
  app.add_option("folder", folder, "Folder to write into")->required();
  app.add_option("--config", config_file, "Use this config.json instead of the sizes below")->check(CLI::ExistingFile);
  const std::map<std::string, Family> families = {{"kimi_k3", Family::kKimiK3}, {"kimi_linear", Family::kKimiLinear}};
  app.add_option("--family", shape.family, "kimi_k3 or kimi_linear")->transform(CLI::CheckedTransformer(families));
  app.add_option("--layers", shape.num_layers)->capture_default_str();
  app.add_option("--hidden", shape.hidden_size)->capture_default_str();
  app.add_option("--heads", shape.num_heads)->capture_default_str();
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
    std::string config = synthetic::config_json(shape);
    if (!config_file.empty()) {
      std::ifstream file(config_file);
      config.assign(std::istreambuf_iterator<char>(file), {});
    }
    synthetic::write_checkpoint(folder, config, options);
  } catch (const Error& error) {
    std::fprintf(stderr, "palimpsest_synth: %s\n", error.what());
    return exit_code(error.code());
  }
}
