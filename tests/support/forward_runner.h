#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/forward.h"
#include "model/state_spec.h"

namespace palimpsest::test {

/// Drives forward() directly: a pool of `slots` sequences and a context with `threads`.
class ForwardRunner {
 public:
  ForwardRunner(std::shared_ptr<const Model> model, int threads = 1, std::int64_t slots = 4, std::int64_t max_rows = 512,
                std::int64_t max_length = 1024, DType cache = DType::kF32, DType pages = DType::kF32)
      : model_(std::move(model)), ctx(threads, model_->device()),
        states(state_spec(model_->config(), cache, pages), {.slots = slots, .tokens = slots * max_length, .max_length = max_length}, model_->device()) {
    ctx.workspace.reserve(forward_workspace_bytes(*model_, max_rows, std::min(slots, max_rows), max_rows));
  }

  /// One pass over several sequences; logits of every row, in the order of the rows.
  std::vector<float> pass(std::span<const std::vector<std::int32_t>> tokens, std::span<const std::int32_t> slots,
                          Observer* observer = nullptr) {
    std::vector<std::int32_t> flat, rows;
    std::vector<std::int64_t> cu = {0};
    for (const auto& t : tokens) {
      flat.insert(flat.end(), t.begin(), t.end());
      cu.push_back(static_cast<std::int64_t>(flat.size()));
    }
    for (std::size_t i = 0; i < flat.size(); ++i) rows.push_back(static_cast<std::int32_t>(i));
    const Tensor logits = forward(ctx, *model_, {.tokens = flat, .cu_seqlens = cu, .slots = slots, .logit_rows = rows, .fixed_forms = fixed_forms}, states, observer);
    return {logits.as<float>(), logits.as<float>() + logits.numel()};
  }

  /// The logits of every token of `ids`, run in chunks of at most `chunk` from an empty state.
  std::vector<float> run(const std::vector<std::int32_t>& ids, std::size_t chunk, Observer* observer = nullptr) {
    const std::int32_t slot = states.acquire();
    std::vector<float> logits;
    for (std::size_t begin = 0; begin < ids.size(); begin += chunk) {
      const auto end = std::min(ids.size(), begin + chunk);
      const std::vector<std::int32_t> part(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end));
      const auto rows = pass(std::span(&part, 1), std::span(&slot, 1), observer);
      logits.insert(logits.end(), rows.begin(), rows.end());
    }
    states.release(slot);
    return logits;
  }

  const Model& model() const { return *model_; }

 private:
  std::shared_ptr<const Model> model_;

 public:
  ExecContext ctx;
  StatePool states;
  bool fixed_forms = false;  ///< Batch::fixed_forms
};

/// Copies of all hidden states of one or more passes over a single sequence.
struct HiddenRecorder final : Observer {
  std::vector<std::vector<float>> hidden;
  void on_hidden(std::int64_t index, const Tensor& t) override {
    if (hidden.size() <= static_cast<std::size_t>(index)) hidden.resize(static_cast<std::size_t>(index) + 1);
    auto& rows = hidden[static_cast<std::size_t>(index)];
    rows.insert(rows.end(), t.as<float>(), t.as<float>() + t.numel());
  }
};

inline std::int32_t argmax(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace palimpsest::test
