#pragma once

#include <memory>
#include <string>
#include <vector>

#include "palimpsest/engine.h"
#include "server/answer_text.h"
#include "server/api_error.h"
#include "server/backend.h"
#include "server/fan_out.h"

namespace palimpsest::server {

/// A part of an answer: thoughts, text, or one call of a tool.
struct AnswerBlock {
  enum class Kind : std::uint8_t { kThinking, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;      ///< so far; of a call, its arguments as JSON
  std::string name, id;  ///< of a call
};

/// An answer as a list of blocks that follow one another, which is how the interfaces of Anthropic
/// and OpenAI's /v1/responses show it: one choice, no log-probabilities. Each piece is added to its
/// block and then shown, so that streamed and whole answers are made of the same pieces.
class BlockJob : public PartsListener {
 public:
  BlockJob(Backend& backend, PreparedChat& chat, std::shared_ptr<Reply> reply);

  bool hear(std::size_t, const EngineEvent& event) final {
    return std::visit([this](const auto& e) { return hear_one(e); }, event);
  }
  void finished() final { ended(end_); }

 protected:
  enum class End : std::uint8_t { kModel, kStopText, kCalls, kLength };

  // What an interface makes of it; `at` is the place of a block in blocks_. A block is opened,
  // grows, and is closed before the next one is opened. failed() is PartsListener's.
  virtual void started() = 0;
  virtual void opened(std::size_t at) = 0;
  virtual void grew(std::size_t at, const std::string& piece) = 0;
  virtual void closed(std::size_t at) = 0;
  virtual void ended(End end) = 0;

  const std::string& stop_text() const { return text_.stop_text(); }  ///< of kStopText
  std::int64_t reasoning_tokens() const { return text_.reasoning_tokens(); }

  const std::string model_;
  const bool stream_;
  std::shared_ptr<Reply> reply_;
  std::vector<AnswerBlock> blocks_;
  Usage usage_;  ///< `prompt` from started() on, whole in ended()

 private:
  bool hear_one(const StartedEvent& event);
  bool hear_one(const ProgressEvent&) { return true; }
  bool hear_one(const PromptLogprobsEvent&) { return true; }
  bool hear_one(const EmbeddingEvent&) { return true; }
  bool hear_one(const TokensEvent& event);
  bool hear_one(const ChoiceEvent& event);
  bool hear_one(const FinishedEvent& event);
  void show(const AnswerDelta& delta);
  void append(AnswerBlock::Kind kind, const std::string& piece);
  void open(AnswerBlock block);
  void close();

  AnswerText text_;
  bool open_ = false;
  End end_ = End::kModel;
};

/// Hands `chat` to the engine, whose events `job` hears. It can be watched as `id`.
void start(Backend& backend, PreparedChat chat, std::shared_ptr<BlockJob> job, std::string id,
           const Request& request, const std::shared_ptr<Reply>& reply);

/// The interfaces that show blocks. `body`: of the request, whose fields a response repeats.
std::shared_ptr<BlockJob> make_messages_job(Backend& backend, PreparedChat& chat,
                                            const Request& request, std::shared_ptr<Reply> reply);
std::shared_ptr<BlockJob> make_responses_job(Backend& backend, PreparedChat& chat, const Json& body,
                                             const Request& request, std::shared_ptr<Reply> reply);

}  // namespace palimpsest::server
