// Rows about passes and batches: how a prompt is cut, on how many threads, beside whom.

#include <array>

#include "base/error.h"
#include "selfcheck/checker.h"

namespace palimpsest::selfcheck {
namespace {

/// Reads the answers of all sequences together, a token of each in every pass.
void answer_together(Checker& c, Engine& engine, std::span<const std::int32_t> slots,
                     std::span<const Question* const> questions, std::string_view what) {
  std::vector<Trace> traces(slots.size());
  std::size_t longest = 0;
  for (std::size_t n = 0; n < slots.size(); ++n) {
    traces[n] = engine.trace(slots[n], {});
    longest = std::max(longest, questions[n]->answer.size());
  }
  for (std::size_t i = 0; i < longest; ++i) {
    for (std::size_t n = 0; n < slots.size(); ++n) {
      if (i < questions[n]->answer.size())
        engine.cache().append(slots[n], std::span(questions[n]->answer).subspan(i, 1));
    }
    if (!engine.pass(slots, kPassRows)) throw Error(ErrorCode::kOutOfMemory, "no room to answer");
    for (std::size_t n = 0; n < slots.size(); ++n) {
      const auto logits = engine.cache().logits(slots[n]);
      if (i < questions[n]->answer.size())
        traces[n].values.insert(traces[n].values.end(), logits.begin(), logits.end());
    }
  }
  for (std::size_t n = 0; n < slots.size(); ++n)
    c.expect(traces[n], *questions[n], fmt::format("sequence {}, {}", n, what));
}

void check_threads(Checker& c) {
  const int usual = c.subject.context->pool.size();
  std::vector<int> counts = {usual == 1 ? 2 : 1};
  if (!c.quick) counts.push_back(usual + 1);
  for (const int count : counts) {
    ExecContext context(count, c.subject.model->device());
    context.workspace.reserve(c.material.workspace);
    context.activations = c.subject.context->activations;
    Engine engine(c.subject, c.room(1), {.cache = {}, .fixed_forms = true, .context = &context});
    const std::int32_t slot = engine.open_and_read(c.material.base.prompt);
    c.answer(engine, slot, c.material.base, fmt::format("{} threads", count));
  }
}

void check_pass_sizes(Checker& c) {
  std::vector<std::int64_t> sizes = {128, 200};
  if (!c.quick) sizes.insert(sizes.end(), {2 * kPassRows, kMostRows});
  for (const std::int64_t rows : sizes) {
    Engine engine(c.subject, c.room(1));
    const std::int32_t slot = engine.open_and_read(c.material.base.prompt, rows);
    c.answer(engine, slot, c.material.base, fmt::format("passes of {}", rows));
  }
}

void check_any_cut(Checker& c) {
  constexpr std::array<std::int64_t, 13> kSizes = {1, 2, 3, 4, 5, 7, 16, 17, 31, 63, 64, 65, 100};
  for (const std::size_t first :
       c.quick ? std::vector<std::size_t>{0} : std::vector<std::size_t>{0, 6}) {
    Engine engine(c.subject, c.room(1), {.cache = {}, .fixed_forms = false, .context = nullptr});
    const std::int32_t slot = engine.open(c.material.base.prompt);
    for (std::size_t i = first; engine.pass(slot, kSizes[i % kSizes.size()]); ++i) {
    }
    c.answer(engine, slot, c.material.base, "passes of 1 to 100");
  }
}

void check_slots(Checker& c) {
  const std::array<const Question*, 3> questions = {&c.material.base, &c.material.other,
                                                    &c.material.brief};
  // The order in which sequences take slots, and the order in which passes name them.
  const std::array<std::array<std::size_t, 3>, 2> orders = {{{2, 0, 1}, {1, 2, 0}}};
  for (std::size_t o = c.quick ? 1 : 0; o < orders.size(); ++o) {
    Engine engine(c.subject, c.room(kSlots));
    std::array<std::int32_t, 3> slots{}, passed{};
    for (const std::size_t n : orders[o]) slots[n] = engine.open(questions[n]->prompt);
    for (std::size_t n = 0; n < 3; ++n) passed[n] = slots[orders[1 - o][n]];
    while (engine.pass(passed, 128)) {
    }
    answer_together(c, engine, slots, questions, fmt::format("in order {}", o));
  }
}

void check_mates(Checker& c) {
  const Material& m = c.material;
  Engine engine(c.subject, c.room(kSlots));
  const std::int32_t writer = engine.open_and_read(m.other.prompt);
  const std::int32_t reader = engine.open(m.base.prompt);
  // One reads its prompt while another writes; what is written beside does not matter.
  for (std::size_t i = 0; !engine.cache().wanted(reader, 1).empty(); ++i) {
    if (engine.pool().length(writer) < m.length)
      engine.cache().append(writer,
                            std::span(m.other.answer).subspan(i % m.other.answer.size(), 1));
    if (!engine.pass(std::array{writer, reader}, 128))
      throw Error(ErrorCode::kOutOfMemory, "no room to read");
  }
  // And it answers while a third one reads.
  Trace trace = engine.trace(reader, {});
  const std::int32_t third = engine.open(m.brief.prompt);
  for (const std::int32_t id : m.base.answer) {
    engine.cache().append(reader, {&id, 1});
    engine.pass(std::array{third, writer, reader}, 128);
    const auto logits = engine.cache().logits(reader);
    trace.values.insert(trace.values.end(), logits.begin(), logits.end());
  }
  c.expect(trace, m.base, "the reader");
  engine.read(third, 128);
  c.answer(engine, third, m.brief, "the third");
}

/// Throws in the middle of a pass.
struct Interrupter final : Observer {
  explicit Interrupter(std::int64_t where) : layer(where) {}
  void on_hidden(std::int64_t index, const Tensor&) override {
    if (index == layer) throw Error(ErrorCode::kCancelled, "by the check");
  }
  std::int64_t layer;
};

void check_cancelled_pass(Checker& c) {
  const Material& m = c.material;
  Interrupter interrupter((c.subject.model->config().num_layers() + 1) / 2);
  Engine engine(c.subject, c.room(kSlots, true),
                {.cache = {.exact = true}, .fixed_forms = true, .context = nullptr});
  const std::int32_t bystander = engine.open_and_read(m.brief.prompt);
  const std::array slots = {engine.open(m.base.prompt), engine.open(m.other.prompt)};
  engine.pass(slots, 128);
  bool thrown = false;
  try {
    // Where the first pass was all of a prompt, its next token is interrupted.
    for (std::size_t n = 0; n < 2; ++n) {
      const Question& q = n == 0 ? m.base : m.other;
      if (engine.cache().wanted(slots[n], 1).empty())
        engine.cache().append(slots[n], std::span(q.answer).first(1));
    }
    engine.pass(slots, 128, &interrupter);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled ||
        !std::string_view(error.text()).starts_with("by the check"))
      throw;
    thrown = true;
  }
  c.require(thrown, "no pass was interrupted");
  c.answer(engine, bystander, m.brief, "one that was not in the pass");
  engine.cache().close(bystander);
  for (const Question* q : {&m.base, &m.other}) {
    const std::int32_t slot = engine.open_and_read(q->prompt);
    c.answer(engine, slot, *q, q == &m.base ? "the first, read again" : "the second, read again");
  }
}

void check_cancelled_prompt(Checker& c) {
  const Material& m = c.material;
  Engine engine(c.subject, c.room(kSlots, true),
                {.cache = {.exact = true}, .fixed_forms = true, .context = nullptr});
  std::int32_t slot = engine.open(m.base.prompt);
  engine.pass(slot, 128);
  engine.cache().unwant(slot);
  slot = engine.cache().reopen(slot, m.base.prompt);
  engine.read(slot);
  c.answer(engine, slot, m.base, "the same prompt again");
  // One that is cancelled for good, and another in its place.
  const std::int32_t gone = engine.open(m.other.prompt);
  engine.pass(gone, 128);
  engine.cache().drop(gone);
  const std::int32_t next = engine.open_and_read(m.brief.prompt);
  c.answer(engine, next, m.brief, "another prompt in the same slot");
}

void check_poison(Checker& c) {
  const Material& m = c.material;
  Engine engine(c.subject, c.room(kSlots),
                {.cache = {}, .fixed_forms = true, .context = nullptr, .drop_broken = true});
  const std::int32_t bad = engine.open_and_read(m.other.prompt), good = engine.open(m.base.prompt);
  engine.pass(good, 128);
  engine.pool().poison(bad);
  engine.cache().append(bad, std::span(m.other.answer).first(1));
  engine.pass(std::array{bad, good}, 128);
  c.require(engine.broken() == Tokens{bad}, "a sequence of not-a-numbers was not noticed");
  engine.read(good);
  const std::int32_t next = engine.open_and_read(m.brief.prompt);
  c.answer(engine, good, m.base, "one beside it");
  c.answer(engine, next, m.brief, "one after it in its slot");
}

}  // namespace

std::vector<Row> pass_rows() {
  return {
      {"threads", "more or fewer threads", true, check_threads},
      {"passes", "the prompt in passes of 128 to 768 rows", true, check_pass_sizes},
      {"any passes", "the prompt in passes of 1 to 100 rows", false, check_any_cut},
      {"slots and order", "three sequences in one batch, in other slots and orders", true,
       check_slots},
      {"batch mates", "reading while others write, writing while others read", true, check_mates},
      {"cancelled prompt", "stopped between passes, then read again", true, check_cancelled_prompt},
      {"cancelled pass", "stopped within a layer, then read again", true, check_cancelled_pass},
      {"poisoned neighbour", "beside and after a sequence of not-a-numbers", true, check_poison},
  };
}

}  // namespace palimpsest::selfcheck
