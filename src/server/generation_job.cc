#include "server/generation_job.h"

#include <algorithm>

#include "server/api_error.h"
#include "text/utf8.h"

namespace palimpsest::server {
namespace {

/// JSON has no infinities.
double json_logprob(float value) {
  return std::max(static_cast<double>(value), -9999.0);
}

std::int64_t characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string token_text(const Tokenizer& tokenizer, TokenId id) {
  return text::repair_utf8(tokenizer.bytes(id));
}

Json token_json(const Tokenizer& tokenizer, TokenId id, float logprob) {
  Json bytes = Json::array();
  for (const char c : tokenizer.bytes(id)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token_text(tokenizer, id)}, {"logprob", json_logprob(logprob)}, {"bytes", bytes}};
}

/// An event of a call as a stream's delta shows it.
Json call_delta(const ChatEvent& event) {
  if (event.kind == ChatEvent::Kind::kToolCallBegin) {
    return {{"index", event.index},
            {"id", event.id},
            {"type", "function"},
            {"function", {{"name", event.name}, {"arguments", ""}}}};
  }
  return {{"index", event.index}, {"function", {{"arguments", event.text}}}};
}

}  // namespace

GenerationJob::GenerationJob(JobSetup setup, Tokenizer tokenizer, std::shared_ptr<Reply> reply)
    : setup_(std::move(setup)), tokenizer_(std::move(tokenizer)), reply_(std::move(reply)) {
  for (std::int64_t c = 0; c < setup_.choices; ++c) {
    auto parser = setup_.chat ? setup_.format->make_parser(setup_.conversation) : nullptr;
    choices_.push_back({.text = AnswerText(tokenizer_, std::move(parser), setup_.stops),
                        .sum = {},
                        .lists = {},
                        .finish_reason = {},
                        .decoder = StreamDecoder(tokenizer_)});
  }
}

bool GenerationJob::on_event(const EngineEvent& event) noexcept {
  if (over_) return false;
  try {
    return std::visit([this](const auto& e) { return hear(e); }, event);
  } catch (...) {
    const ApiError error = current_error();
    fail(error.status, error.message);
    return false;
  }
}

/// The end, with an error in place of what is missing.
void GenerationJob::fail(int status, const std::string& text) {
  if (std::exchange(over_, true)) return;
  if (setup_.stream) {
    reply_->write("data: " + error_body(status, text) + "\n\n");
    reply_->end();
  } else {
    reply_->send(error_response(status, text));
  }
}

bool GenerationJob::write(const Json& json) {
  return reply_->write("data: " + dump(json) + "\n\n");
}

Json GenerationJob::envelope(const char* chat_object) const {
  return {{"id", setup_.id},
          {"object", setup_.chat ? chat_object : "text_completion"},
          {"created", setup_.created},
          {"model", setup_.model}};
}

bool GenerationJob::hear(const StartedEvent&) {
  if (!setup_.stream || !setup_.chat) return true;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Json chunk = envelope("chat.completion.chunk");
    chunk["choices"] = {{{"index", i},
                         {"delta", {{"role", "assistant"}, {"content", ""}}},
                         {"logprobs", nullptr},
                         {"finish_reason", nullptr}}};
    if (setup_.include_usage) chunk["usage"] = nullptr;
    write(chunk);
  }
  return true;
}

bool GenerationJob::hear(const ProgressEvent& event) {
  if (event.done == event.total) echo_prompt();
  return true;
}

bool GenerationJob::hear(const PromptLogprobsEvent& event) {
  prompt_infos_.insert(prompt_infos_.end(), event.tokens.begin(), event.tokens.end());
  return true;
}

