#include "base/error.h"
#include "cli/chat_options.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/setup.h"

namespace palimpsest::cli {

int render(const Options& options) {
  if (!options.file) throw make_error(ErrorCode::kUsage, "no chat: give one by -f FILE");
  Conversation conversation;
  try {
    conversation = parse_chat(read_input(*options.file));
  } catch (Error& error) {
    if (error.code() == ErrorCode::kIo) throw;
    throw error.add_context(*options.file);
  }
  apply_chat_flags(options, conversation);
  const Tokenizer tokenizer = require_tokenizer(options.model, std::nullopt, "");
  const std::vector<ChatSegment> segments = ChatFormat::create(tokenizer, options.model)->render(conversation);
  print(options.render_ids ? format_ids(encode(tokenizer, segments)) + "\n" : join(segments));
  return 0;
}

}  // namespace palimpsest::cli
