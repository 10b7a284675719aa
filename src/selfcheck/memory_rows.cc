// Rows about what is kept: snapshots, forks, tentative tokens, disk, session files, full pools.

#include <array>
#include <deque>

#include "base/error.h"
#include "selfcheck/checker.h"

namespace palimpsest::selfcheck {
namespace {

Engine::Choices exact() {
  return {.cache = {.exact = true}, .fixed_forms = true, .context = nullptr};
}

/// Opens and reads a prompt, which must find something to go on from; checks that the counts are
/// true.
std::int32_t read_warm(Checker& c, Engine& engine, const Question& q, std::string_view what) {
  const std::int64_t before = engine.rows_computed();
  const std::int32_t slot = engine.open_and_read(q.prompt);
  const PromptCounts counts = engine.cache().counts(slot);
  c.require(counts.cached_tokens + counts.replayed_tokens + counts.computed_tokens ==
                    static_cast<std::int64_t>(q.prompt.size()) &&
                counts.replayed_tokens + counts.computed_tokens == engine.rows_computed() - before,
            fmt::format("{}: {} cached, {} replayed and {} computed tokens are not true", what,
                        counts.cached_tokens, counts.replayed_tokens, counts.computed_tokens));
  return slot;
}

void require_hit(Checker& c, Engine& engine, std::int32_t slot, const Question& q,
                 std::string_view what) {
  const std::int64_t cached = engine.cache().counts(slot).cached_tokens;
  c.require(cached == static_cast<std::int64_t>(q.prompt.size()),
            fmt::format("{}: {} of {} tokens were found", what, cached, q.prompt.size()));
}

void check_warm(Checker& c) {
  const Question& base = c.material.base;
  Engine engine(c.subject, c.room(2, true), exact());
  const std::int32_t first = engine.open_and_read(base.prompt);
  c.answer(engine, first, base, "the first time");
  engine.cache().close(first);
  const std::int32_t again = read_warm(c, engine, base, "the same prompt");
  require_hit(c, engine, again, base, "the same prompt");
  c.answer(engine, again, base, "the same prompt");
}

void check_partly_warm(Checker& c) {
  Engine engine(c.subject, c.room(2, true), exact());
  engine.cache().close(engine.open_and_read(c.material.base.prompt));
  std::int64_t cached = 0;
  for (const Question& edit : c.material.edits) {
    const std::string what = fmt::format("an edit that makes {} tokens", edit.prompt.size());
    const std::int32_t slot = read_warm(c, engine, edit, what);
    cached += engine.cache().counts(slot).cached_tokens;
    c.answer(engine, slot, edit, what);
    engine.cache().close(slot);
  }
  c.require(cached > 0 || c.material.base.prompt.size() < 80, "no edit found a snapshot");
}

/// Reads base's prompt and answer, the latter one by one.
std::int32_t read_with_answer(Checker& c, Engine& engine) {
  const std::int32_t slot = engine.open_and_read(c.material.base.prompt);
  c.answer(engine, slot, c.material.base, "the answer");
  return slot;
}

void check_next_turn(Checker& c) {
  const Material& m = c.material;
  Engine engine(c.subject, c.room(2, true),
                {.cache = {}, .fixed_forms = false, .context = nullptr});
  const std::int32_t slot = engine.cache().reopen(read_with_answer(c, engine), m.turn.prompt);
  engine.read(slot);
  c.require(engine.cache().counts(slot).cached_tokens ==
                static_cast<std::int64_t>(m.base.prompt.size() + m.base.answer.size()),
            "the sequence did not go on in place");
  c.answer(engine, slot, m.turn, "in place");
  engine.cache().close(slot);
  // From the snapshot at the end of the answer, in another slot.
  const std::int32_t held = engine.open({});
  const std::int32_t other = read_warm(c, engine, m.turn, "from a snapshot");
  c.answer(engine, other, m.turn, "from a snapshot");
  engine.cache().drop(held);
}

void evict_all(Engine& engine) {
  while (engine.cache().free_units(engine.pool().free_units() + 1)) {
  }
}

void check_eviction(Checker& c) {
  const Material& m = c.material;
  Engine engine(c.subject, c.room(kSlots, true), exact());
  const std::int32_t running = engine.open(m.other.prompt);
  engine.pass(running, 128);
  engine.cache().close(engine.open_and_read(m.base.prompt));
  evict_all(engine);
  c.require(engine.cache().tree().marks() == 0, "a snapshot could not be evicted");
  const std::int32_t again = read_warm(c, engine, m.base, "after eviction");
  c.require(engine.cache().counts(again).cached_tokens == 0, "something evicted was found");
  c.answer(engine, again, m.base, "the prompt again");
  engine.read(running);
  c.answer(engine, running, m.other, "one that was running");
}

void check_spill(Checker& c) {
  const Material& m = c.material;
  Engine::Choices choices = exact();
  choices.cache.disk = m.folder / "spill";
  choices.cache.disk_bytes = std::int64_t{1} << 40;
  Engine engine(c.subject, c.room(2, true), choices);
  engine.cache().close(engine.open_and_read(m.base.prompt));
  evict_all(engine);
  const std::int32_t again = read_warm(c, engine, m.base, "from disk");
  require_hit(c, engine, again, m.base, "from disk");
  c.answer(engine, again, m.base, "the prompt again");
  engine.cache().close(again);
  evict_all(engine);
  const Question& edit = m.edits.back();
  const std::int32_t edited = read_warm(c, engine, edit, "an edit");
  c.require(engine.cache().counts(edited).cached_tokens > 0 || edit.prompt.size() < 90,
            "an edit found nothing on disk");
  c.answer(engine, edited, edit, "an edit");
}

void check_session(Checker& c) {
  const Material& m = c.material;
  const std::filesystem::path path = m.folder / "check.session";
  const auto half = static_cast<std::int64_t>(m.base.answer.size() / 2);
  {
    Engine engine(c.subject, c.room(1, true), exact());
    const std::int32_t slot = engine.open_and_read(m.base.prompt);
    for (std::int64_t i = 0; i < half; ++i) {
      engine.cache().append(slot, std::span(m.base.answer).subspan(static_cast<std::size_t>(i), 1));
      engine.read(slot);
    }
    save_session(path, engine.cache(), slot, m.origin, {});
  }
  Engine engine(c.subject, c.room(2, true), exact());
  const std::int32_t slot = engine.open({});
  load_session(path, engine.cache(), slot, m.origin);
  c.require(engine.rows_computed() == 0, "restoring computed something");
  c.answer(engine, slot, m.base, "the rest of the answer", half);
  engine.cache().close(slot);
  const Question& edit = m.edits.back();
  const std::int32_t edited = read_warm(c, engine, edit, "an edit");
  c.require(engine.cache().counts(edited).cached_tokens > 0 || edit.prompt.size() < 90,
            "an edit found no snapshot of the file");
  c.answer(engine, edited, edit, "an edit");
}

void check_fork(Checker& c) {
  const Material& m = c.material;
  Engine engine(c.subject, c.room(kSlots));
  const std::int32_t parent = engine.open_and_read(m.base.prompt);
  const auto child = engine.cache().fork(parent), spare = engine.cache().fork(parent);
  c.require(child && spare, "no room for a fork");
  if (!child || !spare) return;
  // Both go on in the same passes, with different tokens.
  std::array<Trace, 2> traces = {engine.trace(parent, {}), engine.trace(*child, {})};
  const std::array slots = {parent, *child};
  const std::array<const Question*, 2> questions = {&m.diverged, &m.base};
  for (std::size_t i = 0; i < m.base.answer.size(); ++i) {
    for (const std::size_t n : {0u, 1u})
      engine.cache().append(slots[n], std::span(questions[n]->answer).subspan(i, 1));
    engine.pass(slots, kPassRows);
    for (const std::size_t n : {0u, 1u}) {
      const auto logits = engine.cache().logits(slots[n]);
      traces[n].values.insert(traces[n].values.end(), logits.begin(), logits.end());
    }
  }
  c.expect(traces[0], m.diverged, "the parent");
  c.expect(traces[1], m.base, "the child");
  engine.cache().drop(parent);
  engine.cache().drop(*child);
  c.answer(engine, *spare, m.base, "a second child, after both are gone");
}

void check_rollback(Checker& c) {
  const Question& base = c.material.base;
  Engine engine(c.subject, c.room(1, true));
  const std::int32_t slot = engine.open_and_read(base.prompt);
  const auto guess = [&](std::span<const std::int32_t> ids) {
    c.require(engine.cache().begin(slot), "no room for tentative tokens");
    engine.cache().append(slot, ids);
    engine.read(slot);
  };
  for (const std::size_t count : {std::size_t{1}, c.material.diverged.answer.size()}) {
    guess(std::span(c.material.diverged.answer).first(count));
    engine.cache().commit(slot, 0);
  }
  c.answer(engine, slot, base, "the answer");
}

void check_accepted(Checker& c) {
  const Question& base = c.material.base;
  Engine engine(c.subject, c.room(1, true));
  const std::int32_t slot = engine.open_and_read(base.prompt);
  // Two of the answer and then another token: two stay. Then the next one and all of it stays.
  Tokens guess(base.answer.begin(), base.answer.begin() + 2);
  guess.push_back(c.material.diverged.answer[2]);
  c.require(engine.cache().begin(slot), "no room for tentative tokens");
  engine.cache().append(slot, guess);
  engine.read(slot);
  engine.cache().commit(slot, 2);
  engine.read(slot);
  c.require(engine.cache().begin(slot), "no room for tentative tokens");
  engine.cache().append(slot, std::span(base.answer).subspan(2, 1));
  engine.read(slot);
  engine.cache().commit(slot, 1);
  c.answer(engine, slot, base, "the rest of the answer", 3);
}

void check_full_pool(Checker& c) {
  const Material& m = c.material;
  // Lists for little more than the longest: of two at a time, one must wait.
  Room room = c.room(2);
  room.tokens = room.length;
  Engine engine(c.subject, room, exact());
  std::deque<const Question*> waiting = {&m.base, &m.other, &m.brief, &m.base};
  std::vector<std::pair<std::int32_t, const Question*>> running;
  std::int64_t refused = 0, answered = 0;
  bool full = false;  ///< nobody is let in before somebody has left
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && !full) {
      const auto slot = engine.cache().open(waiting.front()->prompt);
      refused += !slot;
      if (!slot) break;
      running.emplace_back(*slot, waiting.front());
      waiting.pop_front();
    }
    std::vector<std::int32_t> slots;
    for (const auto& [slot, question] : running) slots.push_back(slot);
    if (engine.pass(slots, 128)) continue;
    if (running.size() > 1) {  // there is no room for both: the later one waits
      refused += !engine.cache().wanted(running.back().first, 1).empty() ||
                 !engine.cache().wanted(running.front().first, 1).empty();
      engine.cache().drop(running.back().first);
      waiting.push_front(running.back().second);
      running.pop_back();
      full = true;
    } else {
      const auto [slot, question] = running.front();
      engine.read(slot);  // says so if even this one has no room
      c.answer(engine, slot, *question, fmt::format("request {}", answered++));
      engine.cache().close(slot);
      running.clear();
      full = false;
    }
  }
  c.require(answered == 4, "not all requests were answered");
  c.require(refused > 0, "the pool was never full");
}

}  // namespace

std::vector<Row> memory_rows() {
  return {
      {"warm", "the same prompt again, from its snapshot", true, check_warm},
      {"partly warm", "changed at several places, from snapshots before", true, check_partly_warm},
      {"next turn", "prompt and answer and a message, after the answer", false, check_next_turn},
      {"eviction", "after all snapshots went, beside one that runs", true, check_eviction},
      {"disk", "snapshots written to disk and read again", true, check_spill},
      {"session file", "saved within an answer, restored elsewhere", true, check_session},
      {"fork", "two that go on differently from one", true, check_fork},
      {"rolled back", "tentative tokens taken back", true, check_rollback},
      {"accepted", "tentative tokens of which some stay", false, check_accepted},
      {"full pool", "four requests where lists have room for one", true, check_full_pool},
  };
}

}  // namespace palimpsest::selfcheck
