#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "formats/gguf.h"
#include "formats/quote.h"

namespace palimpsest::formats {

static_assert(std::endian::native == std::endian::little, "GGUF values are read as they lie");

/// Walks the header of one file. Every method returns an Error without the file's name.
class GgufParser {
 public:
  explicit GgufParser(std::span<const std::byte> file) : file_(file) {}

  Result<GgufHeader> parse() {
    for (const auto step : {&GgufParser::read_counts, &GgufParser::read_pairs, &GgufParser::read_alignment,
                            &GgufParser::read_infos, &GgufParser::place_tensors, &GgufParser::check_tensors}) {
      if (auto done = (this->*step)(); !done) return tl::make_unexpected(done.error());
    }
    return std::move(header_);
  }

 private:
  std::uint64_t rest() const { return file_.size() - at_; }

  /// The next number; `what` says what it would have been.
  template <class T>
  Result<T> read(std::string_view what) {
    if (rest() < sizeof(T)) return truncated(sizeof(T), what);
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  /// The next u64 length and as many bytes.
  Result<std::string_view> read_string(std::string_view what) {
    const auto length = read<std::uint64_t>(what);
    if (!length) return tl::make_unexpected(length.error());
    if (*length > rest()) return truncated(*length, what);
    const std::string_view text(reinterpret_cast<const char*>(file_.data()) + at_, *length);
    at_ += *length;
    return text;
  }

  tl::unexpected<Error> truncated(std::uint64_t bytes, std::string_view what) const {
    return fail(ErrorCode::kInvalidFile, "truncated: {} at byte {} takes {} bytes, but only {} follow", what, at_, bytes, rest());
  }

  Result<bool> read_counts() {
    if (file_.size() < 4 || std::memcmp(file_.data(), "GGUF", 4) != 0) {
      return fail(ErrorCode::kInvalidFile, "not a GGUF file: it does not begin with 'GGUF'");
    }
    at_ = 4;
    const auto version = read<std::uint32_t>("the version");
    if (!version) return tl::make_unexpected(version.error());
    if (*version != 0 && (*version & 0xffffu) == 0) {
      return fail(ErrorCode::kUnsupported, "a big-endian GGUF file (version bytes {:#010x}); convert it to little-endian", *version);
    }
    if (*version < 2 || *version > 3) {
      return fail(ErrorCode::kUnsupported, "GGUF version {}; versions 2 and 3 can be read", *version);
    }
    header_.version = *version;
    const auto tensors = read<std::uint64_t>("the number of tensors");
    if (!tensors) return tl::make_unexpected(tensors.error());
    const auto pairs = read<std::uint64_t>("the number of key-value pairs");
    if (!pairs) return tl::make_unexpected(pairs.error());
    if (*tensors > kMaxGgufTensors) {
      return fail(ErrorCode::kInvalidFile, "{} tensors exceed the limit of {}", *tensors, kMaxGgufTensors);
    }
    if (*pairs > kMaxGgufPairs) {
      return fail(ErrorCode::kInvalidFile, "{} key-value pairs exceed the limit of {}", *pairs, kMaxGgufPairs);
    }
    // Before anything is reserved: the least bytes that so many could take.
    constexpr std::uint64_t kLeastPair = 8 + 1 + 4 + 1, kLeastInfo = 8 + 1 + 4 + 4 + 8;
    if (*pairs * kLeastPair + *tensors * kLeastInfo > rest()) {
      return fail(ErrorCode::kInvalidFile, "truncated: {} key-value pairs and {} tensors do not fit into {} bytes", *pairs, *tensors,
                  rest());
    }
    num_tensors_ = *tensors;
    num_pairs_ = *pairs;
    return true;
  }

  Result<bool> read_pairs() {
    auto& entries = header_.metadata.entries_;
    entries.reserve(num_pairs_);
    for (std::uint64_t i = 0; i < num_pairs_; ++i) {
      const auto key = read_string("a key");
      if (!key) return tl::make_unexpected(key.error());
      if (key->empty() || key->size() > kMaxGgufKeyBytes) {
        return fail(ErrorCode::kInvalidFile, "key {}: {} bytes long, expected 1 to {}", quote(*key), key->size(), kMaxGgufKeyBytes);
      }
      GgufMetadata::Entry entry{.key = *key};
      if (auto done = read_value(entry); !done) {
        Error error = done.error();
        return tl::make_unexpected(error.add_context("key " + quote(*key)));
      }
      entries.push_back(entry);
    }
    if (const auto twice = header_.metadata.index()) {
      return fail(ErrorCode::kInvalidFile, "key {} occurs twice", quote(*twice));
    }
    return true;
  }

  Result<bool> read_type(GgufValueType& type, std::string_view what) {
    const auto number = read<std::uint32_t>(what);
    if (!number) return tl::make_unexpected(number.error());
    if (*number >= kNumGgufValueTypes) return fail(ErrorCode::kInvalidFile, "{}: {} is not a value type", what, *number);
    type = static_cast<GgufValueType>(*number);
    return true;
  }

  Result<bool> read_value(GgufMetadata::Entry& entry) {
    if (auto done = read_type(entry.type, "its type"); !done) return done;
    if (entry.type == GgufValueType::kArray) {
      entry.is_array = true;
      if (auto done = read_type(entry.type, "its element type"); !done) return done;
      if (entry.type == GgufValueType::kArray) return fail(ErrorCode::kInvalidFile, "an array of arrays");
      const auto count = read<std::uint64_t>("its number of elements");
      if (!count) return tl::make_unexpected(count.error());
      entry.count = *count;
    }
    return entry.type == GgufValueType::kString ? read_strings(entry) : read_numbers(entry);
  }

  Result<bool> read_strings(GgufMetadata::Entry& entry) {
    const std::uint64_t begin = at_;
    if (entry.count > rest() / 8) return fail(ErrorCode::kInvalidFile, "{} strings do not fit into the {} bytes that follow", entry.count, rest());
    for (std::uint64_t i = 0; i < entry.count; ++i) {
      if (const auto text = read_string("a string"); !text) return tl::make_unexpected(text.error());
    }
    entry.bytes = file_.subspan(begin, at_ - begin);
    return true;
  }

  Result<bool> read_numbers(GgufMetadata::Entry& entry) {
    const auto size = static_cast<std::uint64_t>(gguf_value_size(entry.type));
    if (entry.count > rest() / size) {
      return fail(ErrorCode::kInvalidFile, "truncated: {} values of {} bytes do not fit into the {} bytes that follow", entry.count, size,
                  rest());
    }
    entry.bytes = file_.subspan(at_, entry.count * size);
    at_ += entry.count * size;
    if (entry.type != GgufValueType::kBool) return true;
    for (const std::byte b : entry.bytes) {
      if (b > std::byte{1}) return fail(ErrorCode::kInvalidFile, "a bool is {}, expected 0 or 1", std::to_integer<int>(b));
    }
    return true;
  }

  Result<bool> read_alignment() {
    const GgufMetadata::Entry* entry = header_.metadata.find("general.alignment");
    if (entry == nullptr) return true;
    if (entry->is_array || entry->type != GgufValueType::kU32) {
      return fail(ErrorCode::kInvalidFile, "general.alignment: expected a u32");
    }
    std::uint32_t alignment;
    std::memcpy(&alignment, entry->bytes.data(), sizeof alignment);
    if (!std::has_single_bit(alignment) || alignment > kMaxGgufAlignment) {
      return fail(ErrorCode::kInvalidFile, "general.alignment: {} is not a power of two up to {}", alignment, kMaxGgufAlignment);
    }
    header_.alignment = alignment;
    return true;
  }

  Result<bool> read_infos() {
    header_.tensors.reserve(num_tensors_);
    for (std::uint64_t i = 0; i < num_tensors_; ++i) {
      const auto name = read_string("a tensor's name");
      if (!name) return tl::make_unexpected(name.error());
      if (name->empty() || name->size() > kMaxGgufNameBytes) {
        return fail(ErrorCode::kInvalidFile, "tensor {}: its name has {} bytes, expected 1 to {}", quote(*name), name->size(),
                    kMaxGgufNameBytes);
      }
      GgufTensor tensor{.name = *name};
      if (auto done = read_info(tensor); !done) {
        Error error = done.error();
        return tl::make_unexpected(error.add_context("tensor " + quote(*name)));
      }
      header_.tensors.push_back(tensor);
    }
    return true;
  }

  Result<bool> read_info(GgufTensor& tensor) {
    const auto rank = read<std::uint32_t>("its number of dimensions");
    if (!rank) return tl::make_unexpected(rank.error());
    if (*rank > kMaxGgufRank) return fail(ErrorCode::kInvalidFile, "{} dimensions, expected at most {}", *rank, kMaxGgufRank);
    tensor.rank = static_cast<std::int8_t>(*rank);
    for (std::uint32_t d = 0; d < *rank; ++d) {
      const auto size = read<std::int64_t>("a dimension");
      if (!size) return tl::make_unexpected(size.error());
      if (*size < 0) return fail(ErrorCode::kInvalidFile, "dimension {} is {}", d, *size);
      tensor.sizes[*rank - 1 - d] = *size;
    }
    const auto number = read<std::uint32_t>("its type");
    if (!number) return tl::make_unexpected(number.error());
    tensor.type = find_ggml_type(*number);
    if (tensor.type == nullptr || !tensor.type->supported()) {
      return fail(ErrorCode::kUnsupported, "type {}{} cannot be read; supported types: {}", *number,
                  tensor.type == nullptr ? "" : fmt::format(" ({})", tensor.type->name), supported_ggml_types());
    }
    if (auto done = measure(tensor); !done) return done;
    const auto offset = read<std::uint64_t>("its offset");
    if (!offset) return tl::make_unexpected(offset.error());
    tensor.offset = *offset;
    return true;
  }

  /// Bytes of the tensor. Zeros must not hide an overflow, because strides multiply the other sizes.
  Result<bool> measure(GgufTensor& tensor) const {
    const std::int64_t columns = tensor.type->columns();
    if (tensor.cols() % columns != 0) {
      return fail(ErrorCode::kInvalidFile, "{}: rows of {} columns are no whole number of blocks of {}", describe(tensor), tensor.cols(),
                  columns);
    }
    std::int64_t elements = 1, bytes = 0;
    bool empty = false;
    for (const std::int64_t size : tensor.shape()) {
      empty |= size == 0;
      if (__builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements)) {
        return fail(ErrorCode::kInvalidFile, "{}: more than 2^63 elements", describe(tensor));
      }
    }
    if (__builtin_mul_overflow(elements / columns + (elements % columns != 0), tensor.type->bytes(), &bytes)) {
      return fail(ErrorCode::kInvalidFile, "{}: more than 2^63 bytes", describe(tensor));
    }
    tensor.bytes = empty ? 0 : static_cast<std::uint64_t>(bytes);
    return true;
  }

