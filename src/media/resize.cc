#include "media/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "media/resize.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

namespace palimpsest::media {
#ifndef PALIMPSEST_MEDIA_RESIZE_
#define PALIMPSEST_MEDIA_RESIZE_
inline constexpr int kWeightBits = 22;  ///< of a weight's fraction: 32 less 8 of the pixel and 2 for sums beyond 1 and below 0
inline constexpr std::int64_t kSlack = 16;  ///< bytes that vector loads and stores may touch behind a row

/// Which input pixels an output pixel is made of: `count` from `first`, with weights from `weights` on.
struct Taps {
  std::int64_t first = 0, count = 0;
  const std::int32_t* weights = nullptr;
};
#endif
}  // namespace palimpsest::media

HWY_BEFORE_NAMESPACE();
namespace palimpsest::media {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }
inline constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

/// One row of `columns` output pixels of n = 3 or 4 channels. kSlack bytes behind both rows belong to the caller.
void ResizeRow(const std::uint8_t* in, const Taps* taps, std::int64_t columns, std::int64_t n, std::uint8_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t x = 0; x < columns; ++x) {
    for (std::int64_t c = 0; c < n; ++c) {
      std::int32_t sum = kHalf;
      for (std::int64_t i = 0; i < taps[x].count; ++i) sum += in[(taps[x].first + i) * n + c] * taps[x].weights[i];
      out[x * n + c] = rounded(sum);
    }
  }
#else
  // Channels along the lanes; with 3 of them the fourth lane is the next pixel's and is overwritten by it.
  const hn::CappedTag<std::int32_t, 4> d;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  for (std::int64_t x = 0; x < columns; ++x) {
    auto sum = hn::Set(d, kHalf);
    const std::uint8_t* pixel = in + taps[x].first * n;
    for (std::int64_t i = 0; i < taps[x].count; ++i) {
      sum = hn::Add(sum, hn::Mul(hn::PromoteTo(d, hn::LoadU(d8, pixel + i * n)), hn::Set(d, taps[x].weights[i])));
    }
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kWeightBits>(sum)), d8, out + x * n);
  }
#endif
}

