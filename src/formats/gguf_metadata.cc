#include "formats/gguf_metadata.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "formats/quote.h"

namespace palimpsest::formats {
namespace {

template <class T>
T read(std::span<const std::byte> bytes, std::uint64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof value);
  return value;
}

std::string describe(const GgufMetadata::Entry& entry) {
  const auto name = gguf_value_type_name(entry.type);
  return entry.is_array ? fmt::format("an array of {} {}", entry.count, name) : fmt::format("a {}", name);
}

}  // namespace

std::string_view gguf_value_type_name(GgufValueType type) {
  constexpr std::string_view kNames[kNumGgufValueTypes] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                           "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::uint32_t>(type)];
}

std::int64_t gguf_value_size(GgufValueType type) {
  constexpr std::int64_t kSizes[kNumGgufValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<std::uint32_t>(type)];
}

std::optional<std::string_view> GgufMetadata::index() {
  by_key_.resize(entries_.size());
  std::iota(by_key_.begin(), by_key_.end(), 0u);
  std::sort(by_key_.begin(), by_key_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return entries_[a].key < entries_[b].key; });
  const auto twice = std::adjacent_find(by_key_.begin(), by_key_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return entries_[a].key == entries_[b].key;
  });
  if (twice == by_key_.end()) return std::nullopt;
  return entries_[*twice].key;
}

const GgufMetadata::Entry* GgufMetadata::find(std::string_view key) const {
  const auto it = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                   [this](std::uint32_t i, std::string_view k) { return entries_[i].key < k; });
  return it != by_key_.end() && entries_[*it].key == key ? &entries_[*it] : nullptr;
}

std::string GgufMetadata::where(std::string_view key) const {
  return file_.empty() ? std::string(key) : fmt::format("{}: {}", file_, key);
}

const GgufMetadata::Entry& GgufMetadata::require(std::string_view key) const {
  if (const Entry* entry = find(key)) return *entry;
  throw make_error(ErrorCode::kInvalidFile, "{}: missing", where(key));
}

void GgufMetadata::wrong_type(const Entry& entry, std::string_view expected) const {
  throw make_error(ErrorCode::kInvalidFile, "{}: expected {}, found {}", where(entry.key), expected, describe(entry));
}

const GgufMetadata::Entry& GgufMetadata::array(const Entry& entry, std::string_view what) const {
  if (!entry.is_array) wrong_type(entry, what);
  return entry;
}

std::int64_t GgufMetadata::integer_of(const Entry& entry, std::uint64_t i, IntegerRange range) const {
  std::int64_t value = 0;
  switch (entry.type) {
    case GgufValueType::kU8: value = read<std::uint8_t>(entry.bytes, i); break;
    case GgufValueType::kI8: value = read<std::int8_t>(entry.bytes, i); break;
    case GgufValueType::kU16: value = read<std::uint16_t>(entry.bytes, i); break;
    case GgufValueType::kI16: value = read<std::int16_t>(entry.bytes, i); break;
    case GgufValueType::kU32: value = read<std::uint32_t>(entry.bytes, i); break;
    case GgufValueType::kI32: value = read<std::int32_t>(entry.bytes, i); break;
    case GgufValueType::kI64: value = read<std::int64_t>(entry.bytes, i); break;
    case GgufValueType::kU64: {
      const auto u = read<std::uint64_t>(entry.bytes, i);
      if (u > static_cast<std::uint64_t>(INT64_MAX)) {
        throw make_error(ErrorCode::kInvalidFile, "{}: {} is out of range", where(entry.key), u);
      }
      value = static_cast<std::int64_t>(u);
      break;
    }
    default: wrong_type(entry, entry.is_array ? "integers" : "an integer");
  }
  if (value < range.min || value > range.max) {
    throw make_error(ErrorCode::kInvalidFile, "{}: {} is outside [{}, {}]", where(entry.key), value, range.min, range.max);
  }
  return value;
}

double GgufMetadata::number_of(const Entry& entry, std::uint64_t i) const {
  if (entry.type == GgufValueType::kF32) return static_cast<double>(read<float>(entry.bytes, i));
  if (entry.type == GgufValueType::kF64) return read<double>(entry.bytes, i);
  if (entry.type == GgufValueType::kBool || entry.type == GgufValueType::kString) {
    wrong_type(entry, entry.is_array ? "numbers" : "a number");
  }
  return static_cast<double>(integer_of(entry, i, {.min = INT64_MIN}));
}