/// Puts the prompt in front of each answer, once it is read.
void GenerationJob::echo_prompt() {
  if (!setup_.echo || std::exchange(echoed_, true)) return;
  std::string text;
  StreamDecoder decoder(tokenizer_);
  for (const TokenId id : setup_.prompt) {
    if (!tokenizer_.is_control(id)) text += decoder.push(id);
  }
  text += decoder.finish();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (setup_.logprobs) {
      add_logprobs(choices_[i], {.id = setup_.prompt.front(), .logprob = 0, .top = {}}, true);
      for (const TokenInfo& token : prompt_infos_) add_logprobs(choices_[i], token, false);
    }
    AnswerDelta delta;
    delta.content = text;
    emit(i, std::move(delta), nullptr);
  }
}

void GenerationJob::add_logprobs(Choice& choice, const TokenInfo& token, bool first) {
  if (!setup_.logprobs) return;
  if (setup_.chat) {
    Json entry = token_json(tokenizer_, token.id, token.logprob);
    entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : token.top)
      entry["top_logprobs"].push_back(token_json(tokenizer_, top.id, top.logprob));
    choice.content_logprobs.push_back(std::move(entry));
    return;
  }
  TokenLists& lists = choice.lists;
  lists.tokens.push_back(token_text(tokenizer_, token.id));
  lists.offsets.push_back(choice.offset);
  if (!tokenizer_.is_control(token.id)) choice.offset += characters(choice.decoder.push(token.id));
  // Nothing precedes the first token of a prompt, so it has no probability.
  lists.values.push_back(first ? Json(nullptr) : Json(json_logprob(token.logprob)));
  Json top = Json::object();
  for (const TokenLogprob& entry : token.top)
    top[token_text(tokenizer_, entry.id)] = json_logprob(entry.logprob);
  lists.top.push_back(first ? Json(nullptr) : std::move(top));
}

bool GenerationJob::hear(const TokensEvent& event) {
  echo_prompt();
  Choice& choice = choices_[static_cast<std::size_t>(event.choice)];
  AnswerDelta delta;
  bool goes_on = true;
  for (const TokenInfo& token : event.tokens) {
    add_logprobs(choice, token, false);
    if (!(goes_on = choice.text.push(token.id, delta))) break;
  }
  emit(static_cast<std::size_t>(event.choice), std::move(delta), nullptr);
  return goes_on;
}

bool GenerationJob::hear(const ChoiceEvent& event) {
  echo_prompt();
  Choice& choice = choices_[static_cast<std::size_t>(event.choice)];
  switch (event.reason) {
    case FinishReason::kStop:
      choice.finish_reason = choice.text.has_calls() ? "tool_calls" : "stop";
      break;
    case FinishReason::kLength:
    case FinishReason::kContext:
      choice.finish_reason = "length";
      break;
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
      fail(503, event.text.empty() ? "the request was cancelled" : event.text);
      return false;
    case FinishReason::kError:
      fail(event.code == ErrorCode::kInvalidRequest ? 400 : 500, event.text);
      return false;
  }
  AnswerDelta delta;
  choice.text.finish(delta);
  emit(static_cast<std::size_t>(event.choice), std::move(delta), choice.finish_reason);
  return true;
}

bool GenerationJob::hear(const FinishedEvent& event) {
  over_ = true;
  if (setup_.stream) {
    if (setup_.include_usage) {
      Json chunk = envelope("chat.completion.chunk");
      chunk["choices"] = Json::array();
      chunk["usage"] = usage(event.usage);
      write(chunk);
    }
    reply_->write("data: [DONE]\n\n");
    reply_->end();
    return true;
  }
  Json answer = envelope("chat.completion");
  answer["choices"] = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) answer["choices"].push_back(whole_choice(i));
  answer["usage"] = usage(event.usage);
  Response response;
  response.body = dump(answer);
  reply_->send(std::move(response));
  return true;
}

