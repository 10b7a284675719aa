#include "text/template/loop.h"

#include <algorithm>

#include "text/template/operators.h"

namespace palimpsest::text::jinja {

bool LoopState::fetch(std::size_t index) {
  if (!accepts_) return index < source_.size();
  while (taken_.size() <= index && examined_ < source_.size()) {
    const Value& item = source_[examined_++];
    if (accepts_(item)) taken_.push_back(item);
  }
  return index < taken_.size();
}

const Value* LoopState::next() {
  if (!fetch(current_)) return nullptr;
  return &element(current_++);
}

std::size_t LoopState::length() {
  fetch(source_.size());
  return accepts_ ? taken_.size() : source_.size();
}

bool LoopState::changed(std::span<const Value> values, Budget& budget) {
  const bool same =
      last_changed_ &&
      std::equal(values.begin(), values.end(), last_changed_->begin(), last_changed_->end(),
                 [&](const Value& a, const Value& b) { return equal(a, b, budget); });
  if (!same) last_changed_.emplace(values.begin(), values.end());
  return !same;
}

}  // namespace palimpsest::text::jinja
