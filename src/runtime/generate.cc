#include "palimpsest/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace palimpsest {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_prompt(const Session& session, std::span<const std::int32_t> held,
                  std::span<const std::int32_t> prompt) {
  if (held.empty() && prompt.empty()) throw make_error(ErrorCode::kUsage, "the prompt is empty");
  const auto wanted = static_cast<std::int64_t>(held.size() + prompt.size());
  if (wanted > session.context()) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "the prompt has {} tokens, but the context holds {}", wanted,
                     session.context());
  }
}

/// Appends an id to the session and to `held`. A failed pass may have emptied the session: `held`
/// follows.
void append(Session& session, std::vector<std::int32_t>& held, std::int32_t id) {
  held.push_back(id);
  try {
    session.append({&id, 1});
  } catch (...) {
    held.resize(static_cast<std::size_t>(session.length()));
    throw;
  }
}

/// Makes `held` and `prompt` what the session and `held` hold.
PromptCounts resume(Session& session, std::vector<std::int32_t>& held,
                    std::span<const std::int32_t> prompt, std::span<const std::int64_t> borders,
                    const std::function<bool()>& on_progress) {
  std::vector<std::int32_t> whole = std::move(held);
  whole.insert(whole.end(), prompt.begin(), prompt.end());
  const auto follow = [&] { held.assign(session.ids().begin(), session.ids().end()); };
  try {
    const PromptCounts counts =
        session.resume(whole, borders, [&](std::int64_t) { return on_progress(); });
    follow();
    return counts;
  } catch (...) {
    follow();
    throw;
  }
}

class Answer {
 public:
  Answer(Session& session, Sampler& sampler, std::vector<std::int32_t>& held,
         const GenerateOptions& options)
      : session_(session), sampler_(sampler), held_(held), options_(options) {}

  GenerateResult write(std::span<const std::int32_t> prompt) {
    read(prompt);
    if (cancelled()) {
      result_.finish = FinishReason::kCancelled;
    } else {
      decode();
    }
    return std::move(result_);
  }

 private:
  bool cancelled() const {
    return options_.cancel && options_.cancel->load(std::memory_order_relaxed);
  }

  void read(std::span<const std::int32_t> prompt) {
    const auto total = static_cast<std::int64_t>(held_.size() + prompt.size());
    result_.prompt_tokens = total;
    if (cancelled()) {
      held_.assign(session_.ids().begin(), session_.ids().end());
      return;
    }
    const auto start = Clock::now();
    session_.want_candidates(options_.constraint ? 0 : sampler_.candidates_at());
    const PromptCounts counts = resume(session_, held_, prompt, options_.borders, [&] {
      if (options_.on_prompt) options_.on_prompt(session_.length(), total);
      return !cancelled();
    });
    result_.cached_tokens = counts.cached_tokens;
    result_.replayed_tokens = counts.replayed_tokens;
    result_.computed_tokens = counts.computed_tokens;
    result_.prefill_seconds = seconds_since(start);
  }

  void decode() {
    // One allocation instead of one now and then, for answers of usual length.
    const std::int64_t room = session_.context() - session_.length() + 1;
    const std::int64_t most =
        std::min<std::int64_t>(room, options_.max_tokens >= 0 ? options_.max_tokens : 4096);
    result_.ids.reserve(static_cast<std::size_t>(most));
    held_.reserve(held_.size() + static_cast<std::size_t>(most));
    Clock::time_point start = Clock::now();
    while (true) {
      if (options_.max_tokens >= 0 &&
          static_cast<std::int64_t>(result_.ids.size()) >= options_.max_tokens) {
        result_.finish = FinishReason::kLength;
        break;
      }
      if (cancelled()) {
        result_.finish = FinishReason::kCancelled;
        break;
      }
      if (!result_.ids.empty()) {
        if (session_.length() == session_.context()) {
          result_.finish = FinishReason::kContext;
          break;
        }
        append(session_, held_, result_.ids.back());
        ++result_.decode_passes;
      }
      const std::int32_t id = choose();
      if (result_.ids.empty()) start = Clock::now();
      result_.ids.push_back(id);
      if (options_.on_token) options_.on_token(id);
      if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) !=
          options_.stop_ids.end()) {
        result_.finish = FinishReason::kStop;
        break;
      }
    }
    if (!result_.ids.empty()) result_.decode_seconds = seconds_since(start);
  }

  std::int32_t choose() {
    if (const LogitFacts* facts = options_.constraint ? nullptr : session_.logit_facts()) {
      if (const auto id = sampler_.sample(*facts, options_.sequence, held_.size())) return *id;
    }
    const std::span<const float> logits = session_.logits();
    std::span<const std::uint32_t> allowed;
    if (options_.constraint) {
      allowed_.assign((logits.size() + 31) / 32, 0);
      if (options_.constraint->allow(result_.ids, allowed_)) allowed = allowed_;
    }
    return sampler_.sample({.logits = logits,
                            .recent = held_,
                            .written = {},
                            .allowed = allowed,
                            .sequence = options_.sequence,
                            .position = held_.size()});
  }

  Session& session_;
  Sampler& sampler_;
  std::vector<std::int32_t>& held_;
  const GenerateOptions& options_;
  std::vector<std::uint32_t> allowed_;
  GenerateResult result_;
};

}  // namespace

std::string_view finish_reason_name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

GenerateResult generate(Session& session, Sampler& sampler, std::vector<std::int32_t>& held,
                        std::span<const std::int32_t> prompt, const GenerateOptions& options) {
  check_prompt(session, held, prompt);
  return Answer(session, sampler, held, options).write(prompt);
}

}  // namespace palimpsest
