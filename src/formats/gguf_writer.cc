#include "formats/gguf_writer.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "formats/quote.h"

namespace palimpsest::formats {
namespace {

std::uint64_t aligned(std::uint64_t bytes, std::uint64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

std::uint64_t bytes_of(const GgufWriter::Item& item) {
  const std::int64_t columns = item.shape.empty() ? 1 : item.shape.back();
  std::int64_t bytes = item.type->bytes();
  bool good = item.type->supported() && columns % item.type->columns() == 0 && item.shape.size() <= kMaxGgufRank &&
              !item.name.empty() && item.name.size() <= kMaxGgufNameBytes;
  for (std::size_t d = 0; d < item.shape.size(); ++d) {
    const std::int64_t size = d + 1 == item.shape.size() ? item.shape[d] / item.type->columns() : item.shape[d];
    good = good && size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes);
  }
  if (!good) throw make_error(ErrorCode::kInternal, "tensor {}: no GGUF file can hold it", quote(item.name));
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

void GgufPairs::begin(std::string_view key, GgufValueType type) {
  if (key.empty() || key.size() > kMaxGgufKeyBytes || std::find(keys_.begin(), keys_.end(), key) != keys_.end()) {
    throw make_error(ErrorCode::kInternal, "key {} is empty, too long or there already", quote(key));
  }
  keys_.emplace_back(key);
  put_string(key);
  put(type);
}

void GgufPairs::begin_array(std::string_view key, GgufValueType element, std::size_t count) {
  begin(key, GgufValueType::kArray);
  put(element);
  put(static_cast<std::uint64_t>(count));
}

void GgufPairs::put_string(std::string_view text) {
  put(static_cast<std::uint64_t>(text.size()));
  bytes_.append(text);
}

void GgufPairs::add(std::string_view key, bool value) {
  begin(key, GgufValueType::kBool);
  put(static_cast<std::uint8_t>(value));
}
void GgufPairs::add(std::string_view key, std::uint16_t value) { begin(key, GgufValueType::kU16), put(value); }
void GgufPairs::add(std::string_view key, std::int32_t value) { begin(key, GgufValueType::kI32), put(value); }
void GgufPairs::add(std::string_view key, std::uint32_t value) { begin(key, GgufValueType::kU32), put(value); }
void GgufPairs::add(std::string_view key, std::int64_t value) { begin(key, GgufValueType::kI64), put(value); }
void GgufPairs::add(std::string_view key, std::uint64_t value) { begin(key, GgufValueType::kU64), put(value); }
void GgufPairs::add(std::string_view key, float value) { begin(key, GgufValueType::kF32), put(value); }
void GgufPairs::add(std::string_view key, double value) { begin(key, GgufValueType::kF64), put(value); }
void GgufPairs::add(std::string_view key, std::string_view value) { begin(key, GgufValueType::kString), put_string(value); }

void GgufPairs::add(std::string_view key, std::span<const std::int32_t> values) {
  begin_array(key, GgufValueType::kI32, values.size());
  for (const auto value : values) put(value);
}
void GgufPairs::add(std::string_view key, std::span<const std::uint32_t> values) {
  begin_array(key, GgufValueType::kU32, values.size());
  for (const auto value : values) put(value);
}
void GgufPairs::add(std::string_view key, std::span<const float> values) {
  begin_array(key, GgufValueType::kF32, values.size());
  for (const auto value : values) put(value);
}
void GgufPairs::add(std::string_view key, std::span<const std::string> values) {
  begin_array(key, GgufValueType::kString, values.size());
  for (const auto& value : values) put_string(value);
}
void GgufPairs::add_bools(std::string_view key, std::span<const std::uint8_t> values) {
  begin_array(key, GgufValueType::kBool, values.size());
  for (const auto value : values) put(static_cast<std::uint8_t>(value != 0));
}

GgufWriter::GgufWriter(const std::filesystem::path& path, const GgufPairs& pairs, std::span<const Item> items, std::uint64_t alignment)
    : file_(path), alignment_(alignment) {
  PALIMPSEST_CHECK(std::has_single_bit(alignment) && alignment <= kMaxGgufAlignment, "an alignment is a power of two up to 1 MiB");
  std::string head("GGUF");
  const auto put = [&head](const auto value) { head.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const bool own_alignment = alignment != kDefaultGgufAlignment;
  put(std::uint32_t{3});
  put(static_cast<std::uint64_t>(items.size()));
  put(pairs.size() + (own_alignment ? 1 : 0));
  if (own_alignment) {
    GgufPairs pair;
    pair.add("general.alignment", static_cast<std::uint32_t>(alignment));
    head += pair.bytes();
  }
  head += pairs.bytes();
  std::uint64_t offset = 0;
  for (const Item& item : items) {
    sizes_.push_back(bytes_of(item));
    put(static_cast<std::uint64_t>(item.name.size()));
    head += item.name;
    put(static_cast<std::uint32_t>(item.shape.size()));
    for (auto size = item.shape.rbegin(); size != item.shape.rend(); ++size) put(static_cast<std::uint64_t>(*size));
    put(item.type->number);
    put(offset);
    offset = aligned(offset + sizes_.back(), alignment);
  }
  head.resize(aligned(head.size(), alignment));
  file_.write(head.data(), head.size());
}

void GgufWriter::pad(std::uint64_t bytes) {
  static constexpr std::byte kZeros[4096] = {};
  for (; bytes > 0; bytes -= std::min<std::uint64_t>(bytes, sizeof kZeros)) {
    file_.write(kZeros, std::min<std::uint64_t>(bytes, sizeof kZeros));
  }
}

void GgufWriter::finish_items() {
  for (; item_ < sizes_.size() && done_ == sizes_[item_]; ++item_, done_ = 0) pad(aligned(done_, alignment_) - done_);
}

void GgufWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    finish_items();
    if (item_ == sizes_.size()) {
      throw make_error(ErrorCode::kInternal, "'{}': {} more bytes than its tensors hold", file_.path().string(), bytes.size());
    }
    const std::uint64_t now = std::min<std::uint64_t>(bytes.size(), sizes_[item_] - done_);
    file_.write(bytes.data(), now);
    done_ += now;
    bytes = bytes.subspan(now);
  }
}

const std::filesystem::path& GgufWriter::finish() {
  check_complete();
  file_.sync();
  return file_.temporary();
}

void GgufWriter::commit() {
  check_complete();
  file_.commit(true);
}

void GgufWriter::check_complete() {
  finish_items();
  if (item_ != sizes_.size()) {
    throw make_error(ErrorCode::kInternal, "'{}': tensor {} of {} has {} of its {} bytes", file_.path().string(), item_, sizes_.size(),
                     done_, sizes_[item_]);
  }
}

}  // namespace palimpsest::formats
