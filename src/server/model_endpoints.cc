// What models there are: one.

#include <fmt/format.h>

#include "server/endpoints.h"

namespace palimpsest::server {
namespace {

Json model_json(const Backend& backend) {
  return {{"id", backend.options.name},
          {"object", "model"},
          {"created", backend.started},
          {"owned_by", "palimpsest"},
          {"context_length", backend.limits.context},
          {"vocab_size", backend.limits.vocab_size}};
}

}  // namespace

std::vector<Route> model_routes(Backend& backend) {
  const auto list = [&backend](const Request&, const std::shared_ptr<Reply>& reply) {
    Json models = Json::array();
    models.push_back(model_json(backend));
    send_json(reply, {{"object", "list"}, {"data", std::move(models)}});
  };
  const auto one = [&backend](const Request& request, const std::shared_ptr<Reply>& reply) {
    if (request.name != backend.options.name) {
      throw ApiError(404, fmt::format("no model is called \"{}\"", request.name), "model",
                     "model_not_found");
    }
    send_json(reply, model_json(backend));
  };
  return {{"GET", "/v1/models", list}, {"GET", "/v1/models/{model}", one}};
}

}  // namespace palimpsest::server
