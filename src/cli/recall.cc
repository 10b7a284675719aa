#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "model/state_spec.h"
#include "palimpsest/generate.h"
#include "report/bars.h"
#include "report/numbers.h"
#include "report/progress.h"
#include "report/table.h"

namespace palimpsest::cli {
namespace {

constexpr std::int64_t kDefaultTokens = 4000;
constexpr std::int64_t kMaxAnswer = 16;
// The phrasing that the demo model was trained on.
constexpr std::string_view kFact = "\n\nThe password of Alder House is {}.\n\n";
constexpr std::string_view kNewFact = "\n\nThe password of Alder House is now {}.\n\n";
constexpr std::string_view kQuestion = "\n\nQ: What is the password of Alder House? A:";

/// A fact, its replacement and the question, with filler around them.
struct Story {
  std::string told, overwritten;  ///< the two values
  std::vector<std::int32_t> ids;
  std::int64_t told_at = 0, overwritten_at = 0;  ///< tokens in front of each
  std::int64_t filler_rounds = 0;                ///< how often the filler text was begun
};

/// Hands out a text's ids in pieces of a given length, from the start again when it ends.
class Filler {
 public:
  explicit Filler(std::vector<std::int32_t> ids) : ids_(std::move(ids)) {}
  void append(std::int64_t count, std::vector<std::int32_t>& out) {
    for (; count > 0; --count) {
      if (next_ == 0) ++rounds_;
      out.push_back(ids_[next_]);
      next_ = (next_ + 1) % ids_.size();
    }
  }
  std::int64_t rounds() const { return rounds_; }

 private:
  std::vector<std::int32_t> ids_;
  std::size_t next_ = 0;
  std::int64_t rounds_ = 0;
};

/// Five digits, different for different `which`.
std::string password(std::uint64_t seed, std::uint64_t which) {
  return fmt::format("{}", 10000 + 45000 * which +
                               static_cast<std::uint64_t>(45000 * base::uniform(seed, which, 0)));
}

Story make_story(const Tokenizer& tokenizer, std::string_view filler_text, std::int64_t tokens,
                 std::uint64_t seed) {
  Story story;
  const bool swap = base::uniform(seed, 2, 0) < 0.5;
  story.told = password(seed, swap ? 1 : 0);
  story.overwritten = password(seed, swap ? 0 : 1);
  const auto fact = tokenizer.encode(fmt::format(fmt::runtime(kFact), story.told));
  const auto new_fact = tokenizer.encode(fmt::format(fmt::runtime(kNewFact), story.overwritten));
  const auto question = tokenizer.encode(kQuestion);
  const auto fixed = static_cast<std::int64_t>(fact.size() + new_fact.size() + question.size());
  const std::int64_t room = std::max<std::int64_t>(tokens - fixed, 0);
  Filler filler(tokenizer.encode(filler_text));
  const auto add = [&story](const std::vector<std::int32_t>& ids) {
    story.ids.insert(story.ids.end(), ids.begin(), ids.end());
  };
  filler.append(room / 20, story.ids);
  story.told_at = static_cast<std::int64_t>(story.ids.size());
  add(fact);
  filler.append(room * 9 / 20, story.ids);
  story.overwritten_at = static_cast<std::int64_t>(story.ids.size());
  add(new_fact);
  filler.append(room - room / 20 - room * 9 / 20, story.ids);
  add(question);
  story.filler_rounds = filler.rounds();
  return story;
}

std::string read_filler(const Options& options, const std::filesystem::path& folder) {
  std::string path = options.file.value_or("");
  if (!options.file) {
    path = (folder / "filler.txt").string();
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      throw make_error(ErrorCode::kUsage, "no filler: give a text by -f FILE ({} does not exist)",
                       path);
    }
  }
  std::string text = read_input(path);
  if (text.empty()) throw make_error(ErrorCode::kUsage, "the filler is empty ({})", path);
  return text;
}

struct Answer {
  std::string text;  ///< up to the end of the first sentence or line
  bool newest = false, outdated = false;
};

/// Greedy: what the model itself holds most likely.
Answer ask(Session& session, const Tokenizer& tokenizer, const Story& story,
           const Interruptible& interrupt, GenerateResult& result) {
  Sampler sampler({.temperature = 0}, session.model().config().vocab_size);
  report::ProgressBar bar({.title = "reading the story"}, stderr, report::inspect_terminal(stderr));
  GenerateOptions options;
  options.max_tokens = kMaxAnswer;
  options.stop_ids = tokenizer.stop_ids();
  options.cancel = &interrupt.flag();
  options.on_prompt = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
  std::vector<std::int32_t> held;
  result = generate(session, sampler, held, story.ids, options);
  if (result.finish == FinishReason::kCancelled) throw Error(ErrorCode::kCancelled, "interrupted");
  StreamDecoder decoder(tokenizer);
  std::string written;
  for (const std::int32_t id : result.ids) {
    if (!tokenizer.is_stop(id)) written += decoder.push(id);
  }
  written += decoder.finish();
  Answer answer;
  answer.text = written.substr(0, written.find_first_of(".\n"));
  answer.text.erase(0, answer.text.find_first_not_of(' '));
  answer.newest = answer.text == story.overwritten;
  answer.outdated = answer.text == story.told;
  return answer;
}

std::string_view verdict(const Answer& answer) {
  return answer.newest     ? "the newest value"
         : answer.outdated ? "the OLD value, which was overwritten"
                           : "NOT a value that it was told";
}

struct Bytes {
  std::int64_t pages, list, kv_cache;
};

std::string report_text(const Story& story, const Answer& answer, const GenerateResult& result,
                        const Bytes& bytes, int width) {
  const auto at = [](std::int64_t token) {
    return fmt::format("token {}", report::format_grouped(token));
  };
  report::Table table({{""}, {""}, {"", report::Align::kRight}});
  table.add_row(
      {"told", fmt::format("The password of Alder House is {}.", story.told), at(story.told_at)});
  table.add_row({"overwritten",
                 fmt::format("The password of Alder House is now {}.", story.overwritten),
                 at(story.overwritten_at)});
  table.add_row({"asked", "Q: What is the password of Alder House? A:",
                 at(static_cast<std::int64_t>(story.ids.size()))});
  table.add_row({"answered", fmt::format("{}   ({})", answer.text, verdict(answer))});
  std::string text = table.to_string();
  if (story.filler_rounds > 1)
    text += fmt::format("(the filler is shorter than that and was used {} times)\n",
                        story.filler_rounds);
  text += fmt::format("\nread at {} tokens/s; memory of the {} tokens:\n",
                      report::format_rate(result.computed_tokens, result.prefill_seconds),
                      report::format_grouped(static_cast<std::int64_t>(story.ids.size())));
  const auto row = [](const char* label, std::int64_t n) {
    return report::BarRow{label, static_cast<double>(n), report::format_bytes(n)};
  };
  const report::BarRow rows[] = {row("pages, fixed for any length", bytes.pages),
                                 row("latent list that is kept", bytes.list),
                                 row("KV cache of all layers instead", bytes.kv_cache)};
  return text + report::bar_chart(rows, std::min(width, 100));
}

}  // namespace

