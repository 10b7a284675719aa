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
  parts_.resize(setup_.prompts.size());
  for (std::size_t c = 0; c < first_choice(parts_.size()); ++c) {
    auto parser = setup_.chat ? setup_.format->make_parser(setup_.conversation) : nullptr;
    choices_.push_back({.text = AnswerText(tokenizer_, std::move(parser), setup_.stops),
                        .sum = {},
                        .lists = {},
                        .finish_reason = {},
                        .decoder = StreamDecoder(tokenizer_)});
  }
}

bool GenerationJob::hear(std::size_t part, const EngineEvent& event) {
  return std::visit([&](const auto& e) { return hear_one(part, e); }, event);
}

/// The end, with an error in place of what is missing.
void GenerationJob::failed(const ApiError& error) {
  if (setup_.stream) {
    reply_->write("data: " + error_body(error) + "\n\n");
    reply_->end();
  } else {
    reply_->send(error_response(error));
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

/// A chunk without text.
void GenerationJob::write_empty(std::size_t index, const Json& delta, const Json& progress) {
  Json chunk = envelope("chat.completion.chunk");
  chunk["choices"] = {{{"index", index},
                       {setup_.chat ? "delta" : "text", setup_.chat ? delta : Json("")},
                       {"logprobs", nullptr},
                       {"finish_reason", nullptr}}};
  if (setup_.include_usage) chunk["usage"] = nullptr;
  if (!progress.is_null()) chunk["prompt_progress"] = progress;
  write(chunk);
}

bool GenerationJob::hear_one(std::size_t part, const StartedEvent& event) {
  parts_[part].counts = event.prompt;
  parts_[part].started = std::chrono::steady_clock::now();
  if (!setup_.stream || !setup_.chat) return true;
  for (std::size_t i = first_choice(part); i < first_choice(part + 1); ++i)
    write_empty(i, {{"role", "assistant"}, {"content", ""}}, nullptr);
  return true;
}

bool GenerationJob::hear_one(std::size_t part, const ProgressEvent& event) {
  if (event.done == event.total) echo_prompt(part);
  if (!setup_.progress) return true;
  const std::chrono::duration<double, std::milli> time =
      std::chrono::steady_clock::now() - parts_[part].started;
  write_empty(first_choice(part), Json::object(),
              {{"total", event.total},
               {"cache", parts_[part].counts.cached_tokens},
               {"processed", event.done},
               {"time_ms", static_cast<std::int64_t>(time.count())}});
  return true;
}

bool GenerationJob::hear_one(std::size_t part, const PromptLogprobsEvent& event) {
  auto& infos = parts_[part].prompt_infos;
  infos.insert(infos.end(), event.tokens.begin(), event.tokens.end());
  return true;
}

/// Puts the prompt in front of each answer, once it is read.
void GenerationJob::echo_prompt(std::size_t part) {
  if (!setup_.echo || std::exchange(parts_[part].echoed, true)) return;
  const std::vector<std::int32_t>& prompt = setup_.prompts[part];
  std::string text;
  StreamDecoder decoder(tokenizer_);
  for (const TokenId id : prompt) {
    if (!tokenizer_.is_control(id)) text += decoder.push(id);
  }
  text += decoder.finish();
  for (std::size_t i = first_choice(part); i < first_choice(part + 1); ++i) {
    if (setup_.logprobs) {
      add_logprobs(choices_[i], {.id = prompt.front(), .logprob = 0, .top = {}}, true);
      for (const TokenInfo& token : parts_[part].prompt_infos) add_logprobs(choices_[i], token, false);
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

bool GenerationJob::hear_one(std::size_t part, const TokensEvent& event) {
  echo_prompt(part);
  const std::size_t index = first_choice(part) + static_cast<std::size_t>(event.choice);
  Choice& choice = choices_[index];
  AnswerDelta delta;
  bool goes_on = true;
  for (const TokenInfo& token : event.tokens) {
    add_logprobs(choice, token, false);
    if (!(goes_on = choice.text.push(token.id, delta))) break;
  }
  emit(index, std::move(delta), nullptr);
  return goes_on;
}

bool GenerationJob::hear_one(std::size_t part, const ChoiceEvent& event) {
  throw_if_failed(event);
  echo_prompt(part);
  const std::size_t index = first_choice(part) + static_cast<std::size_t>(event.choice);
  Choice& choice = choices_[index];
  choice.finish_reason = event.reason != FinishReason::kStop ? "length"
                         : choice.text.has_calls()           ? "tool_calls"
                                                             : "stop";
  AnswerDelta delta;
  choice.text.finish(delta);
  emit(index, std::move(delta), choice.finish_reason);
  return true;
}

bool GenerationJob::hear_one(std::size_t, const FinishedEvent& event) {
  usage_.prompt_tokens += event.usage.prompt_tokens;
  usage_.prompt.cached_tokens += event.usage.prompt.cached_tokens;
  usage_.prompt.replayed_tokens += event.usage.prompt.replayed_tokens;
  usage_.written_tokens += event.usage.written_tokens;
  return true;
}

void GenerationJob::finished() {
  if (setup_.stream) {
    if (setup_.include_usage) {
      Json chunk = envelope("chat.completion.chunk");
      chunk["choices"] = Json::array();
      chunk["usage"] = usage();
      write(chunk);
    }
    reply_->write("data: [DONE]\n\n");
    reply_->end();
    return;
  }
  Json answer = envelope("chat.completion");
  answer["choices"] = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) answer["choices"].push_back(whole_choice(i));
  answer["usage"] = usage();
  Response response;
  response.body = dump(answer);
  reply_->send(std::move(response));
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

Json GenerationJob::usage() const {
  std::int64_t reasoning = 0;
  for (const Choice& choice : choices_) reasoning += choice.text.reasoning_tokens();
  return {{"prompt_tokens", usage_.prompt_tokens},
          {"completion_tokens", usage_.written_tokens},
          {"total_tokens", usage_.prompt_tokens + usage_.written_tokens},
          {"prompt_tokens_details",
           {{"cached_tokens", usage_.prompt.cached_tokens},
            {"replayed_tokens", usage_.prompt.replayed_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

}  // namespace palimpsest::server
