#include "text/template/budget.h"

#include <algorithm>

#include "base/error.h"

namespace palimpsest::text::jinja {

void Budget::look() {
  if (steps_ > limits_.steps) {
    throw make_error(ErrorCode::kInvalidRequest, "the template takes more than {} steps",
                     limits_.steps);
  }
  if (std::chrono::steady_clock::now() > deadline_) {
    throw make_error(ErrorCode::kInvalidRequest, "the template takes longer than {} ms",
                     limits_.wall_time.count());
  }
  next_look_ = std::min(steps_ + kStepsBetweenLooks, limits_.steps + 1);
}

void Budget::refuse_bytes() const {
  throw make_error(ErrorCode::kInvalidRequest, "the template's values take more than {} bytes",
                   limits_.value_bytes);
}

}  // namespace palimpsest::text::jinja