int recall(const Options& options) {
  const std::filesystem::path folder = model_folder(options.model);
  const std::string filler = read_filler(options, folder);
  const std::shared_ptr<const Model> model = load_model(options);
  const Tokenizer tokenizer = require_tokenizer(options.model, model->config().vocab_size, "");
  const SamplingParams params = sampling_params(options);  // for its seed
  const Story story =
      make_story(tokenizer, filler, options.tokens.value_or(kDefaultTokens), params.seed);
  const auto tokens = static_cast<std::int64_t>(story.ids.size());

  SessionOptions session_choice = session_options(options);
  session_choice.context = std::min(tokens + kMaxAnswer, model->config().max_position_embeddings);
  Session session(model, session_choice);
  Interruptible interrupt;
  GenerateResult result;
  const Answer answer = ask(session, tokenizer, story, interrupt, result);
  const Bytes bytes{session.memory().pages, tokens * session.memory().list_per_token,
                    tokens * kv_cache_bytes_per_token(model->config(), session_choice.cache_type)};
  if (options.json) {
    const nlohmann::ordered_json json = {{"tokens", tokens},
                                         {"told", story.told},
                                         {"told_at", story.told_at},
                                         {"overwritten", story.overwritten},
                                         {"overwritten_at", story.overwritten_at},
                                         {"answer", answer.text},
                                         {"newest", answer.newest},
                                         {"page_bytes", bytes.pages},
                                         {"list_bytes", bytes.list},
                                         {"kv_cache_bytes", bytes.kv_cache}};
    print(json.dump(1) + "\n");
    return 0;
  }
  print(answer.text + "\n");
  const int width = report::inspect_terminal(stderr).width;
  std::fprintf(stderr, "%s%s\n", report_text(story, answer, result, bytes, width).c_str(),
               fmt::format("{} | seed {}", memory_text(session), params.seed).c_str());
  return 0;
}

}  // namespace palimpsest::cli
