#include <png.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "media/byte_reader.h"
#include "media/decoders.h"

namespace palimpsest::media {
namespace {

/// Chunks other than pixels (text, profiles) that are unpacked to more than this are refused by libpng.
constexpr png_alloc_size_t kChunkBytes = 8 << 20;

/// libpng leaves a function by longjmp when something is wrong. So whatever has a destructor lives in this class, and what runs between setjmp and
/// longjmp (read_header, read_pixels) has only plain locals.
class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> bytes) : bytes_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  bool ready() const { return info_ != nullptr; }
  const std::string& error() const { return error_; }

  bool read_header() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_set_read_fn(png_, this, on_read);
    png_set_chunk_malloc_max(png_, kChunkBytes);
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // ours are checked behind this
    png_read_info(png_, info_);
    return true;
  }

  std::int64_t width() const { return png_get_image_width(png_, info_); }
  std::int64_t height() const { return png_get_image_height(png_, info_); }
  int depth() const { return png_get_bit_depth(png_, info_); }
  bool is_grey16() const { return depth() == 16 && png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY; }
  bool has_alpha() const {
    return (png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png_, info_, PNG_INFO_tRNS) != 0;
  }
  /// The grey that is transparent, -1 for none.
  int transparent_grey() const {
    png_color_16p colour = nullptr;
    if (png_get_valid(png_, info_, PNG_INFO_tRNS) == 0 || png_get_tRNS(png_, info_, nullptr, nullptr, &colour) == 0 || colour == nullptr) return -1;
    return colour->gray;
  }

  /// `rows`: [height] pointers. 16-bit grey stays as it is (two bytes, high first); everything else becomes RGB or RGBA with 8 bits.
  bool read_pixels(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_))) return false;
    if (!is_grey16()) {
      png_set_expand(png_);
      png_set_strip_16(png_);
      png_set_gray_to_rgb(png_);
    }
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    png_read_image(png_, rows);
    png_read_end(png_, info_);
    return true;
  }

  int orientation() {
    png_uint_32 size = 0;
    png_bytep exif = nullptr;
    if (png_get_eXIf_1(png_, info_, &size, &exif) == 0 || exif == nullptr) return 1;
    return exif_orientation({reinterpret_cast<const std::byte*>(exif), size});
  }

 private:
  static void on_read(png_structp png, png_bytep out, std::size_t size) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (self->bytes_.size() - self->at_ < size) png_error(png, "the file is cut off");
    std::memcpy(out, self->bytes_.data() + self->at_, size);
    self->at_ += size;
  }
  static void on_error(png_structp png, png_const_charp text) {
    static_cast<PngReader*>(png_get_error_ptr(png))->error_ = text;
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::string error_;
};

/// Whether an acTL chunk in front of the pixels announces several frames.
bool is_animated(std::span<const std::byte> bytes) {
  const ByteReader reader(bytes, true);
  for (std::size_t at = 8;;) {
    const auto size = reader.u32(at), type = reader.u32(at + 4);
    if (!size || !type || *type == 0x49444154) return false;                        // IDAT
    if (*type == 0x6163544c) return reader.u32(at + 8).value_or(0) > 1;             // acTL
    at += std::size_t{*size} + 12;
  }
}

/// 16-bit grey as Pillow converts it to 8: whatever is brighter than 255 is white.
Image from_grey16(const std::vector<std::uint8_t>& raw, std::int64_t width, std::int64_t height, int transparent) {
  Image image = make_image(width, height, transparent >= 0 ? PixelMode::kRgba : PixelMode::kRgb);
  const std::int64_t n = channels(image.mode);
  for (std::int64_t i = 0; i < width * height; ++i) {
    const auto at = static_cast<std::size_t>(2 * i);
    const int value = raw[at] << 8 | raw[at + 1];
    std::uint8_t* out = image.pixels.data() + i * n;
    std::fill_n(out, 3, static_cast<std::uint8_t>(std::min(value, 255)));
    if (n == 4) out[3] = value == transparent ? 0 : 255;
  }
  return image;
}

}  // namespace

Result<Decoded> decode_png(std::span<const std::byte> bytes, const ImageLimits& limits) {
  PngReader reader(bytes);
  if (!reader.ready()) return fail(ErrorCode::kOutOfMemory, "PNG: no memory for its decoder");
  if (!reader.read_header()) return fail(ErrorCode::kInvalidFile, "PNG: {}", reader.error());
  const std::int64_t width = reader.width(), height = reader.height();
  if (auto size = check_size("PNG", width, height, limits); !size) return tl::make_unexpected(std::move(size.error()));
  if (is_animated(bytes)) return fail(ErrorCode::kUnsupported, "PNG: an animated picture; one frame is read, not several");

  const bool grey16 = reader.is_grey16();
  const int transparent = grey16 ? reader.transparent_grey() : -1;
  Decoded out;
  std::vector<std::uint8_t> raw;
  if (grey16) {
    raw.resize(static_cast<std::size_t>(2 * width * height));
  } else {
    out.image = make_image(width, height, reader.has_alpha() ? PixelMode::kRgba : PixelMode::kRgb);
  }
  std::uint8_t* const first = grey16 ? raw.data() : out.image.pixels.data();
  const std::int64_t row_bytes = grey16 ? 2 * width : out.image.row_bytes();
  std::vector<png_bytep> rows(static_cast<std::size_t>(height));
  for (std::int64_t y = 0; y < height; ++y) rows[static_cast<std::size_t>(y)] = first + y * row_bytes;
  if (!reader.read_pixels(rows.data())) return fail(ErrorCode::kInvalidFile, "PNG: {}", reader.error());
  if (grey16) out.image = from_grey16(raw, width, height, transparent);
  out.orientation = reader.orientation();
  return out;
}

}  // namespace palimpsest::media
