// A session file out of arbitrary bytes: refused with an Error, or safe to read to the last byte
// that it promises.
//
// Checksums would keep random changes out of what lies behind them, so input is tried twice: as it
// is, and with its checksums made right.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/session_file.h"

namespace {

using namespace palimpsest;

void read_all(std::span<const std::byte> bytes) {
  const auto image = parse_session(bytes);
  if (!image) return;
  volatile unsigned sum = 0;
  const auto touch = [&](const std::byte* data, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) sum = sum + std::to_integer<unsigned>(data[i]);
  };
  if (image->computed > static_cast<std::int64_t>(image->tokens.size())) __builtin_trap();
  touch(image->fixed, image->fixed_size(image->computed));
  touch(image->rows, image->computed * image->row_bytes);
  for (const char letter : image->text) sum = sum + static_cast<unsigned char>(letter);
  for (const auto& snapshot : image->snapshots) {
    if (snapshot.rows_from > snapshot.position || snapshot.position >= image->computed)
      __builtin_trap();
    touch(snapshot.fixed, image->fixed_size(snapshot.position));
    touch(snapshot.rows, (snapshot.position - snapshot.rows_from) * image->row_bytes);
  }
}

std::uint64_t field(const std::vector<std::byte>& bytes, std::size_t offset) {
  std::uint64_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

/// Sets file_bytes and all checksums to what the rest says, as far as sections lie within the file.
std::vector<std::byte> with_checksums(std::span<const std::byte> input) {
  std::vector<std::byte> bytes(input.begin(), input.end());
  const auto set = [&](std::size_t offset, std::uint64_t value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
  };
  constexpr std::size_t kHeader = 128, kSections = 5, kFooter = kSections * 8;
  if (bytes.size() < kHeader + kFooter) return bytes;
  set(16, bytes.size());
  set(120, XXH3_64bits(bytes.data(), 120));
  const std::uint64_t snapshots = field(bytes, 72), end = bytes.size() - kFooter;
  if (snapshots > bytes.size()) return bytes;
  std::uint64_t rows = field(bytes, 64);
  const auto fixed_size = [&](std::uint64_t position) {
    return field(bytes, position % 64 == 0 && field(bytes, 112) > 0 ? 112 : 40);
  };
  std::uint64_t fixed = fixed_size(field(bytes, 64));
  std::uint64_t at = kHeader;
  for (std::size_t section = 0; section < kSections; ++section) {
    const std::uint64_t sizes[kSections] = {field(bytes, 56) * 4, snapshots * 32, fixed,
                                            rows * field(bytes, 48), field(bytes, 96)};
    if (at > end || sizes[section] > end - at) return bytes;
    if (section == 1) {
      for (std::uint64_t i = 0; i < snapshots && sizes[1] <= end - at; ++i) {
        rows += field(bytes, at + i * 32) - field(bytes, at + i * 32 + 8);
        fixed += fixed_size(field(bytes, at + i * 32));
      }
    }
    set(end + section * 8, XXH3_64bits(bytes.data() + at, sizes[section]));
    at += (sizes[section] + 63) / 64 * 64;
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  read_all(bytes);
  read_all(with_checksums(bytes));
  return 0;
}
