#include "engine/memory_watch.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

#include "base/log.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kMostRows = 64, kMostCells = 32, kShareOfLooking = 64;

/// Processor time of this thread. Looks are paced by it and not by the clock alone, so that they
/// take the same share of a model that gets little of a busy machine.
double working_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Sums in eight lanes, which a compiler may keep in one register.
float sum_of_squares(const float* x, std::int64_t n) {
  float lanes[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int l = 0; l < 8; ++l) lanes[l] += x[i + l] * x[i + l];
  }
  for (; i < n; ++i) lanes[0] += x[i] * x[i];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

/// 0 to 255 for 0 to 1; NaN is 0.
std::uint8_t as_byte(float x) {
  return x > 0 ? static_cast<std::uint8_t>(std::lround(255 * std::min(x, 1.0f))) : std::uint8_t{0};
}

/// `page` is [values, width], contiguous.
void view_page(const float* page, std::int64_t values, std::int64_t width, PageView& view) {
  view.rows = std::min(values, kMostCells);
  view.columns = std::min(width, kMostCells);
  std::vector<float> largest(static_cast<std::size_t>(view.rows * view.columns)),
      band(static_cast<std::size_t>(width));
  view.peak = 0;
  for (std::int64_t r = 0; r < view.rows; ++r) {
    std::fill(band.begin(), band.end(), 0.0f);
    for (std::int64_t v = r * values / view.rows; v < (r + 1) * values / view.rows; ++v) {
      const float* row = page + v * width;
      for (std::int64_t k = 0; k < width; ++k) {
        const float x = std::abs(row[k]);
        float& most = band[static_cast<std::size_t>(k)];
        most = x > most ? x : most;  // what is no number is passed over
      }
    }
    for (std::int64_t c = 0; c < view.columns; ++c) {
      const auto begin = band.begin() + c * width / view.columns,
                 end = band.begin() + (c + 1) * width / view.columns;
      const float most = std::min(*std::max_element(begin, end), std::numeric_limits<float>::max());
      largest[static_cast<std::size_t>(r * view.columns + c)] = most;
      view.peak = std::max(view.peak, most);
    }
  }
  view.cells.resize(largest.size());
  for (std::size_t i = 0; i < largest.size(); ++i)
    view.cells[i] = view.peak > 0 ? as_byte(std::sqrt(largest[i] / view.peak)) : std::uint8_t{0};
}

}  // namespace

void MemoryWatch::add(RequestId request, const WatchOptions& options, WatchHandler handler) {
  Watcher watcher;
  watcher.request = request;
  watcher.options = options;
  watcher.handler = std::move(handler);
  watchers_.push_back(std::move(watcher));
}

void MemoryWatch::begin_pass() {
  in_pass_ = false;
  for (Watcher& watcher : watchers_) watcher.in_pass = false;
}

void MemoryWatch::add_rows(const Rows& rows) {
  const auto count = static_cast<std::int64_t>(rows.tokens.size());
  for (Watcher& watcher : watchers_) {
    if (watcher.request != rows.request) continue;
    in_pass_ = watcher.in_pass = true;
    watcher.slot = rows.slot;
    watcher.length = rows.position + count;
    watcher.looks = Clock::now() >= watcher.next_look && working_seconds() >= watcher.next_work;
    watcher.looked = 0;
    watcher.look_seconds = 0;
    watcher.rows.clear();
    const std::int64_t shown = std::min(count, kMostRows);
    if (static_cast<std::int64_t>(watcher.tokens.size()) < shown)
      watcher.tokens.resize(static_cast<std::size_t>(shown));
    for (std::int64_t i = 0; i < shown; ++i) {
      const std::int64_t at = (i + 1) * count / shown - 1;
      watcher.rows.push_back(rows.first + at);
      TokenView& token = watcher.tokens[static_cast<std::size_t>(i)];
      token.position = rows.position + at;
      token.id = rows.tokens[static_cast<std::size_t>(at)];
      for (auto* list : {&token.write, &token.beta, &token.head_write, &token.head_beta})
        list->clear();
      token.retention.clear();
      token.experts.clear();
      token.depth.clear();
    }
  }
}

void MemoryWatch::end_pass() {
  if (!std::exchange(in_pass_, false)) return;
  std::erase_if(watchers_, [](Watcher& watcher) {
    if (!watcher.in_pass) return false;
    const double start = working_seconds();
    const bool goes_on =
        tell(watcher, {.length = watcher.length,
                       .tokens = std::span(watcher.tokens).first(watcher.rows.size()),
                       .pages = std::span(watcher.pages).first(watcher.looked)});
    if (watcher.looks) {
      const double now = working_seconds();
      watcher.next_look = Clock::now() + watcher.options.interval;
      watcher.next_work =
          now + static_cast<double>(kShareOfLooking) * (now - start + watcher.look_seconds);
    }
    return !goes_on;
  });
}

void MemoryWatch::drop_pass() {
  in_pass_ = false;
}

