#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::server {

/// Looks for stop strings in a text that comes in pieces. Text that may be the beginning of one is
/// held back until that is decided, so what comes out never depends on how the text was cut.
class StopFinder {
 public:
  explicit StopFinder(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Appends to `out` what is certainly in front of any stop string. False once one is complete:
  /// the one that ends first counts, of several that end there the longest, and nothing from its
  /// beginning on comes out.
  bool push(std::string_view text, std::string& out);
  /// No more text comes (here): appends what was held back.
  void flush(std::string& out);
  bool found() const { return found_; }
  const std::string& stop() const { return stop_; }  ///< the one found; empty: none

 private:
  std::vector<std::string> stops_;
  std::string held_, stop_;
  bool found_ = false;
};

}  // namespace palimpsest::server
