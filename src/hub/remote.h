#pragma once

#include <string>

#include "hub/http.h"
#include "hub/model_id.h"
#include "hub/model_info.h"

namespace palimpsest::hub {

/// What the hub says about a model: its commit and its files, from its description or, where that
/// has no list or a list that may be cut, page by page from its tree. Throws Error.
ModelInfo fetch_model_info(HttpClient& client, const Settings& settings, const ModelId& id);

/// Size and checksum of a file, asked for by its headers, where the list of files does not tell
/// them. Throws Error{kInvalidFile} when the server does not tell either.
void complete_file(HttpClient& client, const Settings& settings, const ModelId& id,
                   const std::string& commit, RemoteFile& file);

/// The target of a Link header's rel="next"; "" without one.
std::string next_page(std::string_view link);

/// {endpoint}/{repo}/resolve/{commit}/{name}
std::string file_url(const Settings& settings, const ModelId& id, const std::string& commit,
                     const std::string& name);

/// The checksum that the hub gives a file: X-Linked-Etag, else ETag, without quotes and W/; "" when
/// it is none.
std::string linked_checksum(const HttpResponse& response);

/// Content-Length or X-Linked-Size; nothing when it is missing or no number.
std::optional<std::uint64_t> byte_count(const Headers& headers, std::string_view name);

/// Throws for a status that is not 2xx: TransientError for those that may pass, else Error{kIo}
/// that says what may be done.
void check_status(const HttpResponse& response, const Settings& settings, const ModelId& id);

}  // namespace palimpsest::hub
