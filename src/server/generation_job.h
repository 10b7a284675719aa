#pragma once

#include <memory>
#include <string>
#include <vector>

#include "palimpsest/chat.h"
#include "palimpsest/engine.h"
#include "palimpsest/tokenizer.h"
#include "server/answer_text.h"
#include "server/fields.h"
#include "server/http.h"

namespace palimpsest::server {

/// What an answer is made of, beside the events.
struct JobSetup {
  bool chat = false;  ///< chat.completion, else text_completion
  std::string id, model;
  std::int64_t created = 0;  ///< seconds since 1970
  bool stream = false, include_usage = false;
  std::int64_t choices = 1;
  bool logprobs = false;
  bool echo = false;
  std::vector<std::int32_t> prompt;  ///< for echo; else empty
  std::vector<std::string> stops;
  const ChatFormat* format = nullptr;  ///< of a chat
  Conversation conversation;           ///< of a chat: what its parser is made for
};

/// Turns an engine's events about one request into an HTTP answer, whole or as a stream. Both are
/// made of the same deltas. on_event() is called by the engine's thread and never throws.
class GenerationJob {
 public:
  GenerationJob(JobSetup setup, Tokenizer tokenizer, std::shared_ptr<Reply> reply);

  bool on_event(const EngineEvent& event) noexcept;

 private:
  /// The log-probabilities of /v1/completions: lists side by side.
  struct TokenLists {
    Json tokens = Json::array(), values = Json::array(), top = Json::array(), offsets = Json::array();
    bool empty() const { return tokens.empty(); }
    Json take();
  };
  struct Choice {
    AnswerText text;
    AnswerDelta sum;          ///< of a whole answer
    Json calls = Json::array();  ///< of a whole answer
    Json content_logprobs = Json::array();
    TokenLists lists;
    std::int64_t offset = 0;  ///< characters so far
    std::string finish_reason;
    StreamDecoder decoder;  ///< for offsets
  };

  bool hear(const StartedEvent& event);
  bool hear(const ProgressEvent& event);
  bool hear(const PromptLogprobsEvent& event);
  bool hear(const TokensEvent& event);
  bool hear(const EmbeddingEvent&) { return true; }
  bool hear(const ChoiceEvent& event);
  bool hear(const FinishedEvent& event);

  void fail(int status, const std::string& text);
  void add_logprobs(Choice& choice, const TokenInfo& token, bool of_prompt);
  void echo_prompt();
  void emit(std::size_t index, AnswerDelta delta, const Json& finish_reason);
  void add(Choice& choice, AnswerDelta delta);
  bool write(const Json& json);
  Json envelope(const char* chat_object) const;
  Json stream_choice(std::size_t index, const AnswerDelta& delta, const Json& finish_reason);
  Json whole_choice(std::size_t index);
  Json take_logprobs(Choice& choice);
  Json usage(const Usage& usage) const;

  JobSetup setup_;
  Tokenizer tokenizer_;
  std::shared_ptr<Reply> reply_;
  std::vector<Choice> choices_;
  std::vector<TokenInfo> prompt_infos_;
  bool echoed_ = false, over_ = false;
};

}  // namespace palimpsest::server
