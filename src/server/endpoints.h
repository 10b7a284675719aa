#pragma once

#include <string>
#include <vector>

#include "server/backend.h"
#include "server/routes.h"

// The paths of docs/server.md in groups, a file each. `backend` outlives the routes.

namespace palimpsest::server {

std::vector<Route> completion_routes(Backend& backend);  ///< /v1/chat/completions, /v1/completions
std::vector<Route> messages_routes(Backend& backend);    ///< /v1/messages and count_tokens
std::vector<Route> responses_routes(Backend& backend);   ///< /v1/responses
std::vector<Route> embedding_routes(Backend& backend);   ///< /v1/embeddings
std::vector<Route> model_routes(Backend& backend);       ///< /v1/models
std::vector<Route> text_routes(Backend& backend);    ///< /tokenize, /detokenize, /apply-template
/// /slots; with ServiceOptions::sessions, /sessions too. Throws Error{kIo} for no such folder.
std::vector<Route> session_routes(Backend& backend);
std::vector<Route> status_routes(Backend& backend);  ///< /health, /metrics
std::vector<Route> memory_routes(Backend& backend);  ///< /v1/memory, /props

/// The engine's counters and the transport's, in Prometheus' text format.
std::string metrics_text(const EngineMetrics& engine, const HttpCounts& http);

}  // namespace palimpsest::server
