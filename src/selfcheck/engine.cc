#include "selfcheck/engine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace palimpsest::selfcheck {
namespace {

constexpr std::int64_t kBlock = 64;

}  // namespace

std::int32_t greedy(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

StatePoolOptions pool_options(const Subject& subject, const Room& room) {
  StatePoolOptions options{.slots = room.slots,
                           .tokens = room.tokens > 0 ? room.tokens : room.slots * room.length,
                           .max_length = room.length,
                           .block_tokens = kBlock,
                           .vocab_size = subject.model->config().vocab_size};
  if (room.snapshots > 0) {
    // A snapshot is the fixed part of a slot, and a block of its own: what one slot more would
    // take.
    StatePoolOptions one = options, two = options;
    one.slots = 1, two.slots = 2;
    one.tokens = two.tokens = kBlock;
    const std::int64_t slot =
        StatePool::bytes(subject.spec, two) - StatePool::bytes(subject.spec, one);
    const std::int64_t unit = StatePool::bytes(subject.spec, one) - slot;
    options.cache_bytes = room.snapshots * (slot + 2 * unit);
  }
  return options;
}

Engine::Engine(const Subject& subject, const Room& room, const Choices& choices)
    : subject_(subject),
      context_(choices.context ? *choices.context : *subject.context),
      fixed_forms_(choices.fixed_forms),
      drop_broken_(choices.drop_broken),
      pool_(subject.spec, pool_options(subject, room), subject.model->device()),
      cache_(pool_, choices.cache) {
  pool_.poison_freed(true);  // whoever reads what was given back shall be seen
}

std::int32_t Engine::open(std::span<const std::int32_t> prompt) {
  const auto slot = cache_.open(prompt);
  if (!slot) throw Error(ErrorCode::kOutOfMemory, "no slot is free");
  return *slot;
}

bool Engine::pass(std::span<const std::int32_t> slots, std::int64_t rows, Observer* observer) {
  if (subject_.cancel && subject_.cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::kCancelled, "interrupted");
  Tokens tokens, in_batch, last_rows;
  std::vector<std::int64_t> cu = {0};
  for (const std::int32_t slot : slots) {
    const auto ids = cache_.wanted(slot, rows);
    if (ids.empty()) continue;
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    cu.push_back(static_cast<std::int64_t>(tokens.size()));
    in_batch.push_back(slot);
    last_rows.push_back(static_cast<std::int32_t>(tokens.size()) - 1);
  }
  if (in_batch.empty() || !cache_.make_room(in_batch, cu)) return false;
  broken_.clear();
  Tensor logits;
  try {
    logits = subject_.forward(context_, *subject_.model,
                              {.tokens = tokens,
                               .cu_seqlens = cu,
                               .slots = in_batch,
                               .logit_rows = last_rows,
                               .fixed_forms = fixed_forms_},
                              pool_, observer);
  } catch (...) {
    for (const std::int32_t slot : in_batch) cache_.drop(slot);
    throw;
  }
  const auto vocab = static_cast<std::size_t>(logits.size(1));
  for (std::size_t i = 0; i < in_batch.size(); ++i) {
    const std::span<const float> row(logits.as<const float>() + i * vocab, vocab);
    if (std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) {
      cache_.computed(in_batch[i], cu[i + 1] - cu[i], row);
    } else {
      cache_.drop(in_batch[i]);
      broken_.push_back(in_batch[i]);
      if (!drop_broken_) throw Error(ErrorCode::kNumeric, "the logits are not finite");
    }
  }
  rows_computed_ += cu.back();
  if (subject_.on_pass) subject_.on_pass(cu.back());
  return true;
}

void Engine::read(std::int32_t slot, std::int64_t rows, Observer* observer) {
  while (pass(slot, rows, observer)) {
  }
  if (!cache_.wanted(slot, 1).empty())
    throw Error(ErrorCode::kOutOfMemory, "the pool has no room for the sequence");
}

Trace Engine::trace(std::int32_t slot, std::span<const std::int32_t> continuation,
                    Observer* observer) {
  Trace trace{.vocab = subject_.model->config().vocab_size, .values = {}};
  const auto note = [&] {
    const auto logits = cache_.logits(slot);
    trace.values.insert(trace.values.end(), logits.begin(), logits.end());
  };
  note();
  for (const std::int32_t id : continuation) {
    cache_.append(slot, {&id, 1});
    read(slot, kPassRows, observer);
    note();
  }
  return trace;
}

}  // namespace palimpsest::selfcheck
