// A whole GGUF file out of arbitrary bytes: refused with an Error, or safe to read to the last byte of every tensor and value, through every
// accessor of the metadata.

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/gguf.h"

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header = parse_gguf(std::as_bytes(std::span(data, size)));
  if (!header) return 0;
  volatile unsigned sum = read_all(header->metadata);
  for (const GgufTensor& tensor : header->tensors) {
    for (std::uint64_t i = 0; i < tensor.bytes; ++i) sum = sum + data[tensor.offset + i];
    const auto row_bytes = static_cast<std::uint64_t>(tensor.cols() / tensor.type->columns() * tensor.type->bytes());
    if (static_cast<std::uint64_t>(tensor.rows()) * row_bytes != tensor.bytes) __builtin_trap();
    sum = sum + static_cast<unsigned>(describe(tensor).size() + tensor.name.size());
  }
  return 0;
}
