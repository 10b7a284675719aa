#include "convert/byte_sum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace palimpsest::convert {

struct ByteSum::State {
  XXH3_state_t xxh;
};

ByteSum::ByteSum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
ByteSum::~ByteSum() = default;
ByteSum::ByteSum(ByteSum&&) noexcept = default;
ByteSum& ByteSum::operator=(ByteSum&&) noexcept = default;

void ByteSum::add(std::span<const std::byte> bytes) { XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size()); }

void ByteSum::add(std::string_view text) {
  add(std::uint64_t{text.size()});
  add(std::as_bytes(std::span(text.data(), text.size())));
}

std::uint64_t ByteSum::value() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace palimpsest::convert
