#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "palimpsest/chat.h"
#include "palimpsest/engine.h"
#include "palimpsest/tokenizer.h"
#include "server/answer_text.h"
#include "server/fan_out.h"
#include "server/fields.h"
#include "server/http.h"

namespace palimpsest::server {

/// What an answer is made of, beside the events.
struct JobSetup {
  bool chat = false;  ///< chat.completion, else text_completion
  std::string id, model;
  std::int64_t created = 0;  ///< seconds since 1970
  bool stream = false, include_usage = false;
  bool progress = false;  ///< a stream tells how much of the prompt is read
  std::int64_t choices = 1;  ///< of each prompt
  bool logprobs = false;
  bool echo = false;
  std::vector<std::vector<std::int32_t>> prompts;  ///< at least one; their ids are for echo alone
  std::vector<std::string> stops;
  const ChatFormat* format = nullptr;  ///< of a chat
  Conversation conversation;           ///< of a chat: what its parser is made for
};

/// Turns an engine's events about one or more prompts into an HTTP answer, whole or as a stream.
/// Both are made of the same deltas. Choice c of prompt p is choice p * choices + c of the answer.
class GenerationJob final : public PartsListener {
 public:
  GenerationJob(JobSetup setup, Tokenizer tokenizer, std::shared_ptr<Reply> reply);

  bool hear(std::size_t part, const EngineEvent& event) override;
  void finished() override;
  void failed(const ApiError& error) override;

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

  /// What is known of one prompt.
  struct Part {
    std::vector<TokenInfo> prompt_infos;
    bool echoed = false;
    PromptCounts counts;
    std::chrono::steady_clock::time_point started;
  };

  bool hear_one(std::size_t part, const StartedEvent& event);
  bool hear_one(std::size_t part, const ProgressEvent& event);
  bool hear_one(std::size_t part, const PromptLogprobsEvent& event);
  bool hear_one(std::size_t part, const TokensEvent& event);
  bool hear_one(std::size_t, const EmbeddingEvent&) { return true; }
  bool hear_one(std::size_t part, const ChoiceEvent& event);
  bool hear_one(std::size_t part, const FinishedEvent& event);

  std::size_t first_choice(std::size_t part) const {
    return part * static_cast<std::size_t>(setup_.choices);
  }
  void add_logprobs(Choice& choice, const TokenInfo& token, bool of_prompt);
  void echo_prompt(std::size_t part);
  void write_empty(std::size_t index, const Json& delta, const Json& progress);
  void emit(std::size_t index, AnswerDelta delta, const Json& finish_reason);
  void add(Choice& choice, AnswerDelta delta);
  bool write(const Json& json);
  Json envelope(const char* chat_object) const;
  Json stream_choice(std::size_t index, const AnswerDelta& delta, const Json& finish_reason);
  Json whole_choice(std::size_t index);
  Json take_logprobs(Choice& choice);
  Json usage() const;

  JobSetup setup_;
  Tokenizer tokenizer_;
  std::shared_ptr<Reply> reply_;
  std::vector<Choice> choices_;
  std::vector<Part> parts_;
  Usage usage_;  ///< of the prompts that have ended
};

}  // namespace palimpsest::server
