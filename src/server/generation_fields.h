#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "palimpsest/chat.h"
#include "palimpsest/engine.h"
#include "palimpsest/tokenizer.h"
#include "server/fields.h"

namespace palimpsest::server {

/// What requests cannot say or leave out.
struct RequestLimits {
  SamplingParams defaults;  ///< of what a request does not say; the seed is not used
  std::int64_t vocab_size = 0, context = 0;
  std::int64_t most_choices = 128, most_logprobs = 20;
};

/// A request for answers, read and checked, but for its prompt.
struct GenerationFields {
  EngineRequest engine;  ///< sampling, max_tokens, choices, logprobs
  std::vector<std::string> stops;
  bool stream = false, include_usage = false;
  bool progress = false;  ///< a stream tells how much of the prompt is read
};

/// A string or a list of strings; empty if not given.
std::vector<std::string> read_stops(const Json& body, const char* name);
/// What both interfaces share. ApiError 400 naming the field.
GenerationFields read_generation(const Json& body, const RequestLimits& limits);
/// The same with the fields that are /v1/chat/completions' own.
GenerationFields read_chat_generation(const Json& body, const RequestLimits& limits);
/// The same for /v1/completions; `echo` is set if the prompt is to be in the answer.
GenerationFields read_completion_generation(const Json& body, const RequestLimits& limits, bool& echo);

/// Messages, tools and how much to think. ApiError 400 or Error{kInvalidRequest} naming the field.
Conversation read_conversation(const Json& body);
/// The prompts of /v1/completions: texts, or lists of ids, at most `most`.
std::vector<std::vector<std::int32_t>> read_prompts(const Json& body, const Tokenizer& tokenizer,
                                                    std::int64_t vocab_size, std::int64_t most);
/// `text` as the model saw texts: behind its beginning-of-sequence token, if it wants one. No name
/// of a control token in it becomes that token.
std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, std::string_view text);

}  // namespace palimpsest::server
