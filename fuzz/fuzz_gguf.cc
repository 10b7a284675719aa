// A whole GGUF file out of arbitrary bytes: refused with an Error, or safe to read to the last byte of every tensor and value, through every
// accessor of the metadata. The metadata are also read as a model's configuration: refused, or one whose weights can be listed and named.

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/gguf.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_names.h"

namespace {

using namespace palimpsest::formats;

template <class F>
void allow_errors(F f) {
  try {
    f();
  } catch (const palimpsest::Error&) {
  }
}

unsigned read_all(const GgufMetadata& metadata) {
  unsigned sum = 0;
  for (const GgufMetadata::Entry& entry : metadata.entries()) {
    if (metadata.find(entry.key) != &entry) __builtin_trap();
    const auto key = entry.key;
    allow_errors([&] { sum += static_cast<unsigned>(metadata.integer(key, {.min = INT64_MIN})); });
    allow_errors([&] { sum += metadata.number(key) > 0; });
    allow_errors([&] { sum += metadata.boolean(key); });
    allow_errors([&] { sum += static_cast<unsigned>(metadata.string(key).size()); });
    allow_errors([&] { sum += static_cast<unsigned>(metadata.find_integer_or_integers(key).size()); });
    allow_errors([&] { sum += static_cast<unsigned>(metadata.floats(key).size()); });
    allow_errors([&] { sum += static_cast<unsigned>(metadata.find_booleans(key).size()); });
    allow_errors([&] {
      for (const auto text : metadata.strings(key)) {
        for (const char c : text) sum += static_cast<unsigned char>(c);
      }
    });
  }
  return sum;
}

void read_config(const GgufMetadata& metadata) {
  const palimpsest::ModelConfig config = palimpsest::parse_gguf_config(metadata, {.has_output = true, .has_routed_norm = true, .has_latent_gate = true});
  // The list of a valid config may be long; a few thousand weights say as much.
  if (config.num_layers() * config.moe.num_experts >= 1000) return;
  for (const palimpsest::WeightSpec& spec : palimpsest::gguf_weight_spec(config)) {
    if (spec.parameters() <= 0 || palimpsest::gguf_name(config, spec).empty()) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = parse_gguf(std::as_bytes(std::span(data, size)));
  if (!header) return 0;
  volatile unsigned sum = read_all(header->metadata);
  allow_errors([&] { read_config(header->metadata); });
  for (const GgufTensor& tensor : header->tensors) {
    for (std::uint64_t i = 0; i < tensor.bytes; ++i) sum = sum + data[tensor.offset + i];
    const auto row_bytes = static_cast<std::uint64_t>(tensor.cols() / tensor.type->columns() * tensor.type->bytes());
    if (static_cast<std::uint64_t>(tensor.rows()) * row_bytes != tensor.bytes) __builtin_trap();
    sum = sum + static_cast<unsigned>(describe(tensor).size() + tensor.name.size());
  }
  return 0;
}
