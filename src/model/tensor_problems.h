#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace palimpsest {

/// Deviations between the tensors a model needs and those that are there: the first kMaxListed in words, the rest counted.
class TensorProblems {
 public:
  static constexpr std::size_t kMaxListed = 8;

  void add(std::string text) {
    if (count_++ < kMaxListed) listed_.push_back(std::move(text));
  }
  bool empty() const { return count_ == 0; }
  /// One kInvalidFile for all; `what` the tensors do not fit: "config.json".
  Error error(std::string_view what) const {
    const std::size_t rest = count_ - listed_.size();
    return make_error(ErrorCode::kInvalidFile, "the tensors do not fit {}:\n  {}{}", what, fmt::join(listed_, "\n  "),
                      rest > 0 ? fmt::format("\n  and {} more", rest) : "");
  }

 private:
  std::vector<std::string> listed_;
  std::size_t count_ = 0;
};

}  // namespace palimpsest
