#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

// What the memories of a running request look like from outside, for people to watch
// (Engine::watch; docs/web.md).

namespace palimpsest {

struct WatchOptions {
  std::int64_t layer =
      -1;                  ///< the one looked at closely, a layer with pages; -1: the first of them
  bool all_pages = false;  ///< look at the pages of all layers, not only of `layer`
  /// At least so long between two looks at pages. Longer where a look takes more than 1/64 of
  /// the processor time that the engine's thread spends in between.
  std::chrono::milliseconds interval{125};
};

/// A page [V, K] from far: cut into cells, min(32, V) rows of min(32, K).
struct PageView {
  std::int64_t layer = 0, head = 0;
  std::int64_t rows = 0, columns = 0;
  float peak = 0;  ///< the largest |value| of the page
  std::vector<std::uint8_t>
      cells;  ///< [rows, columns]: round(255 sqrt(x / peak)), x the largest |value| in the cell
};

/// What happened at one token. Lists over layers leave out layers that have no such part.
struct TokenView {
  std::int64_t position = 0;
  std::int32_t id = 0;
  std::vector<float> write;  ///< per layer with pages: norm of what was added to its pages, |beta e
                             ///< k^T| over all heads (PageMemoryArgs)
  std::vector<float>
      beta;  ///< per layer with pages: the mean over heads; 1 where writing has no strength
  std::vector<float> head_write, head_beta;  ///< [heads] of WatchOptions::layer
  std::vector<std::uint8_t> retention;  ///< of WatchOptions::layer: round(255 exp(g)), [heads, K],
                                        ///< or [heads] with one decay a head, or nothing
  std::vector<std::int32_t> experts;    ///< [layers with experts, experts per token]
  std::vector<std::uint8_t> depth;  ///< round(255 p) of each mixture over depth, in the order of
                                    ///< the model, one behind the other
};

/// What one pass did to a request.
struct MemoryView {
  std::int64_t length = 0;  ///< tokens that its first choice now holds
  std::span<const TokenView>
      tokens;  ///< of the pass: the last, and at most 63 spread over the others
  std::span<const PageView> pages;  ///< as they are now; often none
  bool ended = false;               ///< the request is over; nothing more comes
};

/// Is called on the engine's thread, as EventHandler is, with views that are valid during the call.
/// False: no more of it.
using WatchHandler = std::function<bool(const MemoryView&)>;

}  // namespace palimpsest