/// Sends or keeps a delta. `finish_reason` null: the choice goes on.
void GenerationJob::emit(std::size_t index, AnswerDelta delta, const Json& finish_reason) {
  Choice& choice = choices_[index];
  if (!setup_.stream) {
    add(choice, std::move(delta));
    return;
  }
  const bool has_logprobs = !choice.content_logprobs.empty() || !choice.lists.empty();
  if (delta.empty() && finish_reason.is_null() && !has_logprobs) return;
  Json chunk = envelope("chat.completion.chunk");
  chunk["choices"] = Json::array();
  // An end comes alone, behind what it ends, as clients expect.
  const bool split = !finish_reason.is_null() && (!delta.empty() || has_logprobs);
  chunk["choices"].push_back(stream_choice(index, delta, split ? Json(nullptr) : finish_reason));
  if (setup_.include_usage) chunk["usage"] = nullptr;
  write(chunk);
  if (!split) return;
  chunk["choices"][0] = stream_choice(index, {}, finish_reason);
  write(chunk);
}

void GenerationJob::add(Choice& choice, AnswerDelta delta) {
  choice.sum.reasoning += delta.reasoning;
  choice.sum.content += delta.content;
  for (const ChatEvent& event : delta.calls) {
    if (event.kind == ChatEvent::Kind::kToolCallBegin) {
      Json call = call_delta(event);
      call.erase("index");
      choice.calls.push_back(std::move(call));
    } else {
      auto& arguments = choice.calls[static_cast<std::size_t>(event.index)]["function"]["arguments"];
      arguments.get_ref<std::string&>() += event.text;
    }
  }
}

Json GenerationJob::TokenLists::take() {
  Json json = {{"tokens", std::move(tokens)},
               {"token_logprobs", std::move(values)},
               {"top_logprobs", std::move(top)},
               {"text_offset", std::move(offsets)}};
  *this = {};
  return json;
}

/// What has gathered since the last time; null when none is wanted.
Json GenerationJob::take_logprobs(Choice& choice) {
  if (!setup_.logprobs) return nullptr;
  if (!setup_.chat) return choice.lists.take();
  Json content = std::exchange(choice.content_logprobs, Json::array());
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json GenerationJob::stream_choice(std::size_t index, const AnswerDelta& delta,
                                  const Json& finish_reason) {
  Choice& choice = choices_[index];
  Json json = {{"index", index}};
  if (setup_.chat) {
    Json& out = json["delta"] = Json::object();
    if (!delta.reasoning.empty()) out["reasoning_content"] = delta.reasoning;
    if (!delta.content.empty()) out["content"] = delta.content;
    for (const ChatEvent& event : delta.calls) out["tool_calls"].push_back(call_delta(event));
  } else {
    json["text"] = delta.content;
  }
  json["logprobs"] = take_logprobs(choice);
  json["finish_reason"] = finish_reason;
  return json;
}

Json GenerationJob::whole_choice(std::size_t index) {
  Choice& choice = choices_[index];
  Json json = {{"index", index}};
  if (setup_.chat) {
    Json message = {{"role", "assistant"}, {"content", choice.sum.content}, {"refusal", nullptr}};
    if (!choice.sum.reasoning.empty()) message["reasoning_content"] = choice.sum.reasoning;
    if (!choice.calls.empty()) {
      if (choice.sum.content.empty()) message["content"] = nullptr;
      message["tool_calls"] = choice.calls;
    }
    json["message"] = std::move(message);
  } else {
    json["text"] = choice.sum.content;
  }
  json["logprobs"] = take_logprobs(choice);
  json["finish_reason"] = choice.finish_reason;
  return json;
}

Json GenerationJob::usage(const Usage& usage) const {
  std::int64_t reasoning = 0;
  for (const Choice& choice : choices_) reasoning += choice.text.reasoning_tokens();
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.written_tokens},
          {"total_tokens", usage.prompt_tokens + usage.written_tokens},
          {"prompt_tokens_details",
           {{"cached_tokens", usage.prompt.cached_tokens},
            {"replayed_tokens", usage.prompt.replayed_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

}  // namespace palimpsest::server
