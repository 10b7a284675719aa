#include "formats/safetensors.h"

#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "formats/name_index.h"
#include "formats/quote.h"
#include "formats/stable_name.h"

namespace palimpsest::formats {
namespace {

namespace json = simdjson::ondemand;

/// Names that the format defines and DType lacks.
constexpr std::string_view kForeignDTypes[] = {"BOOL", "U16", "U32", "U64", "I16", "F8_E4M3", "F8_E5M2", "F8_E8M0",
                                               "F4", "F6_E2M3", "F6_E3M2", "C64"};

/// Elements of a shape; nothing when the product of the non-zero sizes overflows. Zeros must not hide an overflow,
/// because strides multiply the other sizes.
std::optional<std::int64_t> checked_numel(std::span<const std::int64_t> shape) {
  std::int64_t nonzero = 1;
  bool empty = false;
  for (const std::int64_t size : shape) {
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(nonzero, size, &nonzero)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : nonzero;
}

/// Walks the JSON of one header. Every method returns an Error without the file's name.
class HeaderParser {
 public:
  HeaderParser(std::span<const std::byte> text, std::uint64_t data_begin, std::uint64_t file_size)
      : text_(reinterpret_cast<const char*>(text.data()), text.size()),
        data_begin_(data_begin),
        data_size_(file_size - data_begin),
        readable_after_text_(file_size - data_begin) {}

  Result<SafetensorsHeader> parse() {
    // On-demand parsing reads a little beyond its text: in place where file bytes follow, else from a padded copy.
    if (readable_after_text_ >= simdjson::SIMDJSON_PADDING) {
      return parse_buffer(simdjson::padded_string_view(text_, text_.size() + simdjson::SIMDJSON_PADDING));
    }
    const simdjson::padded_string copy(text_);
    return parse_buffer(copy);
  }

 private:
  Result<SafetensorsHeader> parse_buffer(simdjson::padded_string_view buffer) {
    json::parser parser;
    json::document document;
    json::object root;
    auto error = parser.iterate(buffer).get(document);
    if (!error) error = document.get_object().get(root);
    if (error) return bad_json(error, "header");
    for (auto element : root) {
      json::field field;
      if ((error = std::move(element).get(field))) return bad_json(error, "header");
      auto name = field_name(buffer, field);
      if (!name) return tl::make_unexpected(name.error());
      auto added = *name == "__metadata__" ? add_metadata(field.value()) : add_tensor(*name, field.value());
      if (!added) return tl::make_unexpected(added.error());
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
      return fail(ErrorCode::kInvalidFile, "header: more text after the JSON object");
    }
    if (auto checked = check_layout(); !checked) return tl::make_unexpected(checked.error());
    return std::move(header_);
  }

  Result<std::string_view> field_name(simdjson::padded_string_view buffer, json::field& field) {
    const char* raw = field.key().raw();
    std::string_view name;
    if (const auto error = field.unescaped_key().get(name)) return bad_json(error, "a tensor's name");
    return stable_name(text_, buffer.data(), raw, name, header_.unescaped_names);
  }

  Result<bool> add_metadata(json::value value) {
    if (std::exchange(has_metadata_, true)) return fail(ErrorCode::kInvalidFile, "header: '__metadata__' occurs twice");
    json::object object;
    if (const auto error = value.get_object().get(object)) return bad_json(error, "'__metadata__'");
    for (auto element : object) {
      json::field field;
      auto error = std::move(element).get(field);
      std::string_view key, text;
      std::string owned_key;
      if (!error) error = field.unescaped_key().get(key);
      if (!error) owned_key = key;
      if (!error) error = field.value().get_string().get(text);
      if (error) return bad_json(error, "'__metadata__'");
      header_.metadata.emplace_back(std::move(owned_key), text);
    }
    return true;
  }

  Result<bool> add_tensor(std::string_view name, json::value value) {
    if (header_.entries.size() == kMaxSafetensorsTensors) {
      return fail(ErrorCode::kInvalidFile, "header: more than {} tensors", kMaxSafetensorsTensors);
    }
    json::object object;
    if (const auto error = value.get_object().get(object)) return bad_field(error, name, "the entry");
    TensorEntry entry;
    entry.name = name;
    std::array<std::uint64_t, 2> offsets{};
    unsigned seen = 0;
    for (auto element : object) {
      json::field field;
      std::string_view key;
      auto error = std::move(element).get(field);
      if (!error) error = field.unescaped_key().get(key);
      if (error) return bad_field(error, name, "the entry");
      const unsigned bit = key == "dtype" ? 1u : key == "shape" ? 2u : key == "data_offsets" ? 4u : 0u;
      if (bit == 0) return fail(ErrorCode::kInvalidFile, "tensor {}: unknown key {}", quote(name), quote(key));
      if (seen & bit) return fail(ErrorCode::kInvalidFile, "tensor {}: key '{}' occurs twice", quote(name), key);
      seen |= bit;
      auto read = bit == 1   ? read_dtype(entry, field.value())
                  : bit == 2 ? read_shape(entry, field.value())
                             : read_offsets(name, offsets, field.value());
      if (!read) return read;
    }
    constexpr std::string_view kKeys[] = {"dtype", "shape", "data_offsets"};
    for (unsigned i = 0; i < 3; ++i) {
      if (!(seen & 1u << i)) return fail(ErrorCode::kInvalidFile, "tensor {}: no '{}'", quote(name), kKeys[i]);
    }
    return finish_tensor(entry, offsets);
  }

  Result<bool> read_dtype(TensorEntry& entry, json::value value) {
    std::string_view text;
    if (const auto error = value.get_string().get(text)) return bad_field(error, entry.name, "dtype");
    if (const auto dtype = parse_dtype(text)) {
      entry.dtype = *dtype;
      return true;
    }
    if (std::find(std::begin(kForeignDTypes), std::end(kForeignDTypes), text) != std::end(kForeignDTypes)) {
      return fail(ErrorCode::kUnsupported, "tensor {}: dtype {} is not supported", quote(entry.name), quote(text));
    }
    return fail(ErrorCode::kInvalidFile, "tensor {}: unknown dtype {}", quote(entry.name), quote(text));
  }

  Result<bool> read_shape(TensorEntry& entry, json::value value) {
    json::array array;
    if (const auto error = value.get_array().get(array)) return bad_field(error, entry.name, "shape");
    for (auto element : array) {
      std::uint64_t size = 0;
      if (const auto error = element.get_uint64().get(size)) return bad_field(error, entry.name, "shape");
      if (entry.rank == Tensor::kMaxRank) {
        return fail(ErrorCode::kUnsupported, "tensor {}: more than {} dimensions", quote(entry.name),
                    Tensor::kMaxRank);
      }
      if (size > static_cast<std::uint64_t>(INT64_MAX)) {
        return fail(ErrorCode::kInvalidFile, "tensor {}: size {} of dimension {} is too large", quote(entry.name), size,
                    static_cast<int>(entry.rank));
      }
      entry.sizes[entry.rank++] = static_cast<std::int64_t>(size);
    }
    return true;
  }

  Result<bool> read_offsets(std::string_view name, std::array<std::uint64_t, 2>& offsets, json::value value) {
    json::array array;
    if (const auto error = value.get_array().get(array)) return bad_field(error, name, "data_offsets");
    std::size_t count = 0;
    for (auto element : array) {
      std::uint64_t offset = 0;
      if (const auto error = element.get_uint64().get(offset)) return bad_field(error, name, "data_offsets");
      if (count < 2) offsets[count] = offset;
      ++count;
    }
    if (count == 2) return true;
    return fail(ErrorCode::kInvalidFile, "tensor {}: data_offsets: expected 2 numbers, found {}", quote(name), count);
  }

  /// Shape, dtype, offsets and file size must all tell the same story.
  Result<bool> finish_tensor(TensorEntry& entry, const std::array<std::uint64_t, 2>& offsets) {
    const auto numel = checked_numel(entry.shape());
    std::int64_t bytes = 0;
    if (!numel || __builtin_mul_overflow(*numel, dtype_size(entry.dtype), &bytes)) {
      return fail(ErrorCode::kInvalidFile, "tensor {}: {} [{}] has more than 2^63 bytes", quote(entry.name),
                  dtype_name(entry.dtype), fmt::join(entry.shape(), ", "));
    }
    const auto [begin, end] = offsets;
    if (end < begin) {
      return fail(ErrorCode::kInvalidFile, "tensor {}: data_offsets [{}, {}] run backwards", quote(entry.name), begin, end);
    }
    if (end > data_size_) {
      return fail(ErrorCode::kInvalidFile, "tensor {}: data_offsets [{}, {}] exceed the {} bytes of data (truncated file?)",
                  quote(entry.name), begin, end, data_size_);
    }
    if (end - begin != static_cast<std::uint64_t>(bytes)) {
      return fail(ErrorCode::kInvalidFile, "tensor {}: {} [{}] takes {} bytes, but data_offsets [{}, {}] hold {}",
                  quote(entry.name), dtype_name(entry.dtype), fmt::join(entry.shape(), ", "), bytes, begin, end,
                  end - begin);
    }
    entry.offset = data_begin_ + begin;
    header_.entries.push_back(entry);
    return true;
  }

  /// No name twice; the tensors tile the data section without overlap, hole or rest.
  Result<bool> check_layout() const {
    const auto& entries = header_.entries;
    if (const auto pair = NameIndex(entries).find_duplicate(entries)) {
      return fail(ErrorCode::kInvalidFile, "tensor {} occurs twice", quote(entries[pair->first].name));
    }
    const auto end_of = [&](std::uint32_t i) { return entries[i].offset + entries[i].bytes(); };
    std::vector<std::uint32_t> order(entries.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto before = [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(entries[a].offset, end_of(a)) < std::pair(entries[b].offset, end_of(b));
    };
    if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);

    std::uint64_t cursor = data_begin_;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const TensorEntry& entry = entries[order[i]];
      if (entry.offset < cursor) {
        return fail(ErrorCode::kInvalidFile, "tensor {}: its bytes begin at {}, inside tensor {}, which ends at {}",
                    quote(entry.name), entry.offset - data_begin_, quote(entries[order[i - 1]].name),
                    cursor - data_begin_);
      }
      if (entry.offset > cursor) {
        return fail(ErrorCode::kInvalidFile, "tensor {}: {} bytes before it, at {}, belong to no tensor", quote(entry.name),
                    entry.offset - cursor, cursor - data_begin_);
      }
      cursor = end_of(order[i]);
    }
    if (cursor - data_begin_ != data_size_) {
      return fail(ErrorCode::kInvalidFile, "the tensors take {} bytes, but the file holds {} bytes of data",
                  cursor - data_begin_, data_size_);
    }
    return true;
  }

  static tl::unexpected<Error> bad_json(simdjson::error_code error, std::string_view what) {
    return fail(ErrorCode::kInvalidFile, "{}: {}", what, simdjson::error_message(error));
  }
  static tl::unexpected<Error> bad_field(simdjson::error_code error, std::string_view name, std::string_view what) {
    return fail(ErrorCode::kInvalidFile, "tensor {}: {}: {}", quote(name), what, simdjson::error_message(error));
  }

  std::string_view text_;
  std::uint64_t data_begin_;
  std::uint64_t data_size_;
  std::uint64_t readable_after_text_;
  SafetensorsHeader header_;
  bool has_metadata_ = false;
};

}  // namespace

std::int64_t TensorEntry::numel() const {
  return std::accumulate(sizes, sizes + rank, std::int64_t{1}, std::multiplies<>());
}

std::string describe(const TensorEntry& entry) {
  return fmt::format("{} [{}]", dtype_name(entry.dtype), fmt::join(entry.shape(), ", "));
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file) {
  constexpr std::uint64_t kLengthBytes = 8;
  if (file.size() < kLengthBytes) {
    return fail(ErrorCode::kInvalidFile, "truncated: {} bytes, a safetensors file has at least {}", file.size(), kLengthBytes);
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader) {
    return fail(ErrorCode::kInvalidFile, "header of {} bytes exceeds the limit of {} (not a safetensors file?)", length,
                kMaxSafetensorsHeader);
  }
  if (length > file.size() - kLengthBytes) {
    return fail(ErrorCode::kInvalidFile, "truncated: the header should take {} bytes, but only {} follow", length,
                file.size() - kLengthBytes);
  }
  if (length == 0 || file[kLengthBytes] != std::byte{'{'}) {
    return fail(ErrorCode::kInvalidFile, "header does not begin with '{{'");
  }
  const auto text = file.subspan(kLengthBytes, static_cast<std::size_t>(length));
  return HeaderParser(text, kLengthBytes + length, file.size()).parse();
}

}  // namespace palimpsest::formats