void MemoryWatch::ended(RequestId request) {
  std::erase_if(watchers_, [&](Watcher& watcher) {
    if (watcher.request != request) return false;
    tell(watcher, {.length = watcher.length, .tokens = {}, .pages = {}, .ended = true});
    return true;
  });
}

bool MemoryWatch::tell(Watcher& watcher, const MemoryView& view) {
  try {
    return watcher.handler(view);
  } catch (const std::exception& error) {
    log::warning("request {}: who watches its memory threw '{}'", watcher.request, error.what());
  } catch (...) {
    log::warning("request {}: who watches its memory threw", watcher.request);
  }
  return false;
}

// -- what the model does ------------------------------------------------------------------------

Tensor MemoryWatch::before_pages(std::int64_t, const PageMemoryArgs& args) {
  written_.resize(std::max(written_.size(), static_cast<std::size_t>(args.v.numel())));
  return Tensor::contiguous(written_.data(), DType::kF32,
                            {args.v.size(0), args.v.size(1), args.v.size(2)});
}

void MemoryWatch::after_pages(std::int64_t layer, const PageMemoryArgs& args,
                              const Tensor& written) {
  for (Watcher& watcher : watchers_) {
    if (!watcher.in_pass) continue;
    take_writes(watcher, layer, args, written);
    if (watcher.looks && (watcher.options.all_pages || layer == watcher.options.layer))
      look(watcher, layer, args);
  }
}

void MemoryWatch::take_writes(Watcher& watcher, std::int64_t layer, const PageMemoryArgs& args,
                              const Tensor& written) {
  const std::int64_t heads = args.q.size(1), width = args.q.size(2), value_heads = args.v.size(1),
                     values = args.v.size(2);
  const bool close = layer == watcher.options.layer;
  for (std::size_t i = 0; i < watcher.rows.size(); ++i) {
    const std::int64_t row = watcher.rows[i];
    TokenView& token = watcher.tokens[i];
    float squares = 0, betas = 0;
    for (std::int64_t h = 0; h < value_heads; ++h) {
      const float k = sum_of_squares(
          args.k.as<const float>() + (row * heads + h / (value_heads / heads)) * width, width);
      const float square =
          k * sum_of_squares(written.as<const float>() + (row * value_heads + h) * values, values);
      const float beta =
          args.beta.defined() ? args.beta.as<const float>()[row * value_heads + h] : 1.0f;
      squares += square;
      betas += beta;
      if (!close) continue;
      token.head_write.push_back(std::sqrt(square));
      token.head_beta.push_back(beta);
    }
    token.write.push_back(std::sqrt(squares));
    token.beta.push_back(betas / static_cast<float>(value_heads));
    if (!close || args.decay == PageDecay::kNone) continue;
    const std::int64_t gates = value_heads * (args.decay == PageDecay::kChannel ? width : 1);
    const float* g = args.g.as<const float>() + row * gates;
    for (std::int64_t c = 0; c < gates; ++c) token.retention.push_back(as_byte(std::exp(g[c])));
  }
}

void MemoryWatch::look(Watcher& watcher, std::int64_t layer, const PageMemoryArgs& args) {
  const double start = working_seconds();
  for (std::int64_t h = 0; h < args.v.size(1); ++h) {
    if (watcher.pages.size() == watcher.looked) watcher.pages.emplace_back();
    PageView& view = watcher.pages[watcher.looked++];
    view.layer = layer;
    view.head = h;
    view_page(args.pages.at<const float>(watcher.slot, h), args.v.size(2), args.q.size(2), view);
  }
  watcher.look_seconds += working_seconds() - start;
}

Tensor MemoryWatch::before_mix(std::int64_t, const AttentionResidualArgs& args) {
  const std::int64_t rows = args.y.size(0), sources = args.sources.size(0);
  mix_.resize(std::max(mix_.size(), static_cast<std::size_t>(rows * sources)));
  return Tensor::contiguous(mix_.data(), DType::kF32, {rows, sources});
}

void MemoryWatch::after_mix(std::int64_t, const AttentionResidualArgs& args) {
  const std::int64_t sources = args.sources.size(0);
  for (Watcher& watcher : watchers_) {
    if (!watcher.in_pass) continue;
    for (std::size_t i = 0; i < watcher.rows.size(); ++i) {
      const float* p = args.p.as<const float>() + watcher.rows[i] * sources;
      for (std::int64_t j = 0; j < sources; ++j) watcher.tokens[i].depth.push_back(as_byte(p[j]));
    }
  }
}

void MemoryWatch::on_experts(std::int64_t, const Tensor& ids, const Tensor&) {
  const std::int64_t k = ids.size(1);
  for (Watcher& watcher : watchers_) {
    if (!watcher.in_pass) continue;
    for (std::size_t i = 0; i < watcher.rows.size(); ++i) {
      const std::int32_t* chosen = ids.as<const std::int32_t>() + watcher.rows[i] * k;
      watcher.tokens[i].experts.insert(watcher.tokens[i].experts.end(), chosen, chosen + k);
    }
  }
}

}  // namespace palimpsest
