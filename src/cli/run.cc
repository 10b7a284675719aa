#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "base/error.h"
#include "cli/answer_writer.h"
#include "cli/chat_options.h"
#include "cli/commands.h"
#include "cli/constraint_options.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/session_keeper.h"
#include "cli/setup.h"
#include "report/numbers.h"
#include "report/progress.h"
#include "runtime/chat_session.h"
#include "runtime/picture.h"

namespace palimpsest::cli {
namespace {

/// Whether snapshots are worth room that nobody asked for: where a prompt may change and come again.
bool wants_snapshots(const Options& options) {
  if (options.cache_ram || options.budget) return false;
  const bool chats = !options.raw && !options.ids && !options.prompt && !options.file;
  return chats || options.session || options.cache_disk;
}

SessionOptions session_options(const Options& options, const Model& model) {
  SessionOptions session = session_options(options);
  if (wants_snapshots(options)) session.cache_bytes = default_cache_bytes(model, session);
  return session;
}

/// A model made ready to write.
struct Writing {
  Writing(const Options& options_in, std::optional<grammar::Language> language_in)
      : options(options_in),
        language(std::move(language_in)),
        model(load_model(options)),
        tokenizer(find_tokenizer(options.model, model->config().vocab_size)),
        stops(stop_ids(*model, tokenizer)),
        session(model, session_options(options, *model)),
        keeper(options, session),
        sampler(sampling(), model->config().vocab_size) {}

  SamplingParams sampling() const {
    SamplingParams params = sampling_params(options);
    if (options.ignore_eos) params.banned = stops;
    if (keeper.restored() && options.seed < 0) params.seed = keeper.note().sampler_seed;
    return params;
  }
  /// After an answer: `pending` are ids written behind what the session holds.
  void save(std::vector<std::int32_t> pending, std::string text) {
    keeper.save({.pending = std::move(pending),
                 .sampler_seed = sampler.params().seed,
                 .text = std::move(text)});
  }
  const Tokenizer& text_tokenizer() const {
    if (!tokenizer) {
      throw make_error(
          ErrorCode::kIo,
          "{}: there is no tokenizer; --ids with --print-ids works without one", options.model);
    }
    return *tokenizer;
  }

  /// What the flags ask of an answer; null where they ask nothing.
  AnswerConstraints* constraints() {
    if (!language) return nullptr;
    if (!made) made.emplace(language, text_tokenizer());
    return &*made;
  }

  const Options& options;
  std::optional<grammar::Language> language;  ///< of the answers
  std::optional<AnswerConstraints> made;
  std::shared_ptr<const Model> model;
  std::optional<Tokenizer> tokenizer;
  std::vector<std::int32_t> stops;
  Session session;
  SessionKeeper keeper;
  Sampler sampler;
};

/// Options of one answer, with a progress bar for the prompt that goes away with the first token.
struct Progress {
  report::ProgressBar bar{
      {.title = "reading the prompt"}, stderr, report::inspect_terminal(stderr)};

