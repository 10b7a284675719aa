#include "server/memory_stream.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <span>

#include "base/base64.h"
#include "model/state_spec.h"
#include "text/utf8.h"

namespace palimpsest::server {
namespace {

constexpr std::chrono::milliseconds kBetweenEvents{100};
constexpr std::size_t kMostHeld = 64 << 10;  ///< bytes that make an event go early

// Written with fmt and not as Json: this runs on the engine's thread for every token of who is
// watched.

template <class T>
void append(std::string& out, const T& value) {
  fmt::format_to(std::back_inserter(out), "{}", value);
}
void append_number(std::string& out, float value) {
  if (std::isfinite(value))
    fmt::format_to(std::back_inserter(out), "{:.4g}", value);
  else
    out += "null";
}
void append_list(std::string& out, std::span<const float> values) {
  out += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, values[i]);
  }
  out += ']';
}
void append_list(std::string& out, std::span<const std::int32_t> values) {
  out += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    append(out, values[i]);
  }
  out += ']';
}

void append_base64(std::string& out, std::span<const std::uint8_t> bytes) {
  out += '"';
  base::append_base64(std::as_bytes(bytes), out);
  out += '"';
}

const StateEntry* entry_of(const StateSpec& spec, std::int64_t layer, StateKind kind) {
  for (const StateEntry& entry : spec.entries) {
    if (entry.layer == layer && entry.kind == kind) return &entry;
  }
  return nullptr;
}

}  // namespace

std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size()), equals = query.find('=');
    if (equals < end && query.substr(0, equals) == name)
      return query.substr(equals + 1, end - equals - 1);
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return std::nullopt;
}

Json memory_model(const Engine& engine, const WatchOptions& watched) {
  const ModelConfig& config = engine.model().config();
  const StateSpec spec =
      state_spec(config, engine.options().cache_type, engine.options().page_type);
  Json layers = Json::array();
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    const LayerSpec& layer = config.layers[static_cast<std::size_t>(l)];
    Json json = {{"mixer", mixer_name(layer.mixer)}, {"ffn", ffn_name(layer.ffn)}};
    if (const StateEntry* page = entry_of(spec, l, StateKind::kPage)) json["page"] = page->shape;
    if (const StateEntry* list = entry_of(spec, l, StateKind::kList))
      json["list_bytes_per_token"] = list->bytes();
    layers.push_back(std::move(json));
  }
  return {{"object", "memory.model"},
          {"layer", watched.layer},
          {"all_pages", watched.all_pages},
          {"layers", std::move(layers)},
          {"experts", config.moe.num_experts},
          {"experts_per_token", config.moe.experts_per_token},
          {"block_layers", config.attn_res_block_size},
          {"context_length", engine.context()},
          {"fixed_bytes", spec.bytes_per_sequence()},
          {"bytes_per_token", spec.bytes_per_token()},
          {"attention_bytes_per_token", kv_cache_bytes_per_token(config)}};
}

MemoryStream::MemoryStream(Tokenizer tokenizer, std::shared_ptr<Reply> reply,
                           std::shared_ptr<void> place)
    : tokenizer_(std::move(tokenizer)), reply_(std::move(reply)), place_(std::move(place)) {}

void MemoryStream::begin(const Json& model) {
  reply_->begin_stream();
  reply_->write("data: " + dump(model) + "\n\n");
}

bool MemoryStream::hear(const MemoryView& view) {
  length_ = view.length;
  for (const TokenView& token : view.tokens) add(token);
  if (!view.pages.empty()) pages_.clear();  // only the newest ones count
  for (const PageView& page : view.pages) add(page);
  const auto now = std::chrono::steady_clock::now();
  const bool due = now >= next_ || view.ended || tokens_.size() > kMostHeld;
  if (due && !(tokens_.empty() && pages_.empty())) {
    next_ = now + kBetweenEvents;
    if (!flush()) {
      reply_->end();
      return false;
    }
  }
  if (view.ended) end();
  return true;
}

bool MemoryStream::flush() {
  std::string event = fmt::format(
      "data: {{\"object\":\"memory.sample\",\"length\":{},\"tokens\":[{}],\"pages\":[{}]}}\n\n",
      length_, tokens_, pages_);
  tokens_.clear();
  pages_.clear();
  return reply_->write(std::move(event));
}

void MemoryStream::end() {
  reply_->write("data: [DONE]\n\n");
  reply_->end();
}

void MemoryStream::add(const TokenView& token) {
  if (!tokens_.empty()) tokens_ += ',';
  tokens_ += "{\"position\":";
  append(tokens_, token.position);
  tokens_ += ",\"id\":";
  append(tokens_, token.id);
  tokens_ += ",\"text\":";
  tokens_ += dump(Json(text::repair_utf8(tokenizer_.bytes(token.id))));
  const auto numbers = [&](std::string_view name, std::span<const float> values) {
    tokens_ += name;
    append_list(tokens_, values);
  };
  numbers(",\"write\":", token.write);
  numbers(",\"beta\":", token.beta);
  numbers(",\"head_write\":", token.head_write);
  numbers(",\"head_beta\":", token.head_beta);
  tokens_ += ",\"retention\":";
  append_base64(tokens_, token.retention);
  tokens_ += ",\"experts\":";
  append_list(tokens_, std::span<const std::int32_t>(token.experts));
  tokens_ += ",\"depth\":";
  append_base64(tokens_, token.depth);
  tokens_ += '}';
}

void MemoryStream::add(const PageView& page) {
  if (!pages_.empty()) pages_ += ',';
  fmt::format_to(std::back_inserter(pages_),
                 "{{\"layer\":{},\"head\":{},\"rows\":{},\"columns\":{},\"peak\":", page.layer,
                 page.head, page.rows, page.columns);
  append_number(pages_, page.peak);
  pages_ += ",\"cells\":";
  append_base64(pages_, page.cells);
  pages_ += '}';
}

}  // namespace palimpsest::server