std::string_view GgufMetadata::string_of(const Entry& entry) const {
  if (entry.is_array || entry.type != GgufValueType::kString) wrong_type(entry, "a string");
  return {reinterpret_cast<const char*>(entry.bytes.data()) + 8, entry.bytes.size() - 8};
}

bool GgufMetadata::boolean_of(const Entry& entry) const {
  if (entry.is_array || entry.type != GgufValueType::kBool) wrong_type(entry, "a bool");
  return entry.bytes[0] != std::byte{0};
}

std::int64_t GgufMetadata::integer(std::string_view key, IntegerRange range) const {
  require(key);
  return *find_integer(key, range);
}
double GgufMetadata::number(std::string_view key, NumberRange range) const {
  require(key);
  return *find_number(key, range);
}
bool GgufMetadata::boolean(std::string_view key) const { return boolean_of(require(key)); }
std::string_view GgufMetadata::string(std::string_view key) const { return string_of(require(key)); }
std::vector<std::int64_t> GgufMetadata::integers(std::string_view key, IntegerRange range) const {
  require(key);
  return find_integers(key, range);
}
std::vector<float> GgufMetadata::floats(std::string_view key) const {
  require(key);
  return find_floats(key);
}
std::vector<std::string_view> GgufMetadata::strings(std::string_view key) const {
  require(key);
  return find_strings(key);
}

std::optional<std::int64_t> GgufMetadata::find_integer(std::string_view key, IntegerRange range) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->is_array) wrong_type(*entry, "an integer");
  return integer_of(*entry, 0, range);
}

std::optional<double> GgufMetadata::find_number(std::string_view key, NumberRange range) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->is_array) wrong_type(*entry, "a number");
  const double value = number_of(*entry, 0);
  if (!(value >= range.min && value <= range.max)) {  // NaN is outside
    throw make_error(ErrorCode::kInvalidFile, "{}: {} is outside [{}, {}]", where(key), value, range.min, range.max);
  }
  return value;
}

std::optional<bool> GgufMetadata::find_boolean(std::string_view key) const {
  const Entry* entry = find(key);
  return entry != nullptr ? std::optional(boolean_of(*entry)) : std::nullopt;
}

std::optional<std::string_view> GgufMetadata::find_string(std::string_view key) const {
  const Entry* entry = find(key);
  return entry != nullptr ? std::optional(string_of(*entry)) : std::nullopt;
}

std::vector<std::int64_t> GgufMetadata::find_integers(std::string_view key, IntegerRange range) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return {};
  array(*entry, "an array of integers");
  return find_integer_or_integers(key, range);
}

std::vector<std::int64_t> GgufMetadata::find_integer_or_integers(std::string_view key, IntegerRange range) const {
  std::vector<std::int64_t> values;
  const Entry* entry = find(key);
  if (entry == nullptr) return values;
  values.reserve(entry->count);
  for (std::uint64_t i = 0; i < entry->count; ++i) values.push_back(integer_of(*entry, i, range));
  return values;
}

std::vector<float> GgufMetadata::find_floats(std::string_view key) const {
  std::vector<float> values;
  const Entry* entry = find(key);
  if (entry == nullptr) return values;
  array(*entry, "an array of numbers");
  values.reserve(entry->count);
  for (std::uint64_t i = 0; i < entry->count; ++i) values.push_back(static_cast<float>(number_of(*entry, i)));
  return values;
}

std::vector<bool> GgufMetadata::find_booleans(std::string_view key) const {
  std::vector<bool> values;
  const Entry* entry = find(key);
  if (entry == nullptr) return values;
  if (array(*entry, "an array of bools").type != GgufValueType::kBool) wrong_type(*entry, "an array of bools");
  for (const std::byte b : entry->bytes) values.push_back(b != std::byte{0});
  return values;
}

std::vector<std::string_view> GgufMetadata::find_strings(std::string_view key) const {
  std::vector<std::string_view> values;
  const Entry* entry = find(key);
  if (entry == nullptr) return values;
  if (array(*entry, "an array of strings").type != GgufValueType::kString) wrong_type(*entry, "an array of strings");
  values.reserve(entry->count);
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < entry->count; ++i) {
    std::uint64_t length;
    std::memcpy(&length, entry->bytes.data() + at, sizeof length);
    values.emplace_back(reinterpret_cast<const char*>(entry->bytes.data()) + at + 8, length);
    at += 8 + length;
  }
  return values;
}

}  // namespace palimpsest::formats
