#include "server/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "server/api_error.h"

namespace palimpsest::server {
namespace {

constexpr std::size_t kMostStops = 16, kLongestStop = 1024, kMostBiases = 4096;

std::uint64_t random_seed() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

std::vector<LogitBias> read_biases(const Json& body, std::int64_t vocab_size) {
  const Json* value = field(body, "logit_bias");
  if (!value) return {};
  if (!value->is_object()) refuse("logit_bias", "not an object of token ids and numbers");
  if (value->size() > kMostBiases)
    refuse("logit_bias", fmt::format("{} entries, at most {} are taken", value->size(), kMostBiases));
  std::vector<LogitBias> biases;
  for (const auto& [key, bias] : value->items()) {
    LogitBias entry;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), entry.id);
    if (ec != std::errc{} || end != key.data() + key.size() || entry.id < 0 ||
        entry.id >= vocab_size) {
      refuse("logit_bias", fmt::format("\"{}\" is no id of the vocabulary of {}", key, vocab_size));
    }
    if (!bias.is_number()) refuse("logit_bias", fmt::format("of id {}: not a number", entry.id));
    entry.bias = bias.get<double>();
    if (!(entry.bias >= -100 && entry.bias <= 100)) {
      refuse("logit_bias", fmt::format("{} of id {} is out of range, must be from -100 to 100",
                                       entry.bias, entry.id));
    }
    const auto same = [&](const LogitBias& other) { return other.id == entry.id; };
    if (std::any_of(biases.begin(), biases.end(), same))
      refuse("logit_bias", fmt::format("id {} is there twice", entry.id));
    biases.push_back(entry);
  }
  return biases;
}

SamplingParams read_sampling(const Json& body, const RequestLimits& limits) {
  SamplingParams params = limits.defaults;
  params.temperature = number(body, "temperature", 0, 2).value_or(params.temperature);
  params.top_p = number(body, "top_p", 0, 1).value_or(params.top_p);
  params.min_p = number(body, "min_p", 0, 1).value_or(params.min_p);
  // -1 is how some clients say "all"; more than there are is all of them.
  const std::int64_t top_k = integer(body, "top_k", -1, INT64_MAX).value_or(params.top_k);
  params.top_k = std::clamp<std::int64_t>(top_k, 0, limits.vocab_size);
  params.presence_penalty =
      number(body, "presence_penalty", -2, 2).value_or(params.presence_penalty);
  params.frequency_penalty =
      number(body, "frequency_penalty", -2, 2).value_or(params.frequency_penalty);
  for (const char* name : {"repeat_penalty", "repetition_penalty"})
    params.repeat_penalty = number(body, name, 0.01, 100).value_or(params.repeat_penalty);
  const auto seed = integer(body, "seed", INT64_MIN, INT64_MAX);
  params.seed = seed ? static_cast<std::uint64_t>(*seed) : random_seed();
  params.logit_bias = read_biases(body, limits.vocab_size);
  return params;
}

/// Efforts that clients know and chat formats do not go to the next one; "medium" is what a model
/// does when nothing is asked.
std::string known_effort(const std::string& effort) {
  if (effort == "none") return "off";
  if (effort == "minimal") return "low";
  if (effort == "xhigh") return "max";
  if (effort != "off" && effort != "low" && effort != "high" && effort != "max") {
    refuse("reasoning_effort",
           fmt::format("\"{}\" is none of none, minimal, low, medium, high, xhigh, off, max", effort));
  }
  return effort;
}

}  // namespace

std::vector<std::string> read_stops(const Json& body, const char* name) {
  const Json* value = field(body, name);
  if (!value) return {};
  std::vector<std::string> stops;
  const auto add = [&](const Json& stop) {
    if (!stop.is_string()) refuse(name, "neither a string nor a list of strings");
    stops.push_back(stop.get<std::string>());
    if (stops.back().empty() || stops.back().size() > kLongestStop)
      refuse(name, fmt::format("a string must have from 1 to {} bytes", kLongestStop));
  };
  if (value->is_array()) {
    if (value->size() > kMostStops)
      refuse(name, fmt::format("{} strings, at most {} are taken", value->size(), kMostStops));
    for (const Json& stop : *value) add(stop);
  } else {
    add(*value);
  }
  return stops;
}

