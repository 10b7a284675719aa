// Windows bitmaps without compression: header sizes 12 and 40 to 124; 1, 4, 8 bits with a palette, 16, 24 and 32 bits.

#include <algorithm>
#include <bit>

#include "media/byte_reader.h"
#include "media/decoders.h"

namespace palimpsest::media {
namespace {

constexpr std::size_t kFileHeader = 14;
constexpr std::uint32_t kPlain = 0, kBitFields = 3;

/// Where the bits of each channel lie in a pixel of 16 or 32 bits.
struct Masks {
  std::uint32_t red = 0, green = 0, blue = 0, alpha = 0;
  bool operator==(const Masks&) const = default;
};
constexpr Masks k555{0x7c00, 0x3e0, 0x1f, 0};  // what 16 bits are without masks of their own

struct Header {
  std::int64_t width = 0, height = 0;
  bool top_down = false;
  std::uint32_t bits = 0;
  Masks masks;
  std::size_t pixels = 0;   ///< offset
  std::size_t palette = 0;  ///< offset
  std::size_t entry = 4;    ///< bytes a palette entry
  std::size_t colours = 0;
};

std::uint32_t channel(std::uint32_t pixel, std::uint32_t mask) {
  if (mask == 0) return 0;
  const int shift = std::countr_zero(mask);
  return (pixel & mask) >> shift;
}

/// A channel of n bits as 8, as Pillow does: v * 255 / (2^n - 1), rounded down.
std::uint8_t scaled(std::uint32_t pixel, std::uint32_t mask) {
  if (mask == 0) return 0;
  return static_cast<std::uint8_t>(std::uint64_t{channel(pixel, mask)} * 255 / (mask >> std::countr_zero(mask)));
}

bool contiguous(std::uint32_t mask) {
  const std::uint32_t low = mask == 0 ? 0 : mask >> std::countr_zero(mask);
  return (low & (low + 1)) == 0;
}

Result<void> read_masks(const ByteReader& reader, std::uint32_t header_bytes, std::uint32_t compression, Header& h) {
  if (compression == kPlain) {
    h.masks = h.bits == 16 ? k555 : Masks{0xff0000, 0xff00, 0xff, 0};
    return {};
  }
  const auto red = reader.u32(kFileHeader + 40), green = reader.u32(kFileHeader + 44), blue = reader.u32(kFileHeader + 48);
  const auto alpha = header_bytes >= 56 ? reader.u32(kFileHeader + 52) : std::optional<std::uint32_t>(0);
  if (!red || !green || !blue || !alpha) return fail(ErrorCode::kInvalidFile, "BMP: the file is cut off");
  h.masks = {*red, *green, *blue, *alpha};
  for (const std::uint32_t mask : {*red, *green, *blue, *alpha}) {
    if (!contiguous(mask)) return fail(ErrorCode::kUnsupported, "BMP: channel mask {:#x} has gaps", mask);
  }
  return {};
}

Result<Header> read_header(std::span<const std::byte> bytes) {
  const ByteReader reader(bytes);
  const auto cut = [] { return fail(ErrorCode::kInvalidFile, "BMP: the file is cut off"); };
  const auto pixels = reader.u32(10), size = reader.u32(kFileHeader);
  if (!pixels || !size) return cut();
  const bool old = *size == 12;
  if (!old && (*size < 40 || *size > 124)) return fail(ErrorCode::kUnsupported, "BMP: a header of {} bytes", *size);
  if (bytes.size() < kFileHeader + *size) return cut();
  Header h;
  h.pixels = *pixels;
  h.bits = *reader.u16(kFileHeader + (old ? 10 : 14));
  h.entry = old ? 3 : 4;
  std::uint32_t compression = kPlain, used = 0;
  if (old) {
    h.width = *reader.u16(kFileHeader + 4);
    h.height = *reader.u16(kFileHeader + 6);
  } else {
    h.width = static_cast<std::int32_t>(*reader.u32(kFileHeader + 4));
    h.height = static_cast<std::int32_t>(*reader.u32(kFileHeader + 8));
    compression = *reader.u32(kFileHeader + 16);
    used = *reader.u32(kFileHeader + 32);
  }
  h.top_down = h.height < 0;
  if (h.top_down) h.height = -h.height;
  const bool deep = h.bits == 16 || h.bits == 32;
  if (h.bits != 1 && h.bits != 4 && h.bits != 8 && h.bits != 24 && !deep) return fail(ErrorCode::kUnsupported, "BMP: {} bits a pixel", h.bits);
  if (compression != kPlain && !(compression == kBitFields && deep)) {
    return fail(ErrorCode::kUnsupported, "BMP: compression {} with {} bits a pixel; only plain pixels are read", compression, h.bits);
  }
  if (deep) {
    if (auto masks = read_masks(reader, *size, compression, h); !masks) return tl::make_unexpected(std::move(masks.error()));
  }
  if (h.bits <= 8) {
    h.palette = kFileHeader + *size;
    h.colours = used > 0 ? used : std::size_t{1} << h.bits;
    if (h.colours > 256) return fail(ErrorCode::kInvalidFile, "BMP: a palette of {} colours with {} bits a pixel", h.colours, h.bits);
    if (h.palette + h.colours * h.entry > bytes.size()) return cut();
  }
  return h;
}

/// One row of the file into one of the image.
void read_row(const Header& h, std::span<const std::byte> bytes, std::size_t at, std::uint8_t* out) {
  const auto byte = [&](std::size_t i) { return std::to_integer<std::uint8_t>(bytes[at + i]); };
  const bool alpha = h.masks.alpha != 0;
  for (std::size_t x = 0; x < static_cast<std::size_t>(h.width); ++x) {
    if (h.bits <= 8) {
      const std::size_t bit = x * h.bits;
      const std::size_t index = byte(bit / 8) >> (8 - h.bits - bit % 8) & ((1u << h.bits) - 1);
      for (std::size_t c = 0; c < 3; ++c) *out++ = index < h.colours ? std::to_integer<std::uint8_t>(bytes[h.palette + index * h.entry + 2 - c]) : std::uint8_t{0};
    } else if (h.bits == 24) {
      for (std::size_t c = 0; c < 3; ++c) *out++ = byte(3 * x + 2 - c);
    } else {
      std::uint32_t pixel = 0;
      for (std::size_t i = h.bits / 8; i-- > 0;) pixel = pixel << 8 | byte(x * h.bits / 8 + i);
      *out++ = scaled(pixel, h.masks.red);
      *out++ = scaled(pixel, h.masks.green);
      *out++ = scaled(pixel, h.masks.blue);
      if (alpha) *out++ = scaled(pixel, h.masks.alpha);
    }
  }
}

}  // namespace

Result<Decoded> decode_bmp(std::span<const std::byte> bytes, const ImageLimits& limits) {
  const auto header = read_header(bytes);
  if (!header) return tl::make_unexpected(header.error());
  const Header& h = *header;
  if (auto size = check_size("BMP", h.width, h.height, limits); !size) return tl::make_unexpected(std::move(size.error()));
  const std::size_t stride = (static_cast<std::size_t>(h.width) * h.bits + 31) / 32 * 4;
  // The padding behind the last row may be missing.
  const std::size_t last = (static_cast<std::size_t>(h.width) * h.bits + 7) / 8;
  if (h.pixels > bytes.size() || bytes.size() - h.pixels < stride * static_cast<std::size_t>(h.height - 1) + last) {
    return fail(ErrorCode::kInvalidFile, "BMP: the file is cut off: {} x {} pixels of {} bits do not lie in its {} bytes", h.width, h.height, h.bits, bytes.size());
  }
  Decoded out;
  out.image = make_image(h.width, h.height, h.masks.alpha != 0 ? PixelMode::kRgba : PixelMode::kRgb);
  for (std::int64_t y = 0; y < h.height; ++y) {
    const std::int64_t row = h.top_down ? y : h.height - 1 - y;
    read_row(h, bytes, h.pixels + stride * static_cast<std::size_t>(y), out.image.pixels.data() + row * out.image.row_bytes());
  }
  return out;
}

}  // namespace palimpsest::media
