// What a page in front of the server asks for: what there is, and what an answer does to the memories.

#include <algorithm>
#include <atomic>
#include <charconv>

#include "model/state_spec.h"
#include "server/endpoints.h"
#include "server/memory_stream.h"
#include "tensor/device.h"
#include "text/utf8.h"

namespace palimpsest::server {
namespace {

/// What a page in front of the server needs to know.
void props(const Backend& backend, const std::shared_ptr<Reply>& reply) {
  const SamplingParams& defaults = backend.limits.defaults;
  send_json(reply, {{"model_alias", backend.options.name},
                    {"n_ctx", backend.limits.context},
                    {"chat", backend.options.format != nullptr},
                    {"modalities", {{"vision", backend.options.vision.has_value()}}},
                    {"default_generation_settings",
                     {{"temperature", defaults.temperature},
                      {"top_p", defaults.top_p},
                      {"top_k", defaults.top_k},
                      {"min_p", defaults.min_p},
                      {"repeat_penalty", defaults.repeat_penalty},
                      {"presence_penalty", defaults.presence_penalty},
                      {"frequency_penalty", defaults.frequency_penalty}}}});
}

void memory(Backend& backend, const std::shared_ptr<std::atomic<int>>& watchers, const Request& request,
            const std::shared_ptr<Reply>& reply) {
  constexpr int kMostWatchers = 4;
  constexpr std::int64_t kMostPages = 64;  // all of them are looked at where there are no more
  const auto name = query_value(request.query, "request");
  if (!name) refuse("request", "is missing");
  if (backend.engine.model().device().kind() != DeviceKind::kCpu)
    throw ApiError(400, "memories on a device cannot be watched", {}, "not_on_the_host");
  WatchOptions watched;
  std::int64_t pages = 0;
  std::vector<std::int64_t> layers;
  for (const StateEntry& entry : state_spec(backend.engine.model().config()).entries) {
    if (entry.kind != StateKind::kPage) continue;
    layers.push_back(entry.layer);
    pages += entry.shape.front();
  }
  if (!layers.empty()) watched.layer = layers.front();
  if (const auto layer = query_value(request.query, "layer")) {
    const auto [end, ec] =
        std::from_chars(layer->data(), layer->data() + layer->size(), watched.layer);
    if (ec != std::errc{} || end != layer->data() + layer->size() ||
        std::find(layers.begin(), layers.end(), watched.layer) == layers.end())
      refuse("layer", "\"" + text::repair_utf8(*layer) + "\" is no layer that keeps pages");
  }
  watched.all_pages = pages <= kMostPages;
  const auto id = backend.live.find(*name, backend.user_of(request));
  if (!id)
    throw ApiError(404, "no answer of this id is being computed for you", "request",
                   "unknown_request");
  if (watchers->fetch_add(1) >= kMostWatchers) {
    --*watchers;
    ApiError error(429, "others are watching already, as many as may", {}, "too_many_watchers");
    error.retry_after = 1;
    throw error;
  }
  std::shared_ptr<void> place(watchers.get(), [counter = watchers](void*) { --*counter; });
  const auto stream = std::make_shared<MemoryStream>(backend.tokenizer, reply, std::move(place));
  stream->begin(memory_model(backend.engine, watched));
  try {
    backend.engine.watch(*id, watched, [stream](const MemoryView& view) { return stream->hear(view); });
  } catch (const UnavailableError&) {
    stream->end();
  }
}

}  // namespace

std::vector<Route> memory_routes(Backend& backend) {
  const auto watchers = std::make_shared<std::atomic<int>>(0);
  return {{"GET", "/props", [&backend](const auto&, const auto& reply) { props(backend, reply); }},
          {"GET", "/v1/memory", [&backend, watchers](const auto& request, const auto& reply) {
             memory(backend, watchers, request, reply);
           }}};
}

}  // namespace palimpsest::server
