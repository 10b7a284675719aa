#pragma once

#include "server/fields.h"

namespace palimpsest::server {

/// A request of Anthropic's /v1/messages in the form of /v1/chat/completions: what prepare_chat()
/// takes. `thinks`: whether the model's format knows thinking; it is off unless the request asks.
/// With `counting`, max_tokens may be missing (count_tokens). ApiError 400 naming the field.
Json chat_of_messages(const Json& body, bool thinks, bool counting);

}  // namespace palimpsest::server
