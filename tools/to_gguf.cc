// Writes a model as one GGUF file:
//   palimpsest_to_gguf MODEL OUT.gguf --weights q8_0 --experts mxfp4

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "convert/gguf_export.h"
#include "palimpsest/error.h"

int main(int argc, char** argv) {
  using palimpsest::convert::GgufType;
  const std::map<std::string, GgufType> types = {{"stored", GgufType::kAsStored}, {"f32", GgufType::kF32},   {"f16", GgufType::kF16},
                                                 {"bf16", GgufType::kBF16},       {"q8_0", GgufType::kQ8_0}, {"mxfp4", GgufType::kMxfp4}};
  CLI::App app("Writes a model as one GGUF file");
  std::string model, out;
  palimpsest::convert::GgufExportOptions options;
  app.add_option("model", model, "folder or .safetensors file")->required();
  app.add_option("out", out, "the file to write")->required();
  app.add_option("--weights", options.matrices, "type of matrices")->transform(CLI::CheckedTransformer(types));
  app.add_option("--experts", options.experts, "type of routed experts")->transform(CLI::CheckedTransformer(types));
  CLI11_PARSE(app, argc, argv);
  try {
    palimpsest::convert::export_gguf(model, out, options);
  } catch (const palimpsest::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return palimpsest::exit_code(error.code());
  }
  return 0;
}