  GenerateOptions answer(Writing& writing, const Interruptible& interrupt) {
    GenerateOptions options;
    options.max_tokens = writing.options.predict;
    if (!writing.options.ignore_eos) options.stop_ids = writing.stops;
    options.cancel = &interrupt.flag();
    options.on_prompt = [this, &writing](std::int64_t done, std::int64_t total) {
      bar.update(done, total);
      writing.keeper.save_now_and_then();
    };
    return options;
  }
};

void print_statistics(const Writing& writing, const GenerateResult& result) {
  const auto count = [](std::int64_t n) { return report::format_grouped(n); };
  const std::int64_t read = result.replayed_tokens + result.computed_tokens;
  std::string text =
      fmt::format("prompt {} tokens: {} cached, {} replayed, {} computed, {} tokens/s | answer {} "
                  "tokens, {} tokens/s ({}) | {}",
                      count(result.prompt_tokens), count(result.cached_tokens),
                      count(result.replayed_tokens), count(result.computed_tokens),
                      report::format_rate(read, result.prefill_seconds),
                      count(static_cast<std::int64_t>(result.ids.size())),
                      report::format_rate(result.decode_passes, result.decode_seconds),
                      finish_reason_name(result.finish), memory_text(writing.session));
  const SamplingParams& params = writing.sampler.params();
  if (params.temperature > 0) text += fmt::format(" | seed {}", params.seed);
  std::fprintf(stderr, "%s\n", text.c_str());
}

int exit_code_of(const GenerateResult& result) {
  return result.finish == FinishReason::kCancelled ? kInterruptedExit : 0;
}

/// Continues `held` and `prompt` without any format.
int continue_ids(Writing& writing, std::vector<std::int32_t> held,
                 const std::vector<std::int32_t>& prompt) {
  if (!writing.options.print_ids) writing.text_tokenizer();
  AnswerWriter writer(writing.options, writing.tokenizer, writing.stops);
  Interruptible interrupt;
  Progress progress;
  GenerateOptions options = progress.answer(writing, interrupt);
  options.on_token = [&](std::int32_t id) {
    progress.bar.finish();
    writer.token(id);
  };
  std::unique_ptr<TokenConstraint> constraint;
  if (AnswerConstraints* constraints = writing.constraints()) constraint = constraints->plain();
  options.constraint = constraint.get();
  const GenerateResult result = generate(writing.session, writing.sampler, held, prompt, options);
  progress.bar.finish();
  writer.finish(nullptr, false);
  print_statistics(writing, result);
  if (result.ids.empty())
    writing.save({}, "");
  else
    writing.save({result.ids.back()}, "");
  return exit_code_of(result);
}

/// Goes on where the text of --session ended.
int continue_session(Writing& writing) {
  const std::vector<std::int32_t> held(writing.session.ids().begin(), writing.session.ids().end());
  return continue_ids(writing, held, writing.keeper.note().pending);
}

/// A text as the model saw texts: behind a beginning-of-sequence token where it wants one. Chat
/// formats write theirs themselves.
std::vector<std::int32_t> raw_ids(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids;
  if (tokenizer.adds_bos()) ids.push_back(*tokenizer.bos());
  tokenizer.encode(text, EncodeMode::kText, ids);
  return ids;
}

std::shared_ptr<const ChatFormat> chat_format(const Writing& writing) {
  try {
    return ChatFormat::create(writing.text_tokenizer(), writing.options.model);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported && error.code() != ErrorCode::kInvalidFile) throw;
    throw make_error(error.code(), "{}: {}; --raw continues text without a chat format",
                     writing.options.model, error.text());
  }
}

constexpr std::int64_t kMostImageBytes = media::ImageLimits{}.bytes;

/// The bytes of a picture's file.
std::vector<std::byte> read_bytes(const std::string& path) {
  const std::string text = read_input(path, kMostImageBytes);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// What the model's pictures are made with. Throws Error{kUnsupported} where it has none.
VisionConfig required_vision(const Options& options) {
  const auto config = vision_config(options);
  if (!config) throw make_error(ErrorCode::kUnsupported, "{}: the model reads no pictures", options.model);
  return *config;
}

/// The ids of --ids with the pictures of --image in their places, which the session then knows.
std::vector<std::int32_t> ids_with_pictures(Writing& writing, std::vector<std::int32_t> ids) {
  if (writing.options.images.empty()) return ids;
  const VisionConfig config = required_vision(writing.options);
  Pictures pictures;
  for (const std::string& path : writing.options.images) pictures.push_back(value_or_throw(read_picture(read_bytes(path), config), path));
  writing.session.add_pictures(pictures);
  return value_or_throw(expand_pictures(ids, static_cast<std::int32_t>(config.placeholder_id), pictures), "--ids");
}

/// Reads pictures of the chat. Null where the model reads none, and the chat has none so far.
std::shared_ptr<ChatPictures> chat_pictures(const Writing& writing) {
  const bool has = !writing.options.images.empty() || writing.keeper.note().text.find("image_url") != std::string::npos;
  try {
    return ChatPictures::create(required_vision(writing.options), writing.text_tokenizer());
  } catch (const Error&) {
    if (has) throw;
    return nullptr;
  }
}

class Chat {
 public:
  explicit Chat(Writing& writing)
      : writing_(writing),
        writer_(writing.options, writing.tokenizer, writing.stops),
        format_(chat_format(writing)),
        pictures_(chat_pictures(writing)),
        chat_(writing.session, writing.sampler, writing.text_tokenizer(), format_,
              start(writing, *format_), writing.keeper.note().pending, pictures_) {
    for (const std::string& path : writing.options.images) attach(path);
  }

  int say(const std::string& text, bool end_line) {
    Interruptible interrupt;
    Progress progress;
    GenerateOptions options = progress.answer(writing_, interrupt);
    options.on_token = [&](std::int32_t id) {
      progress.bar.finish();
      if (writing_.options.print_ids) writer_.token(id);
    };
    ChatMessage message = ChatMessage::of(Role::kUser, text);
    message.content.insert(message.content.begin(), images_.begin(), images_.end());
    std::unique_ptr<TokenConstraint> constraint;
    if (AnswerConstraints* constraints = writing_.constraints()) {
      Conversation asked = chat_.conversation();
      asked.messages.push_back(ChatMessage::of(Role::kUser, text));
      constraint = constraints->chat(*format_, asked);
    }
    options.constraint = constraint.get();
    const ChatTurn turn = chat_.say(std::move(message), options, [this](const ChatEvent& event) { writer_.event(event); });
    images_.clear();
    progress.bar.finish();
    writer_.finish(&turn.message, end_line);
    if (turn.recomputed) {
      std::fputs(
          "recomputed: the chat no longer begins with what the model has read\n",
          stderr);
    }
    print_statistics(writing_, turn.generated);
    writing_.save(chat_.pending(), chat_json(chat_.conversation()));
    return exit_code_of(turn.generated);
  }

  /// One turn a line, until the end of standard input.
  int converse() {
    const bool person = report::inspect_terminal(stderr).interactive && isatty(STDIN_FILENO) == 1;
    if (person) {
      std::fprintf(stderr, "A chat with %s. Ctrl-C stops an answer, Ctrl-D leaves.\n",
                   writing_.options.model.c_str());
    }
    std::string line;
    while (true) {
      if (person) std::fputs("> ", stderr);
      if (!std::getline(std::cin, line)) break;
      if (line.empty()) continue;
      const bool is_image = line == "/image" || line.starts_with("/image ");
      try {
        const int code = is_image ? attach_line(line) : say(line, true);
        if (code != 0 && !person) return code;
      } catch (const Error& error) {
        // A person may shorten the message, or name another file; a script should notice.
        if (!person || (error.code() != ErrorCode::kInvalidRequest && !is_image)) throw;
        std::fprintf(stderr, "%s\n", error.what());
      }
    }
    if (person) std::fputs("\n", stderr);
    return 0;
  }

 private:
  /// Puts a picture in front of the next message.
  void attach(const std::string& path) {
    const Options& options = writing_.options;
    if (!pictures_) pictures_ = ChatPictures::create(required_vision(options), writing_.text_tokenizer());  // says why it was not there
    if (options.budget && options.images.empty() && !options.image_tokens)
      throw make_error(ErrorCode::kUsage, "--budget was planned without pictures; --image-tokens N leaves room for them");
    ContentPart part{ContentPart::Kind::kImage, data_url(read_bytes(path))};
    value_or_throw(pictures_->picture(part.text), path);
    images_.push_back(std::move(part));
  }

  /// "/image FILE"
  int attach_line(const std::string& line) {
    std::string path = line.substr(std::string_view("/image").size());
    path.erase(0, path.find_first_not_of(' '));
    path.erase(path.find_last_not_of(" \r") + 1);
    if (path.empty()) throw make_error(ErrorCode::kInvalidRequest, "/image: no file is named");
    attach(path);
    return 0;
  }

  /// What was said before, if anything; flags change it.
  static Conversation start(Writing& writing, const ChatFormat& format) {
    const std::string& before = writing.keeper.note().text;
    Conversation conversation = before.empty() ? Conversation{} : parse_chat(before);
    apply_chat_flags(writing.options, conversation);
    if (const AnswerConstraints* constraints = writing.constraints()) constraints->ask(format, conversation);
    return conversation;
  }

  Writing& writing_;
  AnswerWriter writer_;
  std::shared_ptr<const ChatFormat> format_;
  std::shared_ptr<ChatPictures> pictures_;  ///< null: the chat has none
  std::vector<ContentPart> images_;         ///< of the next message
  ChatSession chat_;
};

void check_combination(const Options& options, bool has_text) {
  if (options.ids && has_text)
    throw make_error(ErrorCode::kUsage, "give the prompt by --ids, -p or -f, not by two of them");
  const bool plain = options.raw || options.ids;
  if (plain &&
      (options.system || options.tools || options.reasoning_effort || options.show_thinking)) {
    throw make_error(ErrorCode::kUsage,
                     "--system, --tools, --reasoning-effort and --show-thinking belong to chats, "
                     "not to --raw or --ids");
  }
  if (options.raw && !options.images.empty())
    throw make_error(ErrorCode::kUsage, "--image belongs to chats and --ids, not to --raw");
  if (options.raw && !options.ids && !has_text &&
      !(options.session && std::filesystem::exists(*options.session))) {
    throw make_error(ErrorCode::kUsage,
                     "--raw needs a prompt: -p TEXT, -f FILE (-: standard input), or --session "
                     "with a FILE that is there");
  }
}

}  // namespace

int run(const Options& options) {
  const bool has_text = options.prompt || options.file;
  check_combination(options, has_text);
  // Everything that can be wrong without the model is found before it is loaded.
  const std::string text = has_text ? text_argument(options, "prompt") : "";
  const std::vector<std::int32_t> ids =
      options.ids ? parse_id_list(*options.ids) : std::vector<std::int32_t>{};
  if (options.tools) read_tools(*options.tools);
  for (const std::string& path : options.images) require_readable(path, kMostImageBytes);
  SessionKeeper::check(options);

  Writing writing(options, constraint_language(options));
  if (options.ids) return continue_ids(writing, {}, ids_with_pictures(writing, ids));
  if (options.raw && !has_text) return continue_session(writing);
  if (options.raw) return continue_ids(writing, {}, raw_ids(writing.text_tokenizer(), text));
  Chat chat(writing);
  return has_text ? chat.say(text, false) : chat.converse();
}

}  // namespace palimpsest::cli