  /// Offsets from the start of the file, inside it.
  Result<bool> place_tensors() {
    const std::uint64_t begin = (at_ + header_.alignment - 1) / header_.alignment * header_.alignment;
    const std::uint64_t size = file_.size() > begin ? file_.size() - begin : 0;
    data_begin_ = begin;
    for (GgufTensor& tensor : header_.tensors) {
      if (tensor.offset % header_.alignment != 0) {
        return fail(ErrorCode::kInvalidFile, "tensor {}: offset {} is not a multiple of the alignment {}", quote(tensor.name),
                    tensor.offset, header_.alignment);
      }
      if (tensor.offset > size || tensor.bytes > size - tensor.offset) {
        return fail(ErrorCode::kInvalidFile,
                    "tensor {}: {} takes {} bytes at offset {}, but the file holds {} bytes of data (truncated file?)",
                    quote(tensor.name), describe(tensor), tensor.bytes, tensor.offset, size);
      }
      tensor.offset += begin;
    }
    return true;
  }

  /// No name twice, no byte twice.
  Result<bool> check_tensors() {
    const auto& tensors = header_.tensors;
    std::vector<std::uint32_t> order(tensors.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return tensors[a].name < tensors[b].name; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (tensors[order[i]].name == tensors[order[i - 1]].name) {
        return fail(ErrorCode::kInvalidFile, "tensor {} occurs twice", quote(tensors[order[i]].name));
      }
    }
    const auto end_of = [](const GgufTensor& t) { return t.offset + t.bytes; };
    std::sort(order.begin(), order.end(), [&](auto a, auto b) {
      return std::pair(tensors[a].offset, end_of(tensors[a])) < std::pair(tensors[b].offset, end_of(tensors[b]));
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
      const GgufTensor &before = tensors[order[i - 1]], &tensor = tensors[order[i]];
      if (tensor.offset < end_of(before)) {
        return fail(ErrorCode::kInvalidFile, "tensor {}: its bytes begin at {}, inside tensor {}, which ends at {}", quote(tensor.name),
                    tensor.offset - data_begin_, quote(before.name), end_of(before) - data_begin_);
      }
    }
    return true;
  }

  std::span<const std::byte> file_;
  std::uint64_t at_ = 0;
  std::uint64_t num_tensors_ = 0, num_pairs_ = 0, data_begin_ = 0;
  GgufHeader header_;
};

Result<GgufHeader> parse_gguf(std::span<const std::byte> file) { return GgufParser(file).parse(); }

}  // namespace palimpsest::formats
