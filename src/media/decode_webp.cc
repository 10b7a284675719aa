#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "media/decoders.h"

namespace palimpsest::media {
namespace {

std::string_view status_text(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA: return "the file is cut off";
    case VP8_STATUS_OUT_OF_MEMORY: return "no memory to decode it";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "it uses an unknown feature";
    default: return "its bytes are broken";
  }
}

int orientation_of(const WebPData& data) {
  const std::unique_ptr<WebPDemuxer, void (*)(WebPDemuxer*)> demuxer(WebPDemux(&data), WebPDemuxDelete);
  if (!demuxer) return 1;
  int orientation = 1;
  WebPChunkIterator chunk;
  if (WebPDemuxGetChunk(demuxer.get(), "EXIF", 1, &chunk)) {
    orientation = exif_orientation({reinterpret_cast<const std::byte*>(chunk.chunk.bytes), chunk.chunk.size});
    WebPDemuxReleaseChunkIterator(&chunk);
  }
  return orientation;
}

}  // namespace

Result<Decoded> decode_webp(std::span<const std::byte> bytes, const ImageLimits& limits) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  if (const VP8StatusCode status = WebPGetFeatures(data, bytes.size(), &features); status != VP8_STATUS_OK) {
    return fail(ErrorCode::kInvalidFile, "WebP: {}", status_text(status));
  }
  if (features.has_animation) return fail(ErrorCode::kUnsupported, "WebP: an animated picture; one frame is read, not several");
  if (auto size = check_size("WebP", features.width, features.height, limits); !size) return tl::make_unexpected(std::move(size.error()));

  Decoded out;
  out.image = make_image(features.width, features.height, features.has_alpha ? PixelMode::kRgba : PixelMode::kRgb);
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return fail(ErrorCode::kInternal, "WebP: another version of its library than this was built with");
  config.output.colorspace = features.has_alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {out.image.pixels.data(), static_cast<int>(out.image.row_bytes()), out.image.pixels.size()};
  if (const VP8StatusCode status = WebPDecode(data, bytes.size(), &config); status != VP8_STATUS_OK) {
    return fail(ErrorCode::kInvalidFile, "WebP: {}", status_text(status));
  }
  out.orientation = orientation_of({data, bytes.size()});
  return out;
}

}  // namespace palimpsest::media
