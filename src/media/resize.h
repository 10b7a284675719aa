#pragma once

#include "media/image.h"

namespace palimpsest::media {

/// The picture at another size, byte for byte as Pillow's Image.resize(size, BICUBIC) gives it: the Keys cubic with a = -1/2, widened to the
/// size of an output pixel where the picture shrinks; weights as integers of 22 bits; columns first, then rows, rounded to 8 bits in between.
/// Channels of kRgba are multiplied by alpha before and divided by it after, as there. Both sizes >= 1.
Image resize_bicubic(const Image& image, std::int64_t width, std::int64_t height);

}  // namespace palimpsest::media
