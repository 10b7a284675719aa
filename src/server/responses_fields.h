#pragma once

#include "server/fields.h"

namespace palimpsest::server {

/// A request of OpenAI's /v1/responses in the form of /v1/chat/completions: what prepare_chat()
/// takes. ApiError 400 naming the field, and for what would need answers of before: nothing is kept
/// between requests.
Json chat_of_responses(const Json& body);

}  // namespace palimpsest::server
