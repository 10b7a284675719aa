#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/io.h"
#include "cli/setup.h"

namespace palimpsest::cli {

int tokenize(const Options& options) {
  const std::string text = text_argument(options, "text");
  const Tokenizer tokenizer = require_tokenizer(options.model, std::nullopt, "");
  const std::vector<TokenId> ids =
      tokenizer.encode(text, options.control ? EncodeMode::kControl : EncodeMode::kText);
  if (!options.json) {
    print(format_ids(ids) + "\n");
    return 0;
  }
  nlohmann::ordered_json json = {{"count", ids.size()}, {"ids", ids}};
  nlohmann::ordered_json& pieces = json["pieces"] = nlohmann::ordered_json::array();
  for (const TokenId id : ids) pieces.push_back(std::string(tokenizer.bytes(id)));
  // A token may hold a part of a character: JSON can only show U+FFFD there.
  print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  return 0;
}

}  // namespace palimpsest::cli
