#include <gif_lib.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "media/decoders.h"

namespace palimpsest::media {
namespace {

struct Input {
  std::span<const std::byte> bytes;
  std::size_t at = 0;
};

int on_read(GifFileType* gif, GifByteType* out, int size) {
  auto& input = *static_cast<Input*>(gif->UserData);
  const std::size_t count = std::min(static_cast<std::size_t>(size), input.bytes.size() - input.at);
  std::memcpy(out, input.bytes.data() + input.at, count);
  input.at += count;
  return static_cast<int>(count);
}

tl::unexpected<Error> gif_error(const Input& input, int code) {
  if (input.at >= input.bytes.size()) return fail(ErrorCode::kInvalidFile, "GIF: the file is cut off");
  const char* text = GifErrorString(code);
  return fail(ErrorCode::kInvalidFile, "GIF: {}", text != nullptr ? text : "its bytes are broken");
}

/// Reads up to the first frame's pixels. `transparent`: the index that is not painted, -1 for none.
Result<void> find_first_frame(GifFileType& gif, const Input& input, int& transparent) {
  for (GifRecordType type = UNDEFINED_RECORD_TYPE;;) {
    if (DGifGetRecordType(&gif, &type) != GIF_OK) return gif_error(input, gif.Error);
    if (type == TERMINATE_RECORD_TYPE) return fail(ErrorCode::kInvalidFile, "GIF: there is no picture in it");
    if (type == IMAGE_DESC_RECORD_TYPE) return {};
    if (type != EXTENSION_RECORD_TYPE) continue;
    int code = 0;
    GifByteType* block = nullptr;
    if (DGifGetExtension(&gif, &code, &block) != GIF_OK) return gif_error(input, gif.Error);
    while (block != nullptr) {
      GraphicsControlBlock control;
      if (code == GRAPHICS_EXT_FUNC_CODE && DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK) transparent = control.TransparentColor;
      if (DGifGetExtensionNext(&gif, &block) != GIF_OK) return gif_error(input, gif.Error);
    }
  }
}

/// The frame's indices [height, width], rows in order.
Result<std::vector<GifByteType>> read_indices(GifFileType& gif, const Input& input) {
  const std::int64_t width = gif.Image.Width, height = gif.Image.Height;
  std::vector<GifByteType> indices(static_cast<std::size_t>(width * height));
  const auto read_row = [&](std::int64_t y) { return DGifGetLine(&gif, indices.data() + y * width, static_cast<int>(width)) == GIF_OK; };
  struct Pass {
    int first, step;
  };
  constexpr Pass kInterlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}}, kPlain[] = {{0, 1}};
  const std::span<const Pass> passes = gif.Image.Interlace ? std::span<const Pass>(kInterlaced) : std::span<const Pass>(kPlain);
  for (const Pass pass : passes) {
    for (std::int64_t y = pass.first; y < height; y += pass.step) {
      if (!read_row(y)) return gif_error(input, gif.Error);
    }
  }
  return indices;
}

}  // namespace

Result<Decoded> decode_gif(std::span<const std::byte> bytes, const ImageLimits& limits) {
  Input input{bytes};
  int error = 0, transparent = -1;
  const std::unique_ptr<GifFileType, void (*)(GifFileType*)> gif(DGifOpen(&input, on_read, &error), [](GifFileType* g) { DGifCloseFile(g, nullptr); });
  if (!gif) return gif_error(input, error);
  if (auto size = check_size("GIF", gif->SWidth, gif->SHeight, limits); !size) return tl::make_unexpected(std::move(size.error()));
  if (auto found = find_first_frame(*gif, input, transparent); !found) return tl::make_unexpected(std::move(found.error()));
  if (DGifGetImageDesc(gif.get()) != GIF_OK) return gif_error(input, gif->Error);

  // A frame that reaches beyond the screen makes it larger; what it does not cover is colour 0, or the transparent one.
  const GifImageDesc& frame = gif->Image;
  const std::int64_t width = std::max<std::int64_t>(gif->SWidth, std::int64_t{frame.Left} + frame.Width);
  const std::int64_t height = std::max<std::int64_t>(gif->SHeight, std::int64_t{frame.Top} + frame.Height);
  if (auto size = check_size("GIF", frame.Width, frame.Height, limits); !size) return tl::make_unexpected(std::move(size.error()));
  if (auto size = check_size("GIF", width, height, limits); !size) return tl::make_unexpected(std::move(size.error()));
  const auto indices = read_indices(*gif, input);
  if (!indices) return tl::make_unexpected(indices.error());

  Decoded out;
  out.image = make_image(width, height, transparent >= 0 ? PixelMode::kRgba : PixelMode::kRgb);
  const ColorMapObject* colours = frame.ColorMap != nullptr ? frame.ColorMap : gif->SColorMap;
  const std::int64_t n = channels(out.image.mode);
  const auto paint = [&](std::int64_t x, std::int64_t y, int index) {
    std::uint8_t* pixel = out.image.pixels.data() + (y * width + x) * n;
    const GifColorType grey = {static_cast<GifByteType>(index), static_cast<GifByteType>(index), static_cast<GifByteType>(index)}, black{};
    const GifColorType colour = colours == nullptr ? grey : index < colours->ColorCount ? colours->Colors[index] : black;
    pixel[0] = colour.Red;
    pixel[1] = colour.Green;
    pixel[2] = colour.Blue;
    if (n == 4) pixel[3] = index == transparent ? 0 : 255;
  };
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) paint(x, y, std::max(transparent, 0));
  }
  for (std::int64_t y = 0; y < frame.Height; ++y) {
    for (std::int64_t x = 0; x < frame.Width; ++x) paint(frame.Left + x, frame.Top + y, (*indices)[static_cast<std::size_t>(y * frame.Width + x)]);
  }
  return out;
}

}  // namespace palimpsest::media
