#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE

#include <jpeglib.h>
#include <jerror.h>

#include <cstring>
#include <string>

#include "media/decoders.h"

namespace palimpsest::media {
namespace {

/// A progressive picture may say "read all of me again" any number of times for a few bytes each.
constexpr int kMaxScans = 200;
constexpr unsigned kExifMarker = JPEG_APP0 + 1;

/// libjpeg leaves a function by longjmp when something is wrong (see PngReader).
class JpegReader {
 public:
  explicit JpegReader(std::span<const std::byte> bytes) : bytes_(bytes) {
    jpeg_.err = jpeg_std_error(&errors_);
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    errors_.output_message = [](j_common_ptr) {};
    progress_.progress_monitor = on_progress;
    jpeg_.client_data = this;
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  bool read_header() {
    if (setjmp(jump_)) return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_.client_data = this;
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
    jpeg_save_markers(&jpeg_, static_cast<int>(kExifMarker), 0xffff);
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }
  std::int64_t width() const { return jpeg_.image_width; }
  std::int64_t height() const { return jpeg_.image_height; }
  bool is_cmyk() const { return jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK; }

  bool read_pixels(std::uint8_t* pixels, std::int64_t row_bytes) {
    if (setjmp(jump_)) return false;
    jpeg_.out_color_space = is_cmyk() ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW row = pixels + static_cast<std::int64_t>(jpeg_.output_scanline) * row_bytes;
      jpeg_read_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  int orientation() const {
    for (jpeg_saved_marker_ptr marker = jpeg_.marker_list; marker != nullptr; marker = marker->next) {
      if (marker->marker == kExifMarker && marker->data_length >= 6 && std::memcmp(marker->data, "Exif\0\0", 6) == 0) {
        return exif_orientation({reinterpret_cast<const std::byte*>(marker->data), marker->data_length});
      }
    }
    return 1;
  }
  const std::string& error() const { return error_; }

 private:
  static JpegReader& self(j_common_ptr jpeg) { return *static_cast<JpegReader*>(jpeg->client_data); }
  [[noreturn]] static void leave(j_common_ptr jpeg, const char* text) {
    self(jpeg).error_ = text;
    std::longjmp(self(jpeg).jump_, 1);
  }
  static void on_error(j_common_ptr jpeg) {
    char text[JMSG_LENGTH_MAX];
    jpeg->err->format_message(jpeg, text);
    leave(jpeg, text);
  }
  /// Of the warnings only the one about the end of the file is an error: the rest of the picture would be grey.
  static void on_message(j_common_ptr jpeg, int level) {
    if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) leave(jpeg, "the file is cut off");
  }
  static void on_progress(j_common_ptr jpeg) {
    if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > kMaxScans) leave(jpeg, "too many scans");
  }

  std::span<const std::byte> bytes_;
  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  std::string error_;
};

}  // namespace

Result<Decoded> decode_jpeg(std::span<const std::byte> bytes, const ImageLimits& limits) {
  JpegReader reader(bytes);
  if (!reader.read_header()) return fail(ErrorCode::kInvalidFile, "JPEG: {}", reader.error());
  if (auto size = check_size("JPEG", reader.width(), reader.height(), limits); !size) return tl::make_unexpected(std::move(size.error()));
  Decoded out;
  out.orientation = reader.orientation();  // markers are gone once the pixels are read
  out.image = make_image(reader.width(), reader.height(), reader.is_cmyk() ? PixelMode::kCmyk : PixelMode::kRgb);
  if (!reader.read_pixels(out.image.pixels.data(), out.image.row_bytes())) return fail(ErrorCode::kInvalidFile, "JPEG: {}", reader.error());
  if (reader.is_cmyk()) {
    for (std::uint8_t& value : out.image.pixels) value = static_cast<std::uint8_t>(255 - value);  // stored as light, as Adobe does
  }
  return out;
}

}  // namespace palimpsest::media
