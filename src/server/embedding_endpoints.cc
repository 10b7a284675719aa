// OpenAI's embeddings: hidden states of the last layer, put together over an input's tokens.

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <span>

#include "base/base64.h"
#include "server/endpoints.h"
#include "server/fan_out.h"

namespace palimpsest::server {
namespace {

constexpr std::size_t kMostInputs = 2048;

/// Of length 1, as clients of the interface expect; in double precision.
std::vector<float> unit(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  const double scale = sum > 0 ? 1 / std::sqrt(sum) : 0;
  std::vector<float> out;
  out.reserve(values.size());
  for (const float x : values) out.push_back(static_cast<float>(x * scale));
  return out;
}

/// The vector's F32 numbers, little-endian.
std::string base64(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  std::string out;
  base::append_base64(std::as_bytes(std::span(values)), out);
  return out;
}

std::vector<std::vector<std::int32_t>> read_inputs(const Json& body, const Backend& backend) {
  const Json* input = field(body, "input");
  if (!input) refuse("input", "is missing");
  std::vector<std::vector<std::int32_t>> prompts;
  const auto add = [&](const Json& one) {
    prompts.push_back(one.is_string()
                          ? prompt_ids(backend.tokenizer, one.get_ref<const std::string&>())
                          : ids(one, "input", backend.limits.vocab_size));
    if (prompts.back().empty())
      refuse("input", fmt::format("entry {} is empty", prompts.size() - 1));
  };
  if (!input->is_array() || (!input->empty() && input->front().is_number())) {
    add(*input);
  } else {
    if (input->size() > kMostInputs)
      refuse("input", fmt::format("{} entries, at most {} are taken", input->size(), kMostInputs));
    for (const Json& one : *input) add(one);
  }
  if (prompts.empty()) refuse("input", "is empty");
  return prompts;
}

Pooling read_pooling(const Json& body) {
  const std::string pooling = string(body, "pooling").value_or("mean");
  if (pooling == "mean") return Pooling::kMean;
  if (pooling == "last") return Pooling::kLast;
  refuse("pooling", fmt::format("\"{}\" is neither mean nor last", pooling));
}

/// Gathers the vectors of all inputs; called by the engine's thread.
class EmbeddingJob final : public PartsListener {
 public:
  EmbeddingJob(std::string model, std::size_t inputs, bool as_base64, std::shared_ptr<Reply> reply)
      : model_(std::move(model)), vectors_(inputs), as_base64_(as_base64), reply_(std::move(reply)) {}

  bool hear(std::size_t input, const EngineEvent& event) override {
    if (const auto* vector = std::get_if<EmbeddingEvent>(&event)) {
      vectors_[input] = unit(vector->values);
    } else if (const auto* end = std::get_if<ChoiceEvent>(&event)) {
      throw_if_failed(*end);
    } else if (const auto* last = std::get_if<FinishedEvent>(&event)) {
      tokens_ += last->usage.prompt_tokens;
    }
    return true;
  }
  void finished() override {
    Json data = Json::array();
    for (std::size_t i = 0; i < vectors_.size(); ++i) {
      Json entry = {{"object", "embedding"}, {"index", i}};
      entry["embedding"] = as_base64_ ? Json(base64(vectors_[i])) : Json(vectors_[i]);
      data.push_back(std::move(entry));
    }
    send_json(reply_, {{"object", "list"},
                       {"data", std::move(data)},
                       {"model", model_},
                       {"usage", {{"prompt_tokens", tokens_}, {"total_tokens", tokens_}}}});
  }
  void failed(const ApiError& error) override { reply_->send(error_response(error)); }

 private:
  std::string model_;
  std::vector<std::vector<float>> vectors_;
  bool as_base64_;
  std::int64_t tokens_ = 0;
  std::shared_ptr<Reply> reply_;
};

void embeddings(Backend& backend, const Request& request, const std::shared_ptr<Reply>& reply) {
  const Json body = parse_object(request.body);
  string(body, "model");
  const std::string format = string(body, "encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    refuse("encoding_format", fmt::format("\"{}\" is neither float nor base64", format));
  const std::int64_t width = backend.engine.model().config().hidden_size;
  if (const auto wanted = integer(body, "dimensions", 1, INT64_MAX); wanted && *wanted != width) {
    refuse("dimensions", fmt::format("{} is not supported: the model was not trained for shorter "
                                     "vectors than its {}", *wanted, width));
  }
  EngineRequest asked;
  asked.pooling = read_pooling(body);
  std::vector<EngineRequest> requests;
  for (auto& prompt : read_inputs(body, backend)) {
    requests.push_back(asked);
    requests.back().prompt = std::move(prompt);
  }
  const auto job = std::make_shared<EmbeddingJob>(backend.options.name, requests.size(),
                                                  format == "base64", reply);
  FanOut::start(backend, std::move(requests), request, reply, job);
}

}  // namespace

std::vector<Route> embedding_routes(Backend& backend) {
  return {{"POST", "/v1/embeddings", [&backend](const auto& request, const auto& reply) {
             embeddings(backend, request, reply);
           }}};
}

}  // namespace palimpsest::server
