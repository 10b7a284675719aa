#include "convert/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/number_formats.h"
#include "convert/matrix_rows.h"
#include "convert/quantise.h"
#include "formats/quote.h"

namespace palimpsest::convert {
namespace {


/// The first place, in order, whose value cannot be taken; parallel parts report to it.
class FirstBad {
 public:
  void report(std::int64_t position) {
    std::int64_t seen = first_.load(std::memory_order_relaxed);
    while (position < seen && !first_.compare_exchange_weak(seen, position)) {
    }
  }
  std::optional<std::int64_t> position() const {
    const std::int64_t first = first_.load();
    return first == kNone ? std::nullopt : std::optional(first);
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> first_{kNone};
};

/// What one row of floats becomes.
struct RowEncoder {
  Form form;
  std::int64_t cols;

  std::int64_t row_bytes() const { return form == Form::kMxfp4 ? cols / 2 : form == Form::kInt8 ? cols : 2 * cols; }
  std::int64_t scale_bytes() const { return form == Form::kMxfp4 ? cols / kGroup : form == Form::kInt8 ? 2 * (cols / kGroup) : 0; }

  bool takes(float value) const { return form == Form::kF16 ? fits_f16(value) : form == Form::kBf16 ? fits_bf16(value) : std::isfinite(value); }

  void encode(const float* row, std::byte* out, std::byte* scales) const {
    if (scale_bytes() == 0) {
      for (std::int64_t i = 0; i < cols; ++i) {
        const std::uint16_t bits = form == Form::kBf16 ? float_to_bf16(row[i]) : float_to_f16(row[i]);
        std::memcpy(out + 2 * i, &bits, sizeof bits);
      }
      return;
    }
    for (std::int64_t g = 0; g < cols / kGroup; ++g) {
      if (form == Form::kMxfp4) {
        quantise_mxfp4(row + g * kGroup, reinterpret_cast<std::uint8_t*>(out + g * kGroup / 2), reinterpret_cast<std::uint8_t*>(scales + g));
      } else {
        std::uint16_t scale;
        quantise_int8(row + g * kGroup, reinterpret_cast<std::int8_t*>(out + g * kGroup), &scale);
        std::memcpy(scales + 2 * g, &scale, sizeof scale);
      }
    }
  }
};

void copy(const formats::TensorEntry& entry, const formats::Checkpoint& source, const std::atomic<bool>* cancelled, const Sink& sink) {
  std::uint64_t done = 0;
  in_pieces({source.view(entry).as<const std::byte>(), entry.bytes()}, cancelled, [&](std::span<const std::byte> piece) {
    sink(piece);
    release_entry(source, entry, done += piece.size());
  });
}

[[noreturn]] void refuse(const PlannedWeight& weight, const MatrixRows& rows, std::int64_t position) {
  std::vector<float> row(static_cast<std::size_t>(rows.cols()));
  const std::int64_t r = position / rows.cols(), c = position % rows.cols();
  rows.read(r, row.data());
  throw make_error(ErrorCode::kInvalidFile, "tensor {}: value [{}, {}] is {}, which {} cannot hold", formats::quote(weight.items[0].name), r, c,
                   row[static_cast<std::size_t>(c)], form_name(*weight.form));
}

}  // namespace

void check_cancelled(const std::atomic<bool>* cancelled) {
  if (cancelled && cancelled->load(std::memory_order_relaxed)) throw Error(ErrorCode::kCancelled, "interrupted");
}

void in_pieces(std::span<const std::byte> bytes, const std::atomic<bool>* cancelled, const Sink& sink) {
  constexpr std::size_t kPiece = 8 << 20;
  while (!bytes.empty()) {
    check_cancelled(cancelled);
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    sink(piece);
    bytes = bytes.subspan(piece.size());
  }
}

std::int64_t block_rows(std::int64_t cols) { return std::max<std::int64_t>(1, (std::int64_t{4} << 20) / std::max<std::int64_t>(1, cols)); }

void encode(const PlannedWeight& weight, const formats::Checkpoint& source, base::ThreadPool& pool, const std::atomic<bool>* cancelled,
            const Sink& sink) {
  if (!weight.form) {
    for (const auto* entry : {weight.source.dense, weight.source.codes, weight.source.scales}) {
      if (entry) copy(*entry, source, cancelled, sink);
    }
    return;
  }
  const MatrixRows matrix(source, weight.source, weight.turned());
  const RowEncoder encoder{*weight.form, matrix.cols()};
  const std::int64_t rows = matrix.rows(), cols = matrix.cols(), block = std::min(rows, block_rows(cols));
  std::vector<std::byte> out(static_cast<std::size_t>(block * encoder.row_bytes()));
  std::vector<std::byte> scales(static_cast<std::size_t>(rows * encoder.scale_bytes()));
  std::vector<std::vector<float>> scratch(static_cast<std::size_t>(pool.size()), std::vector<float>(static_cast<std::size_t>(cols)));
  for (std::int64_t first = 0; first < rows; first += block) {
    check_cancelled(cancelled);
    const std::int64_t count = std::min(block, rows - first);
    FirstBad bad;
    pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      float* row = scratch[static_cast<std::size_t>(thread)].data();
      for (std::int64_t r = begin; r < end; ++r) {
        matrix.read(first + r, row);
        const float* wrong = std::find_if_not(row, row + cols, [&](float value) { return encoder.takes(value); });
        if (wrong != row + cols) return bad.report((first + r) * cols + (wrong - row));
        encoder.encode(row, out.data() + r * encoder.row_bytes(), scales.data() + (first + r) * encoder.scale_bytes());
      }
    });
    if (const auto position = bad.position()) refuse(weight, matrix, *position);
    sink(std::span(out).first(static_cast<std::size_t>(count * encoder.row_bytes())));
    matrix.release(first + count);
  }
  if (!scales.empty()) sink(scales);
}

}  // namespace palimpsest::convert
