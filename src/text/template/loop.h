#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "text/template/value.h"

namespace palimpsest::text::jinja {

/// The `loop` of a for statement. Elements pass the loop's condition one by one, no earlier than
/// they are needed: a body may change what the condition looks at.
class LoopState {
 public:
  using Condition = std::function<bool(const Value&)>;

  LoopState(std::span<const Value> source, Condition accepts)
      : source_(source), accepts_(std::move(accepts)) {}

  /// Steps to the next element; null after the last.
  const Value* next();

  std::int64_t index0() const { return static_cast<std::int64_t>(current_) - 1; }
  std::size_t length();
  bool is_last() { return !fetch(current_); }
  /// loop.previtem and loop.nextitem; null where there is none.
  const Value* previous() const { return current_ >= 2 ? &element(current_ - 2) : nullptr; }
  const Value* following() { return fetch(current_) ? &element(current_) : nullptr; }
  /// loop.changed(...): whether `values` differ from those of the last call.
  bool changed(std::span<const Value> values, Budget& budget);
  /// After the statement: the condition, whose variables are gone, is not asked again.
  void close() { examined_ = source_.size(); }

 private:
  const Value& element(std::size_t index) const {
    return accepts_ ? taken_[index] : source_[index];
  }
  /// Whether element `index` exists; accepts elements up to it.
  bool fetch(std::size_t index);

  const std::span<const Value> source_;
  const Condition accepts_;  // empty: takes all
  std::size_t examined_ = 0;
  std::vector<Value> taken_;  // with a condition: the elements it accepted
  std::size_t current_ = 0;   // one past the current element
  std::optional<std::vector<Value>> last_changed_;
};

}  // namespace palimpsest::text::jinja