/// One output row of `bytes` bytes from taps.count rows.
void BlendRows(const std::uint8_t* const* rows, const Taps& taps, std::int64_t bytes, std::uint8_t* out) {
  std::int64_t x = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::int32_t> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  for (; x + lanes <= bytes; x += lanes) {
    auto sum = hn::Set(d, kHalf);
    for (std::int64_t i = 0; i < taps.count; ++i) {
      sum = hn::Add(sum, hn::Mul(hn::PromoteTo(d, hn::LoadU(d8, rows[i] + x)), hn::Set(d, taps.weights[i])));
    }
    hn::StoreU(hn::DemoteTo(d8, hn::ShiftRight<kWeightBits>(sum)), d8, out + x);
  }
#endif
  for (; x < bytes; ++x) {
    std::int32_t sum = kHalf;
    for (std::int64_t i = 0; i < taps.count; ++i) sum += rows[i][x] * taps.weights[i];
    out[x] = rounded(sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::media
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::media {

HWY_EXPORT(ResizeRow);
HWY_EXPORT(BlendRows);

namespace {

double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

/// The taps of all output pixels along one axis.
class Axis {
 public:
  Axis(std::int64_t in, std::int64_t out) : taps_(static_cast<std::size_t>(out)) {
    const double scale = static_cast<double>(in) / static_cast<double>(out), stretch = std::max(scale, 1.0);
    const double support = 2 * stretch, per_pixel = 1 / stretch;
    most_ = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
    weights_.resize(static_cast<std::size_t>(out * most_));
    std::vector<double> row(static_cast<std::size_t>(most_));
    for (std::int64_t x = 0; x < out; ++x) {
      const double center = (static_cast<double>(x) + 0.5) * scale;
      const std::int64_t first = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
      const std::int64_t count = std::min(in, static_cast<std::int64_t>(center + support + 0.5)) - first;
      double total = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const double w = cubic((static_cast<double>(i + first) - center + 0.5) * per_pixel);
        row[static_cast<std::size_t>(i)] = w;
        total += w;
      }
      std::int32_t* weights = weights_.data() + x * most_;
      for (std::int64_t i = 0; i < count; ++i) {
        double w = row[static_cast<std::size_t>(i)];
        if (total != 0) w /= total;
        weights[i] = static_cast<std::int32_t>(std::copysign(0.5, w) + w * (1 << kWeightBits));
      }
      taps_[static_cast<std::size_t>(x)] = {first, count, weights};
    }
  }
  const Taps* taps() const { return taps_.data(); }
  const Taps& operator[](std::int64_t x) const { return taps_[static_cast<std::size_t>(x)]; }
  std::int64_t most() const { return most_; }

 private:
  std::int64_t most_ = 0;  ///< taps an output pixel has at most
  std::vector<std::int32_t> weights_;
  std::vector<Taps> taps_;
};

/// Rows of the input resized along x, each made once and kept while an output row may need it.
class RowRing {
 public:
  RowRing(const Image& image, std::int64_t width, std::int64_t rows)
      : image_(image),
        axis_(image.width, width),
        width_(width),
        rows_(rows),
        row_bytes_(width * channels(image.mode)),
        input_(static_cast<std::size_t>(image.row_bytes() + kSlack)),
        ring_(static_cast<std::size_t>(rows * (row_bytes_ + kSlack))) {}

  /// Row y; asked for in ascending order, at most `rows` apart.
  const std::uint8_t* row(std::int64_t y) {
    for (; next_ <= y; ++next_) {
      std::memcpy(input_.data(), image_.pixels.data() + next_ * image_.row_bytes(), static_cast<std::size_t>(image_.row_bytes()));
      HWY_DYNAMIC_DISPATCH(ResizeRow)(input_.data(), axis_.taps(), width_, channels(image_.mode), at(next_));
    }
    return at(y);
  }

 private:
  std::uint8_t* at(std::int64_t y) { return ring_.data() + y % rows_ * (row_bytes_ + kSlack); }

  const Image& image_;
  Axis axis_;
  std::int64_t width_, rows_, row_bytes_, next_ = 0;
  std::vector<std::uint8_t> input_, ring_;
};

void multiply_alpha(Image& image) {
  for (std::size_t i = 0; i < image.pixels.size(); i += 4) {
    const std::uint32_t alpha = image.pixels[i + 3];
    for (std::size_t c = i; c < i + 3; ++c) {
      const std::uint32_t t = image.pixels[c] * alpha + 128;
      image.pixels[c] = static_cast<std::uint8_t>(((t >> 8) + t) >> 8);
    }
  }
}

void divide_alpha(Image& image) {
  for (std::size_t i = 0; i < image.pixels.size(); i += 4) {
    const int alpha = image.pixels[i + 3];
    if (alpha == 0 || alpha == 255) continue;
    for (std::size_t c = i; c < i + 3; ++c) image.pixels[c] = static_cast<std::uint8_t>(std::min(255, 255 * image.pixels[c] / alpha));
  }
}

Image resize_channels(const Image& image, std::int64_t width, std::int64_t height) {
  Image out{width, height, image.mode, {}};
  out.pixels.resize(static_cast<std::size_t>(out.row_bytes() * height));
  const Axis axis(image.height, height);
  RowRing rows(image, width, axis.most());
  std::vector<const std::uint8_t*> wanted(static_cast<std::size_t>(axis.most()));
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t i = 0; i < axis[y].count; ++i) wanted[static_cast<std::size_t>(i)] = rows.row(axis[y].first + i);
    HWY_DYNAMIC_DISPATCH(BlendRows)(wanted.data(), axis[y], out.row_bytes(), out.pixels.data() + y * out.row_bytes());
  }
  return out;
}

}  // namespace

Image resize_bicubic(const Image& image, std::int64_t width, std::int64_t height) {
  if (image.width == width && image.height == height) return image;
  if (image.mode != PixelMode::kRgba) return resize_channels(image, width, height);
  Image multiplied = image;
  multiply_alpha(multiplied);
  Image out = resize_channels(multiplied, width, height);
  divide_alpha(out);
  return out;
}

}  // namespace palimpsest::media
#endif  // HWY_ONCE