GenerationFields read_generation(const Json& body, const RequestLimits& limits) {
  string(body, "model");  // one model is served, under whatever name it is asked for
  GenerationFields fields;
  fields.engine.sampling = read_sampling(body, limits);
  fields.stops = read_stops(body, "stop");
  fields.engine.choices = integer(body, "n", 1, limits.most_choices).value_or(1);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (const auto most = integer(body, name, 0, INT64_MAX))
      fields.engine.max_tokens = std::min(*most, limits.context);
  }
  fields.stream = boolean(body, "stream").value_or(false);
  fields.progress = boolean(body, "return_progress").value_or(false) && fields.stream;
  if (const Json* options = field(body, "stream_options")) {
    if (!fields.stream) refuse("stream_options", "only goes with stream true");
    if (!options->is_object()) refuse("stream_options", "not an object");
    fields.include_usage = boolean(*options, "include_usage").value_or(false);
  }
  return fields;
}

GenerationFields read_chat_generation(const Json& body, const RequestLimits& limits) {
  GenerationFields fields = read_generation(body, limits);
  const bool wanted = boolean(body, "logprobs").value_or(false);
  const auto top = integer(body, "top_logprobs", 0, limits.most_logprobs);
  if (top && !wanted) refuse("top_logprobs", "only goes with logprobs true");
  if (wanted) fields.engine.logprobs = top.value_or(0);
  return fields;
}

GenerationFields read_completion_generation(const Json& body, const RequestLimits& limits,
                                            bool& echo) {
  constexpr std::int64_t kUsualTokens = 16;  // the interface's own default
  GenerationFields fields = read_generation(body, limits);
  if (fields.engine.max_tokens < 0) fields.engine.max_tokens = kUsualTokens;
  fields.engine.logprobs = integer(body, "logprobs", 0, limits.most_logprobs).value_or(-1);
  echo = boolean(body, "echo").value_or(false);
  if (echo) fields.engine.prompt_logprobs = fields.engine.logprobs;
  if (const auto best = integer(body, "best_of", 1, limits.most_choices);
      best && *best != fields.engine.choices)
    refuse("best_of", "is not supported beyond n");
  if (string(body, "suffix").value_or("") != "") refuse("suffix", "is not supported");
  return fields;
}

Conversation read_conversation(const Json& body) {
  Json chat = Json::object();
  for (const char* name : {"messages", "tools"}) {
    if (const Json* value = field(body, name)) chat[name] = *value;
  }
  // Other choices are constraints (constraint_fields.h).
  if (const Json* choice = field(body, "tool_choice"); choice && *choice == "none")
    chat["tool_choice"] = "none";
  if (const auto effort = string(body, "reasoning_effort"); effort && *effort != "medium")
    chat["reasoning_effort"] = known_effort(*effort);
  if (!chat.contains("messages") || !chat["messages"].is_array() || chat["messages"].empty())
    refuse("messages", "not a list of at least one message");
  for (Json& message : chat["messages"]) {
    if (message.is_object() && message.contains("role") && message["role"] == "developer")
      message["role"] = "system";
  }
  if (const Json* options = field(body, "chat_template_kwargs")) {
    if (!options->is_object()) refuse("chat_template_kwargs", "not an object");
    for (const char* name : {"thinking", "enable_thinking"}) {
      if (const auto thinking = boolean(*options, name)) chat["thinking"] = *thinking;
    }
  }
  return parse_chat(dump(chat));
}

std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  if (tokenizer.adds_bos()) ids.push_back(*tokenizer.bos());
  tokenizer.encode(text, EncodeMode::kText, ids);
  return ids;
}

std::vector<std::vector<std::int32_t>> read_prompts(const Json& body, const Tokenizer& tokenizer,
                                                    std::int64_t vocab_size, std::int64_t most) {
  const Json* prompt = field(body, "prompt");
  if (!prompt) refuse("prompt", "is missing");
  std::vector<std::vector<std::int32_t>> out;
  const auto add = [&](const Json& one) {
    out.push_back(one.is_string() ? prompt_ids(tokenizer, one.get_ref<const std::string&>())
                                  : ids(one, "prompt", vocab_size));
    if (out.back().empty()) refuse("prompt", "is empty");
  };
  if (!prompt->is_array() || prompt->empty() || prompt->front().is_number()) {
    add(*prompt);
  } else {
    if (static_cast<std::int64_t>(prompt->size()) > most) {
      refuse("prompt", fmt::format("{} prompts, at most {} are taken, n times each", prompt->size(), most));
    }
    for (const Json& one : *prompt) add(one);
  }
  return out;
}

}  // namespace palimpsest::server
