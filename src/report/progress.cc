#include "report/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/bars.h"
#include "report/numbers.h"

namespace palimpsest::report {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kPlainLine{10};

/// At most `width` columns, so that the terminal never wraps the line that is to be rewritten.
std::string cut_to_width(std::string line, int width) {
  std::size_t end = 0;
  for (int columns = 0; end < line.size(); ++end) {
    const bool starts = (static_cast<unsigned char>(line[end]) & 0xc0) != 0x80;
    if (starts && columns++ == width) break;
  }
  line.resize(end);
  return line;
}

}  // namespace

ProgressBar::ProgressBar(Style style, std::FILE* stream, const Terminal& terminal, Clock clock)
    : style_(std::move(style)), stream_(stream), terminal_(terminal), clock_(std::move(clock)) {
  start_ = clock_();
  last_ = start_;
}

std::string ProgressBar::line(std::int64_t done, std::int64_t total, double seconds) const {
  const auto amount = [this](std::int64_t n) {
    return style_.bytes ? format_bytes(n) : format_grouped(n);
  };
  std::string text = style_.title + "  ";
  if (total > 0 && terminal_.interactive) {
    text += bar(static_cast<double>(done) / static_cast<double>(total), 24) + "  ";
  }
  text += total > 0 ? fmt::format("{} / {}", amount(done), amount(total)) : amount(done);
  if (done <= 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(done) / seconds;
  text += fmt::format("  {}/s", amount(static_cast<std::int64_t>(rate)));
  if (total > done)
    text += fmt::format("  {} left", format_seconds(static_cast<double>(total - done) / rate));
  return text;
}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (finished_) return;
  const auto now = clock_();
  // The first tenth of a second shows nothing: short tasks should not flicker.
  if (now - last_ < (terminal_.interactive ? std::chrono::milliseconds(kRedraw)
                                           : std::chrono::milliseconds(kPlainLine))) {
    return;
  }
  last_ = now;
  done = std::max<std::int64_t>(done, 0);
  const std::string text = line(done, total, std::chrono::duration<double>(now - start_).count());
  if (terminal_.interactive) {
    std::fprintf(stream_, "\r\x1b[K%s", cut_to_width(text, terminal_.width - 1).c_str());
  } else {
    std::fprintf(stream_, "%s\n", text.c_str());
  }
  std::fflush(stream_);
  shown_ = true;
}

void ProgressBar::wipe() {
  if (!shown_ || finished_ || !terminal_.interactive) return;
  shown_ = false;
  std::fputs("\r\x1b[K", stream_);
  std::fflush(stream_);
}

void ProgressBar::finish() {
  wipe();
  finished_ = true;
}

}  // namespace palimpsest::report
