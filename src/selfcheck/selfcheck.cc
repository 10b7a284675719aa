#include "selfcheck/selfcheck.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/rng.h"
#include "model/forward.h"
#include "model/state_spec.h"
#include "plan/memory_plan.h"
#include "selfcheck/checker.h"

namespace palimpsest::selfcheck {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Shortest prompt in which snapshots lie within the default grid, and the longest that is of use.
constexpr std::int64_t kShortest = 208, kLongest = 1024;
/// What all rows compute, in prompts of full length and in tokens written one by one.
constexpr double kPrompts = 43, kWritten = 330, kQuickPrompts = 36, kQuickWritten = 170;
/// What the answers with activations as they are take in addition (Run::prepare).
constexpr double kPlainPrompts = 6, kPlainWritten = 72;
/// Seconds that the prompts shall take where nothing else is asked for.
constexpr double kSeconds = 45;

/// A folder of its own that goes with its owner.
class Folder {
 public:
  Folder() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "palimpsest-XXXXXX").string();
    if (error || !::mkdtemp(name.data()))
      throw make_error(ErrorCode::kIo, "cannot make a folder for temporary files: '{}'", name);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Moves every activation that passes from layer to layer by up to one unit in its last place.
class Disturber final : public Observer {
 public:
  explicit Disturber(std::uint64_t seed) : seed_(seed) {}
  void on_hidden(std::int64_t, const Tensor& hidden) override {
    constexpr double kUnit = 0x1p-23;
    for (std::int64_t i = 0; i < hidden.numel(); ++i) {
      float& x = hidden.as<float>()[i];
      x = static_cast<float>(x * (1 + kUnit * (2 * base::uniform(seed_, 7, at_++) - 1)));
    }
  }

 private:
  std::uint64_t seed_, at_ = 0;
};

Tokens random_tokens(std::uint64_t seed, std::uint64_t stream, std::int64_t count,
                     std::int64_t vocab) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    const double u = base::uniform(seed, stream, static_cast<std::uint64_t>(i));
    tokens.push_back(static_cast<std::int32_t>(u * static_cast<double>(vocab)));
  }
  return tokens;
}

/// A run: what its parts share.
class Run {
 public:
  Run(std::shared_ptr<const Model> model, const Options& options)
      : options_(options),
        context_(options.threads > 0 ? options.threads : base::ThreadPool::default_size(), model->device()),
        subject_{.model = std::move(model),
                 .spec = {},
                 .forward = options.forward ? options.forward : Forward(&palimpsest::forward),
                 .context = &context_,
                 .cancel = options.cancel,
                 .on_pass = [this](std::int64_t rows) { progress(rows); }} {
    const Model& m = *subject_.model;
    if (m.is_outline())
      throw make_error(ErrorCode::kInvalidRequest, "'{}' was opened without its weights",
                       m.path().string());
    context_.activations = options.activations;
    subject_.spec = state_spec(m.config(), options.cache_type, options.page_type);
    material_.folder = folder_.path();
    material_.origin = session_origin(m, options.activations);
    material_.workspace = forward_workspace_bytes(m, kMostRows, kSlots, kSlots);
    material_.snapshots = options.quick ? 5 : 9;
    answer_ = options.quick ? 4 : 8;
    choose_first_length();
    setting_.threads = context_.pool.size();
    reserve();
  }

  const Setting& setting() const { return setting_; }

  /// Everything that rows compare with, and the bound.
  ///
  /// Activations that are rounded to integers move in steps: another order of sums turns its last
  /// bit into a whole step of theirs, so that no bound of use would be left. Rows that compare
  /// within a bound therefore read activations as they are, here and in their own passes. Rows that
  /// compare bits read them in the form that is asked for.
  void prepare() {
    if (options_.prompt_tokens == 0) choose_length();
    make_questions(material_);
    if (rounds_activations()) {
      context_.activations = Activations::kF32;
      plain_ = material_;
      plain_->origin.activations = Activations::kF32;
      make_questions(*plain_);
    }
    measure_rounding(plain_ ? *plain_ : material_);
  }

  RowResult check(const Row& row) {
    RowResult result{.name = row.name, .compared = row.compared, .exact = row.exact, .problem = {}};
    const auto start = Clock::now();
    const bool plain = plain_ && !row.exact;
    context_.activations = plain ? Activations::kF32 : options_.activations;
    Checker checker(subject_, plain ? *plain_ : material_, options_.quick, row.exact,
                    setting_.bound);
    try {
      row.check(checker);
      result.problem = checker.problem();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      result.problem = checker.problem().empty() ? error.text() : checker.problem();
    }
    result.worst = checker.worst();
    result.comparisons = checker.comparisons();
    if (result.problem.empty() && result.comparisons == 0) result.problem = "nothing was compared";
    result.ok = result.problem.empty();
    result.seconds = seconds_since(start);
    return result;
  }

