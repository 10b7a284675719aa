#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace palimpsest::hub {

/// A model of a hub: OWNER/NAME, and which state of it.
struct ModelId {
  std::string owner, name;
  std::string revision = "main";  ///< a branch, a tag or a commit

  std::string repo() const { return owner + "/" + name; }
  /// As the command line takes it: "OWNER/NAME", with "@REV" where it is not main.
  std::string text() const { return revision == "main" ? repo() : repo() + "@" + revision; }
};

/// Reads OWNER/NAME[@REV]. Owner and name hold letters, digits, '-', '_' and '.', neither begin nor
/// end in '-' or '.', and hold neither "--" (which separates them in the cache) nor ".."; a
/// revision is what git takes as a name. So all three can be part of a path. Errors: kUsage.
Result<ModelId> parse_model_id(std::string_view text);

/// 40 lower-case hexadecimal digits.
bool is_commit(std::string_view text);

/// `length` lower-case hexadecimal digits.
bool is_hex(std::string_view text, std::size_t length);

}  // namespace palimpsest::hub
