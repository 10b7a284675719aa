#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/limits.h"
#include "engine/logprobs.h"
#include "engine/request.h"
#include "runtime/picture.h"

// What EngineCore does in a pass: rows, the model, tokens.

namespace palimpsest {
namespace {

double seconds_between(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

bool EngineCore::step() {
  const auto start = now_();
  expire();
  begin_waiting();
  draw_ready();  // of prompts that were known to the end
  forget_ended();
  const RequestId looks = want_pictures();
  Pass pass;
  const bool computed = assemble(pass) && run(pass);
  if (computed) draw_ready();
  work_on_pictures(looks);
  forget_ended();
  const auto unmade = [](const Choice* c) { return c->mask && !c->mask->made; };
  waits_for_masks_ = !computed && !running_.empty() &&
                     std::all_of(running_.begin(), running_.end(), unmade);
  update_gauges();
  if (computed) metrics_.step_seconds.add(seconds_between(start, now_()));
  return !idle();
}

// -- pictures ---------------------------------------------------------------------------------

/// Each prompt says which pictures the longest pass over it would touch: first those that go alone
/// (assemble()), then the highest priority and who runs longest. The request that the tower works
/// for, if any.
RequestId EngineCore::want_pictures() {
  PictureRows* pictures = runner_.pictures();
  if (!pictures) return 0;
  pictures->begin_round();
  std::vector<Choice*> readers;
  for (Choice* choice : running_) {
    choice->sees = true;
    const bool reads = cache_.length(choice->slot) < choice->request.prompt();
    if (reads && !choice->request.asked().pictures.empty()) readers.push_back(choice);
  }
  const auto key = [&](const Choice* c) {
    const bool alone = c->suspect(cache_.length(c->slot));
    return std::pair(!alone, alone ? 0 : -c->request.asked().priority);
  };
  std::stable_sort(readers.begin(), readers.end(), [&](const Choice* a, const Choice* b) { return key(a) < key(b); });
  for (Choice* choice : readers) {
    const std::int64_t begin = cache_.length(choice->slot),
                       most = begin + options_.ubatch + kFewestRows - 1;
    choice->sees = pictures->want(cache_.tokens(choice->slot), begin,
                                  std::min(choice->request.prompt(), most));
  }
  return readers.empty() ? 0 : readers.front()->request.submission.id;
}

/// The tower works as long as a pass may last; then others have a turn.
void EngineCore::work_on_pictures(RequestId who) {
  PictureRows* pictures = runner_.pictures();
  if (!pictures) return;
  const auto start = now_();
  try {
    while (runner_.work_on_pictures() && seconds_between(start, now_()) < options_.pass_seconds) {
    }
  } catch (const std::exception& error) {
    log::warning("a picture was not read: {}", error.what());
    for (const auto& request : requests_) {
      if (request->submission.id == who)
        end_request(*request, FinishReason::kError,
                    fmt::format("a picture was not read: {}", error.what()));
    }
  }
  metrics_.picture_seconds += seconds_between(start, now_());
  metrics_.pictures = static_cast<std::uint64_t>(pictures->made());
}

// -- rows -------------------------------------------------------------------------------------

/// Chooses the rows of the next pass. False when there is nothing to compute.
bool EngineCore::assemble(Pass& pass) {
  while (!running_.empty()) {
    pass = {};
    // Who was in a pass that failed goes alone until it is past that place, so that only the one
    // that makes it fail can fail.
    const auto suspect = std::find_if(running_.begin(), running_.end(), [&](const Choice* c) {
      return c->suspect(cache_.length(c->slot));
    });
    const std::vector<Choice*> candidates =
        suspect == running_.end() ? running_ : std::vector<Choice*>{*suspect};
    add_answers(pass, candidates);
    add_prompts(pass, candidates);
    if (pass.choices.empty()) return false;
    if (cache_.make_room(pass.slots, pass.cu_seqlens)) return true;
    if (running_.size() == 1) {
      end_choice(*running_.front(), FinishReason::kError,
                 "the state pool is too small for this sequence alone", ErrorCode::kOutOfMemory);
      forget_ended();
      return false;
    }
    step_back(*running_[first_to_step_back(lanes(running_))]);
  }
  return false;
}

void EngineCore::add(Pass& pass, Choice& choice, std::span<const std::int32_t> ids) {
  pass.choices.push_back(&choice);
  pass.slots.push_back(choice.slot);
  pass.first_logit.push_back(static_cast<std::int64_t>(pass.logit_rows.size()));
  const bool every_row = choice.index == 0 && choice.request.wants_every_row() &&
                         cache_.length(choice.slot) < choice.request.prompt();
  const auto begin = static_cast<std::int32_t>(pass.tokens.size());
  pass.tokens.insert(pass.tokens.end(), ids.begin(), ids.end());
  const auto end = static_cast<std::int32_t>(pass.tokens.size());
  if (!choice.request.asked().pictures.empty()) {
    runner_.pictures()->fill(cache_.tokens(choice.slot), cache_.length(choice.slot), end - begin, begin,
                             pass.tokens, pass.overlay_rows, pass.overlay);
  }
  for (std::int32_t row = every_row ? begin : end - 1; row < end; ++row)
    pass.logit_rows.push_back(row);
  pass.cu_seqlens.push_back(end);
  pass.hidden = pass.hidden || choice.request.pools();
  pass.every_row = pass.every_row || every_row;
  pass.inverse.push_back(inverse_temperature(choice, end - begin));
}

/// What a device prepares for the choice's next token: candidates where a token is chosen behind these rows, and by nothing else.
double EngineCore::inverse_temperature(const Choice& choice, std::int64_t rows) const {
  const EngineRequest& asked = choice.request.asked();
  const bool draws = cache_.length(choice.slot) + rows == choice.request.prompt() + static_cast<std::int64_t>(choice.written.size());
  return draws && !choice.constraint && asked.logprobs < 0 ? choice.sampler->candidates_at() : 0;
}

/// The next token of every answer.
void EngineCore::add_answers(Pass& pass, const std::vector<Choice*>& candidates) {
  for (Choice* choice : candidates) {
    const std::int64_t prompt = choice->request.prompt(), length = cache_.length(choice->slot);
    if (length < prompt) continue;
    const auto next = static_cast<std::size_t>(length - prompt);
    if (choice->mask && next == choice->written.size()) continue;
    PALIMPSEST_CHECK(next < choice->written.size(), "a token was chosen for every answer");
    if (cache_.wanted(choice->slot, 1).empty())
      cache_.append(choice->slot, std::span(choice->written).subspan(next, 1));
    add(pass, *choice, cache_.wanted(choice->slot, 1));
  }
}

void EngineCore::add_prompts(Pass& pass, const std::vector<Choice*>& candidates) {
  std::vector<Choice*> readers;
  for (Choice* choice : candidates) {
    if (cache_.length(choice->slot) < choice->request.prompt() && choice->sees) readers.push_back(choice);
  }
  if (readers.empty()) return;
  const auto answers = static_cast<std::int64_t>(pass.choices.size());
  const std::int64_t rows =
      answers == 0
          ? options_.ubatch
          : budget_.rows_for(options_.pass_seconds, answers + kSmallestPass, options_.ubatch);
  const auto shares = share_rows(lanes(readers), rows - answers, kSnapshotGrid, kFewestRows - 1);
  std::int64_t logits_left = logprob_rows(runner_.vocab_size(), options_.ubatch);
  for (std::size_t i = 0; i < readers.size(); ++i) {
    if (shares[i] == 0) continue;
    Choice& choice = *readers[i];
    std::int64_t most = shares[i] + kFewestRows - 1;
    if (choice.index == 0 && choice.request.wants_every_row()) {
      if (logits_left < kSmallestPass) continue;
      most = std::min(most, logits_left);
    }
    const auto ids = cache_.wanted(choice.slot, most);
    if (choice.index == 0 && choice.request.wants_every_row())
      logits_left -= static_cast<std::int64_t>(ids.size());
    pass.prompt_rows += static_cast<std::int64_t>(ids.size());
    add(pass, choice, ids);
  }
}

// -- the model --------------------------------------------------------------------------------

bool EngineCore::run(Pass& pass) {
  watch_rows(pass);
  const auto start = now_();
  for (Choice* choice : running_) choice->facts = nullptr;
  PassRunner::Rows rows;
  try {
    const Batch batch{.tokens = pass.tokens,
                      .cu_seqlens = pass.cu_seqlens,
                      .slots = pass.slots,
                      .logit_rows = pass.logit_rows,
                      .fixed_forms = options_.exact,
                      .overlay_rows = pass.overlay_rows,
                      .overlay = pass.overlay.data()};
    rows = pass.every_row ? runner_.run(batch, cache_.pool(), pass.hidden)
                          : runner_.run_to_slots(batch, cache_.pool(), pass.hidden, pass.inverse);
  } catch (const std::exception& error) {
    watch_.drop_pass();
    failed(pass, error.what());
    return false;
  }
  watch_.end_pass();
  const double seconds = seconds_between(start, now_());
  budget_.observe(static_cast<std::int64_t>(pass.tokens.size()), pass.prompt_rows, seconds);
  metrics_.forward_seconds += seconds;
  ++metrics_.passes;
  for (std::size_t n = 0; n < pass.choices.size(); ++n) take_rows(pass, rows, n);
  return true;
}

/// Lets those look on who watch one of the pass's requests.
void EngineCore::watch_rows(const Pass& pass) {
  if (!watch_.empty()) {
    watch_.begin_pass();
    for (std::size_t n = 0; n < pass.choices.size(); ++n) {
      const Choice& choice = *pass.choices[n];
      if (choice.index != 0) continue;
      const auto first = static_cast<std::size_t>(pass.cu_seqlens[n]),
                 end = static_cast<std::size_t>(pass.cu_seqlens[n + 1]);
      watch_.add_rows({.request = choice.request.submission.id,
                       .slot = choice.slot,
                       .first = pass.cu_seqlens[n],
                       .position = cache_.length(choice.slot),
                       .tokens = std::span(pass.tokens).subspan(first, end - first)});
    }
  }
  runner_.observe(watch_.observer());
}

/// Some layers may have seen the pass's tokens and others not: its sequences are computed again.
void EngineCore::failed(const Pass& pass, std::string_view why) {
  ++metrics_.failed_passes;
  log::warning("a pass over {} sequences failed: {}", pass.choices.size(), why);
  for (Choice* choice : pass.choices) {
    choice->failed_at = std::max(choice->failed_at, cache_.length(choice->slot));
    cache_.drop(choice->slot);
    choice->slot = -1;
    if (++choice->failures > 1 && pass.choices.size() == 1) {
      const std::string text = fmt::format("the model failed: {}", why);
      // Nobody else has read the prompt yet.
      for (Choice& other : choice->request.choices) {
        if (other.state == Choice::State::kUnborn)
          end_choice(other, FinishReason::kError, text, ErrorCode::kInternal);
      }
      end_choice(*choice, FinishReason::kError, text, ErrorCode::kInternal);
      continue;
    }
    std::erase(running_, choice);
    enqueue(*choice);
  }
}

/// What a pass computed for its n-th sequence.
void EngineCore::take_rows(const Pass& pass, const PassRunner::Rows& rows, std::size_t n) {
  Choice& choice = *pass.choices[n];
  Request& request = choice.request;
  const std::int64_t first = pass.cu_seqlens[n], count = pass.cu_seqlens[n + 1] - first;
  const auto logits = static_cast<std::int64_t>(
      n + 1 < pass.choices.size() ? pass.first_logit[n + 1]
                                  : static_cast<std::int64_t>(pass.logit_rows.size()));
  const std::int64_t vocab = runner_.vocab_size();
  std::span<const float> values, last;
  if (rows.facts.empty()) {
    values = {rows.logits.as<const float>() + pass.first_logit[n] * vocab,
              static_cast<std::size_t>((logits - pass.first_logit[n]) * vocab)};
    last = values.last(static_cast<std::size_t>(vocab));
  } else {
    choice.facts = &rows.facts[n];
  }
  if (choice.facts ? choice.facts->odd >= 0 : !all_finite(values)) {
    ++metrics_.nonfinite;
    const std::string text =
        fmt::format("the model produced non-finite logits within the first {} tokens",
                    cache_.length(choice.slot));
    cache_.condemn(choice.slot);
    choice.slot = -1;
    for (Choice& other : request.choices) {
      if (&other == &choice || other.state == Choice::State::kUnborn)
        end_choice(other, FinishReason::kError, text, ErrorCode::kNumeric);
    }
    return;
  }
  cache_.computed(choice.slot, count, last);
  const std::int64_t length = cache_.length(choice.slot);
  const bool of_prompt = length - count < request.prompt();
  (of_prompt ? metrics_.prompt_rows : metrics_.answer_rows) += static_cast<std::uint64_t>(count);
  metrics_.recomputed_rows += static_cast<std::uint64_t>(
      std::clamp<std::int64_t>(choice.reached - (length - count), 0, count));
  choice.reached = std::max(choice.reached, length);
  if (length > choice.failed_at) choice.failures = 0;
  shares_.serve(request.asked().user, count);
  if (!of_prompt) return;
  choice.served += static_cast<double>(count);
  if (request.pools()) pool_hidden(choice, rows.hidden, first, count);
  if (!request.prompt_read) tell_prompt(choice, values, count);
}

/// `logits` of `count` rows of the prompt, or of the last of them.
void EngineCore::tell_prompt(Choice& choice, std::span<const float> logits, std::int64_t count) {
  Request& request = choice.request;
  const std::int64_t end = cache_.length(choice.slot), begin = end - count;
  const auto vocab = static_cast<std::size_t>(runner_.vocab_size());
  if (request.wants_every_row()) {
    // Row r says how likely token r + 1 was.
    const std::int64_t from = std::max(begin + 1, request.logprobs_told),
                       to = std::min(end + 1, request.prompt());
    std::vector<TokenInfo> tokens(static_cast<std::size_t>(std::max<std::int64_t>(0, to - from)));
    runner_.threads().parallel_for(
        static_cast<std::int64_t>(tokens.size()), 1, [&](std::int64_t b, std::int64_t e, int) {
          for (std::int64_t i = b; i < e; ++i) {
            const auto row = static_cast<std::size_t>(from + i - 1 - begin);
            tokens[static_cast<std::size_t>(i)] =
                token_info(logits.subspan(row * vocab, vocab),
                           request.asked().prompt[static_cast<std::size_t>(from + i)],
                           request.asked().prompt_logprobs);
          }
        });
    request.logprobs_told = std::max(request.logprobs_told, to);
    if (!tokens.empty()) tell(request, PromptLogprobsEvent{from, tokens});
  }
  tell(request, ProgressEvent{std::min(end, request.prompt()), request.prompt()});
}

void EngineCore::pool_hidden(Choice& choice, const Tensor& hidden, std::int64_t first,
                             std::int64_t count) {
  Request& request = choice.request;
  const std::int64_t width = hidden.size(1);
  const bool mean = request.asked().pooling == Pooling::kMean;
  request.pooled.resize(static_cast<std::size_t>(width));
  for (std::int64_t row = mean ? first : first + count - 1; row < first + count; ++row) {
    const float* values = hidden.as<const float>() + row * width;
    for (std::int64_t i = 0; i < width; ++i) {
      double& sum = request.pooled[static_cast<std::size_t>(i)];
      sum = mean ? sum + values[i] : values[i];
    }
  }
  request.pooled_rows = mean ? request.pooled_rows + count : 1;
}

// -- tokens -----------------------------------------------------------------------------------

/// Chooses a token for every sequence whose last one is computed.
void EngineCore::draw_ready() {
  std::vector<Draw> draws;
  for (std::size_t i = 0; i < running_.size(); ++i) {  // grows while prompts fork
    Choice& choice = *running_[i];
    if (!choice.running() || choice.slot < 0) continue;
    Request& request = choice.request;
    const auto written = static_cast<std::int64_t>(choice.written.size());
    if (cache_.length(choice.slot) != request.prompt() + written) continue;
    if (!request.prompt_read) prompt_read(choice);
    const bool waits = choice.mask && !choice.mask->made;
    if (choice.running() && !waits) draws.push_back({&choice, {}, {}});
  }
  const auto one = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) draw(draws[static_cast<std::size_t>(i)]);
  };
  if (draws.size() > 1) {
    runner_.threads().parallel_for(static_cast<std::int64_t>(draws.size()), 1, one);
  } else {
    one(0, static_cast<std::int64_t>(draws.size()), 0);
  }
  for (Draw& d : draws) d.later ? make_mask(*d.choice) : take_token(d);
}

/// Has another thread make the mask of a choice's next token.
void EngineCore::make_mask(Choice& choice) {
  if (choice.ended()) return;
  ++metrics_.slow_masks;
  choice.mask = std::make_shared<Mask>();
  choice.mask->constraint = choice.constraint;
  choice.mask->written = choice.written;
  if (!mask_thread_) mask_thread_.emplace(base::TaskThread::AtEnd::kDrop);
  const bool posted =
      mask_thread_->post([mask = choice.mask, words = choice.allowed.size(), told = mask_made_] {
        if (mask->unwanted) return;
        try {
          mask->allowed.assign(words, 0);
          mask->limited = mask->constraint->allow(mask->written, mask->allowed);
        } catch (const Error& error) {
          mask->error = error;
        } catch (const std::exception& error) {
          mask->error = Error(ErrorCode::kInternal, error.what());
        } catch (...) {
          mask->error = Error(ErrorCode::kInternal, "the constraint failed");
        }
        mask->constraint.reset();
        mask->made = true;
        if (told) told();
      });
  PALIMPSEST_CHECK(posted, "as many may wait as there are choices");
}

/// What comes between the prompt and the first token.
void EngineCore::prompt_read(Choice& choice) {
  Request& request = choice.request;
  request.prompt_read = true;
  request.usage.prompt_seconds = seconds_between(request.started_at, now_());
  if (request.pools()) {
    std::vector<float> values;
    for (const double sum : request.pooled)
      values.push_back(static_cast<float>(sum / static_cast<double>(request.pooled_rows)));
    tell(request, EmbeddingEvent{values});
    end_request(request, FinishReason::kStop, {});
  } else if (request.asked().max_tokens == 0) {
    end_request(request, FinishReason::kLength, {});
  } else {
    fork_prompt(choice);
  }
}

/// Runs beside others: touches this choice alone, throws nothing.
void EngineCore::draw(Draw& d) const {
  Choice& choice = *d.choice;
  const EngineRequest& asked = choice.request.asked();
  try {
    std::span<const std::uint32_t> allowed;
    if (choice.mask) {
      if (choice.mask->error) throw *choice.mask->error;
      choice.allowed.swap(choice.mask->allowed);
      if (choice.mask->limited) allowed = choice.allowed;
      choice.mask.reset();
    } else if (choice.constraint) {
      choice.allowed.assign(static_cast<std::size_t>((runner_.vocab_size() + 31) / 32), 0);
      const auto limited = choice.constraint->allow_soon(choice.written, choice.allowed);
      d.later = !limited;
      if (d.later) return;
      if (*limited) allowed = choice.allowed;
    }
    const std::span<const std::int32_t> tokens = cache_.tokens(choice.slot);
    const auto sequence = static_cast<std::uint64_t>(choice.index);
    if (choice.facts && !choice.constraint && asked.logprobs < 0) {
      if (const auto id = choice.sampler->sample(*choice.facts, sequence, tokens.size())) {
        d.token.id = *id;
        return;
      }
    }
    const std::span<const float> logits = cache_.logits(choice.slot);
    d.token.id = choice.sampler->sample({.logits = logits,
                                         .recent = tokens,
                                         .written = choice.written,
                                         .allowed = allowed,
                                         .sequence = sequence,
                                         .position = tokens.size()});
    if (asked.logprobs >= 0) d.token = token_info(logits, d.token.id, asked.logprobs);
  } catch (const Error& error) {
    d.error = error;
  } catch (const std::exception& error) {
    d.error = Error(ErrorCode::kInternal, error.what());
  } catch (...) {
    d.error = Error(ErrorCode::kInternal, "the constraint failed");
  }
}

void EngineCore::take_token(Draw& d) {
  Choice& choice = *d.choice;
  Request& request = choice.request;
  const EngineRequest& asked = request.asked();
  if (choice.ended()) return;
  if (d.error) {
    end_choice(choice, FinishReason::kError, d.error->text(), d.error->code());
    return;
  }
  const auto now = now_();
  if (request.usage.written_tokens == 0)
    metrics_.first_token_seconds.add(seconds_between(request.submission.submitted, now));
  if (choice.last_token) metrics_.token_seconds.add(seconds_between(*choice.last_token, now));
  choice.last_token = now;
  choice.written.push_back(d.token.id);
  ++request.usage.written_tokens;
  ++metrics_.written_tokens;
  const bool go_on = tell(request, TokensEvent{choice.index, std::span(&d.token, 1)});
  const bool stops =
      std::find(asked.stop_ids.begin(), asked.stop_ids.end(), d.token.id) != asked.stop_ids.end();
  if (stops || !go_on) {
    end_choice(choice, FinishReason::kStop, {}, ErrorCode::kInternal, stops ? d.token.id : -1);
  } else if (asked.max_tokens >= 0 &&
             static_cast<std::int64_t>(choice.written.size()) >= asked.max_tokens) {
    end_choice(choice, FinishReason::kLength);
  } else if (cache_.length(choice.slot) == options_.context) {
    end_choice(choice, FinishReason::kContext);
  }
}

}  // namespace palimpsest