 private:
  bool rounds_activations() const {
    return material_.origin.activations.value_or(Activations::kF32) != Activations::kF32;
  }
  double prompts() const {
    return (options_.quick ? kQuickPrompts : kPrompts) + (rounds_activations() ? kPlainPrompts : 0);
  }
  double written() const {
    return (options_.quick ? kQuickWritten : kWritten) + (rounds_activations() ? kPlainWritten : 0);
  }
  void progress(std::int64_t rows) {
    done_ += rows;
    const auto total =
        static_cast<std::int64_t>(prompts() * static_cast<double>(setting_.prompt_tokens));
    if (options_.on_progress) options_.on_progress(done_, std::max(total, done_));
  }
  std::int64_t most_tokens() const {
    // The longest sequence is base, its answer and a message; a mate may write a little more.
    return subject_.model->config().max_position_embeddings - 3 * answer_ - kMessage;
  }
  void choose_first_length() {
    constexpr std::int64_t kFewest = 24;
    const std::int64_t most = most_tokens();
    if (options_.prompt_tokens > most || most < kFewest) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "a prompt of {} tokens and what follows it do not fit: this model has {} "
                       "positions, of which {} can be the prompt",
                       std::max(options_.prompt_tokens, kFewest),
                       subject_.model->config().max_position_embeddings,
                       std::max<std::int64_t>(most, 0));
    }
    setting_.prompt_tokens =
        options_.prompt_tokens > 0 ? options_.prompt_tokens : std::min(kShortest, most);
    set_length(options_.prompt_tokens > 0 ? options_.prompt_tokens : std::min(kLongest, most));
  }
  void set_length(std::int64_t prompt) { material_.length = prompt + 3 * answer_ + kMessage; }

  void reserve() {
    const std::int64_t pool =
        StatePool::bytes(subject_.spec, pool_options(subject_, {.slots = kSlots,
                                                                .length = material_.length,
                                                                .tokens = 0,
                                                                .snapshots = material_.snapshots}));
    // With logits at their end and behind each token.
    const std::int64_t questions = rounds_activations() ? 18 : 9;
    setting_.memory = pool + 2 * material_.workspace +
                      questions * (answer_ + 1) * subject_.model->config().vocab_size * 4;
    const std::int64_t available = memory_for(*subject_.model) - subject_.model->device_bytes();
    if (setting_.memory > available) {
      throw make_error(ErrorCode::kOutOfMemory,
                       "the check takes {} bytes beside the weights (three sequences and {} "
                       "snapshots), {} are available",
                       setting_.memory, material_.snapshots, available);
    }
    context_.workspace.reserve(material_.workspace);
  }

  Trace cold(const Tokens& prompt, const Tokens& continuation, Observer* observer = nullptr) {
    Engine engine(subject_, {.slots = 1, .length = material_.length, .tokens = 0, .snapshots = 0});
    const std::int32_t slot = engine.open(prompt);
    engine.read(slot, kPassRows, observer);
    return engine.trace(slot, continuation, observer);
  }

  /// Reads as much as takes the time there is.
  void choose_length() {
    const std::int64_t vocab = subject_.model->config().vocab_size;
    const Tokens probe = random_tokens(options_.seed, 9, setting_.prompt_tokens, vocab);
    double reading = 0, writing = 0;
    for (int round = 0; round < 2; ++round) {  // the first one also brings weights into memory
      Engine engine(subject_,
                    {.slots = 1, .length = material_.length, .tokens = 0, .snapshots = 0});
      auto start = Clock::now();
      const std::int32_t slot = engine.open_and_read(probe);
      reading = seconds_since(start) / static_cast<double>(probe.size());
      start = Clock::now();
      engine.trace(slot, std::span(probe).first(2));
      writing = seconds_since(start) / 2;
      if (reading * static_cast<double>(probe.size()) > kSeconds / 10) break;
    }
    setting_.tokens_per_second = 1 / reading;
    if (!options_.quick) {
      const double tokens = (kSeconds - written() * writing) / (prompts() * reading);
      setting_.prompt_tokens = std::min(
          most_tokens(),
          std::clamp(static_cast<std::int64_t>(std::min(tokens, 1e9)), kShortest, kLongest));
    }
    setting_.expected_seconds =
        prompts() * static_cast<double>(setting_.prompt_tokens) * reading + written() * writing;
    set_length(setting_.prompt_tokens);
  }

  /// A greedy answer to a prompt, from an empty state.
  Question ask(Tokens prompt) {
    Engine engine(subject_, {.slots = 1, .length = material_.length, .tokens = 0, .snapshots = 0});
    const std::int32_t slot = engine.open_and_read(prompt);
    Question q{std::move(prompt), {}, engine.trace(slot, {})};
    for (std::int64_t i = 0; i < answer_; ++i) {
      q.answer.push_back(greedy(q.trace.step(i)));
      const Trace next = engine.trace(slot, std::span(q.answer).last(1));
      const auto last = next.step(1);
      q.trace.values.insert(q.trace.values.end(), last.begin(), last.end());
    }
    return q;
  }

  void make_questions(Material& m) {
    const std::int64_t n = setting_.prompt_tokens, vocab = subject_.model->config().vocab_size;
    const auto text = [&](std::uint64_t stream, std::int64_t count) {
      return random_tokens(options_.seed, stream, count, vocab);
    };
    const auto and_then = [](Tokens a, const Tokens& b) {
      a.insert(a.end(), b.begin(), b.end());
      return a;
    };
    m.base = ask(text(1, n));
    m.other = ask(text(2, n * 2 / 3));
    m.brief = ask(text(3, n / 3));
    m.diverged = {m.base.prompt, text(4, answer_), {}};
    // Another token than the answer's, so that what is guessed is wrong.
    for (std::size_t i = 0; i < m.diverged.answer.size(); ++i) {
      std::int32_t& id = m.diverged.answer[i];
      if (id == m.base.answer[i]) id = static_cast<std::int32_t>((id + 1) % vocab);
    }
    m.diverged.trace = cold(m.diverged.prompt, m.diverged.answer);
    m.edits.clear();
    std::vector<std::int64_t> kept = {n / 3, n - 3};
    if (!options_.quick) kept = {1, n / 3, n - 70, n - 3};
    for (const std::int64_t keep : kept) {
      if (keep < 1) continue;
      m.edits.push_back(ask(and_then(Tokens(m.base.prompt.begin(), m.base.prompt.begin() + keep),
                                     text(5, kMessage))));
    }
    m.turn = ask(and_then(and_then(m.base.prompt, m.base.answer), text(6, kMessage)));
  }

  void measure_rounding(const Material& m) {
    const Trace& still = m.base.trace;
    for (std::uint64_t seed = 1; seed <= (options_.quick ? 1u : 2u); ++seed) {
      Disturber disturber(seed);
      const Trace moved = cold(m.base.prompt, m.base.answer, &disturber);
      for (std::int64_t i = 0; i < still.steps(); ++i) {
        double difference = 0, largest = 0;
        for (std::size_t v = 0; v < still.step(i).size(); ++v) {
          difference = std::max(difference,
                                std::abs(static_cast<double>(moved.step(i)[v]) - still.step(i)[v]));
          largest = std::max(largest, std::abs(static_cast<double>(still.step(i)[v])));
        }
        if (largest > 0) setting_.rounding = std::max(setting_.rounding, difference / largest);
      }
    }
    constexpr double kUsual = 1e-4, kTimes = 16;
    setting_.bound = std::max(kUsual, kTimes * setting_.rounding);
  }

  static constexpr std::int64_t kMessage = 20;  ///< tokens of an edit or of a next message

  Options options_;
  Folder folder_;
  ExecContext context_;
  Subject subject_;
  Material material_;
  std::optional<Material> plain_;  ///< with F32 activations, where material_ has others
  Setting setting_;
  std::int64_t answer_ = 0;  ///< tokens
  std::int64_t done_ = 0;    ///< tokens read
};

}  // namespace

std::vector<RowName> row_names() {
  std::vector<RowName> names;
  for (const Row& row : rows()) names.push_back({row.name, row.compared, row.exact});
  return names;
}

Setting run(const std::shared_ptr<const Model>& model, const Options& options,
            const std::function<void(const Setting&)>& on_setting,
            const std::function<void(const RowResult&)>& on_result) {
  Run checks(model, options);
  checks.prepare();
  if (on_setting) on_setting(checks.setting());
  for (const Row& row : rows()) {
    if (options.on_row) options.on_row(row.name);
    const RowResult result = checks.check(row);
    if (on_result) on_result(result);
  }
  return checks.setting();
}

}  // namespace palimpsest::selfcheck
