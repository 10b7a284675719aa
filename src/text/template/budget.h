#pragma once

// What a rendering has spent. Every loop over something a template controls goes through step(),
// every byte of a value through charge().

#include <chrono>
#include <cstdint>

#include "text/template/template.h"

namespace palimpsest::text::jinja {

class Budget {
 public:
  explicit Budget(const TemplateLimits& limits)
      : limits_(limits), deadline_(std::chrono::steady_clock::now() + limits.wall_time) {}

  void step(std::uint64_t count = 1) {
    steps_ += count;
    if (steps_ >= next_look_) look();
  }
  void charge(std::uint64_t bytes) {
    bytes_ += bytes;
    if (bytes > limits_.value_bytes || bytes_ > limits_.value_bytes) refuse_bytes();
  }
  const TemplateLimits& limits() const { return limits_; }

 private:
  static constexpr std::uint64_t kStepsBetweenLooks = 4096;

  void look();
  [[noreturn]] void refuse_bytes() const;

  const TemplateLimits limits_;
  const std::chrono::steady_clock::time_point deadline_;
  std::uint64_t steps_ = 0;
  std::uint64_t next_look_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace palimpsest::text::jinja
