// Loads a model, reads a prompt, decodes a few tokens and prints what was planned and the highest resident size reached, in bytes.
//     rss_child FOLDER PROMPT_TOKENS DECODE_TOKENS UBATCH CONTEXT

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "machine/memory.h"
#include "palimpsest/error.h"
#include "palimpsest/session.h"

int main(int argc, char** argv) {
  using namespace palimpsest;
  if (argc != 6) return 2;
  try {
    const auto model = Model::load(argv[1]);
    const SessionOptions options = {.threads = 2, .context = std::atoll(argv[5]), .ubatch = std::atoll(argv[4])};
    Session session(model, options);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(std::atoll(argv[2])));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 31 % 256);
    session.append(ids);
    for (int i = 0; i < std::atoi(argv[3]); ++i) session.append(std::span(ids).first(1));
    std::printf("%lld %lld %lld\n", static_cast<long long>(session.memory().weights),
                static_cast<long long>(session.memory().total() - session.memory().weights),
                static_cast<long long>(machine::peak_resident_memory()));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
