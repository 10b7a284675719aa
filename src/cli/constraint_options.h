#pragma once

#include <optional>

#include "cli/options.h"
#include "grammar/constraint.h"
#include "palimpsest/chat.h"

namespace palimpsest::cli {

/// What --json-schema, --json-schema-file, --grammar, --grammar-file or --regex ask for, checked
/// without a model. Error{kUsage} for two of them; Error{kInvalidRequest} naming the flag and the
/// place for a source that is not supported.
std::optional<grammar::Language> constraint_language(const Options& options);

/// Makes the constraints of one run's answers.
class AnswerConstraints {
 public:
  AnswerConstraints(std::optional<grammar::Language> language, const Tokenizer& tokenizer);

  /// Of an answer that is plain text; null where any is allowed.
  std::unique_ptr<TokenConstraint> plain();
  /// Of the answer to a chat; null where any is allowed.
  std::unique_ptr<TokenConstraint> chat(const ChatFormat& format, const Conversation& conversation);
  /// Has the prompt ask for what will be enforced, where the format has words for that.
  void ask(const ChatFormat& format, Conversation& conversation) const;

 private:
  std::optional<grammar::Language> language_;
  grammar::ConstraintMaker maker_;
};

}  // namespace palimpsest::cli
