// palimpsest_kernels_bench [--only WORD] [--case TEXT] [--unchecked] [--json FILE]: checks each kernel against the truth in double at every shape,
// then times it. --case: only where the name of a case holds TEXT; --unchecked: without the truth, for comparisons of versions.

#include <cstring>

#include "kernels/cases.h"

int main(int argc, char** argv) {
  using namespace palimpsest::bench;
  const char* json = nullptr;
  const char* only = "";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--case") == 0 && i + 1 < argc) {
      selection().text = argv[++i];
    } else if (std::strcmp(argv[i], "--unchecked") == 0) {
      selection().check = false;
    } else {
      std::fprintf(stderr, "usage: palimpsest_kernels_bench [--only delta_decode|delta_prefill|gdn_prefill|mla_decode|mla_prefill|activations|products] [--case TEXT] [--unchecked] [--json FILE]\n");
      return 2;
    }
  }
  cudaDeviceProp device;
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    std::fprintf(stderr, "no CUDA device\n");
    return 1;
  }
  std::printf("%s, %d multiprocessors, L2 %d MiB, copy %.2f TB/s\n", device.name, device.multiProcessorCount, device.l2CacheSize >> 20,
              ceilings().copy_tbs);
  Report report;
  if (std::strstr("delta_decode", only) != nullptr) delta_step_cases(report);
  if (std::strstr("delta_prefill", only) != nullptr) delta_prefill_cases(report);
  if (std::strstr("gdn_prefill", only) != nullptr) scalar_prefill_cases(report);
  if (std::strstr("mla_decode", only) != nullptr) latent_decode_cases(report);
  if (std::strstr("mla_prefill", only) != nullptr) latent_prefill_cases(report);
  if (std::strstr("activations", only) != nullptr) activation_cases(report);
  if (std::strstr("products", only) != nullptr) product_cases(report);
  if (json != nullptr) report.write_json(json);
  if (!report.all_right()) std::fprintf(stderr, "some results are WRONG\n");
  return report.all_right() ? 0 : 1;
}
